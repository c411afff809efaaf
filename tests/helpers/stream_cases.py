"""Programs on devices of threads: what a step leaves behind, and what it must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import small_step
from thread_device import Order, ThreadDevice

from autotm.kernels.library import KernelLibrary
from autotm.model.graph import Graph, Role
from autotm.model.limit import Counts, counting
from autotm.model.program import Program
from autotm.runtime.streams import executor as executor_module
from autotm.runtime.streams.executor import prepare_streams
from autotm.runtime.streams.schedule import DeviceArguments, Schedule, device_bytes, schedule
from autotm.runtime.verify import plain_program

Values = dict[str, np.ndarray]


def run_steps(
    graph: Graph,
    library: KernelLibrary,
    program: Program,
    *,
    steps: int = 2,
    counts: Counts = Counts.INTERMEDIATES,
    order: Order | None = None,
    poison: bool = True,
    dead: bool = False,
    races: bool = True,
    rescheduled: Callable[[Schedule], Schedule] | None = None,
) -> Values:
    """Results after steps that follow each other without the host waiting in between."""
    counted = counting(graph, counts)
    placed, chosen = program.step_of(counted), graph.computed_by(program.implementations)
    size_bytes, machine = device_bytes(chosen, placed, program), small_step.machine()
    with ThreadDevice(
        size_bytes, program.slow_bytes, order=order, poison=poison, races=races, machine=machine
    ) as device:
        arguments = DeviceArguments.of(chosen, placed, program, device)
        arguments.fill(1)
        with pytest.MonkeyPatch.context() as patched:
            if rescheduled is not None:
                patched.setattr(executor_module, "schedule", lambda listed: rescheduled(schedule(listed)))
            executor = prepare_streams(placed, library, program, arguments, poison=dead)
        for _ in range(steps):
            executor.queue()
        device.synchronize()
        return results(chosen, arguments)


def plain(graph: Graph, library: KernelLibrary, steps: int = 2) -> Values:
    """Results of plain steps, in which nothing moves and no memory is used twice."""
    return run_steps(graph, library, plain_program(graph), steps=steps, poison=False)


def results(graph: Graph, arguments: DeviceArguments) -> Values:
    return {tensor.name: arguments.value(tensor.name) for tensor in graph.tensors if tensor.role is Role.RESULT}


def same(one: Values, other: Values) -> bool:
    """Whether they are equal bit for bit."""
    assert one.keys() == other.keys()
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def without(operation: int, waited: int) -> Callable[[Schedule], Schedule]:
    """A schedule in which one operation does not wait for another."""

    def changed(given: Schedule) -> Schedule:
        waits = list(given.waits)
        assert waited in waits[operation]
        waits[operation] = tuple(other for other in waits[operation] if other != waited)
        return replace(given, waits=tuple(waits))

    return changed
