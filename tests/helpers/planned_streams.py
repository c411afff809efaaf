"""Tiny networks of the zoo planned at the least memory that there is, and what their steps leave behind on devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import random_graphs
import small_step
from played_cudart import PlayedRuntime
from thread_device import Delays, ThreadDevice

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.layout.compile import compile_program
from autotm.lower.lowering import lower_network
from autotm.memory.gpu.cuda_memory import DeviceMemoryError
from autotm.model.errors import InfeasibleLimitError
from autotm.model.graph import Graph, Kernel, Launch, Role
from autotm.model.limit import Counts, Limit, counting
from autotm.model.program import Program
from autotm.runtime.streams import executor as executor_module
from autotm.runtime.streams.executor import OpenDevice, prepare_streams
from autotm.runtime.streams.schedule import DeviceArguments, Schedule, device_bytes, schedule
from autotm.runtime.verify import plain_program
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack
from autotm.zoo import build

Values = dict[str, np.ndarray]
STEPS = 3


def run_steps(
    graph: Graph,
    library: KernelLibrary,
    program: Program,
    *,
    counts: Counts = Counts.INTERMEDIATES,
    dead: bool = False,
    rescheduled: Callable[[Schedule], Schedule] | None = None,
    **how: object,
) -> Values:
    """Results after `STEPS` steps that follow each other, the host not waiting, on a device of threads made so."""
    placed, chosen = program.step_of(counting(graph, counts)), graph.computed_by(program.implementations)
    how = {"poison": True, "races": True, "machine": small_step.machine()} | how
    with ThreadDevice(device_bytes(chosen, placed, program), program.slow_bytes, **how) as device:
        arguments = DeviceArguments.of(chosen, placed, program, device)
        arguments.fill(1)
        with pytest.MonkeyPatch.context() as patched:
            if rescheduled is not None:
                patched.setattr(executor_module, "schedule", lambda listed: rescheduled(schedule(listed)))
            executor = prepare_streams(placed, library, program, arguments, poison=dead)
        for _ in range(STEPS):
            executor.queue()
        device.synchronize()
        return results(chosen, arguments)


def on_threads(library: KernelLibrary, seed: int = 0, most_bytes: int = 1 << 40) -> OpenDevice:
    """A function that opens thread devices of at most `most_bytes`, which run the kernels of `library`."""

    @contextmanager
    def opened(device_bytes: int, host_bytes: int, **_: object) -> Iterator[tuple[ThreadDevice, KernelLibrary]]:
        if device_bytes > most_bytes:
            raise DeviceMemoryError(f"{most_bytes} bytes are free")
        how = {"order": Delays(seed, 1e-5), "machine": small_step.machine()}
        with ThreadDevice(device_bytes, host_bytes, poison=True, races=True, **how) as device:
            yield device, library

    return opened


def plain(graph: Graph, library: KernelLibrary) -> Values:
    """Results of plain steps, in which nothing moves and no memory is used twice."""
    return run_steps(graph, library, plain_program(graph), poison=False)


def results(graph: Graph, arguments: DeviceArguments) -> Values:
    return {tensor.name: arguments.value(tensor.name) for tensor in graph.tensors if tensor.role is Role.RESULT}


def same(one: Values, other: Values) -> bool:
    """Whether they are equal bit for bit."""
    assert one.keys() == other.keys()
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


SIZES = {"mlp": {"batch": 16, "width": 256}, "mnist": {"batch": 4, "image": 28}}
ONLY_FAST = SolveOptions(fast_operands_only=True, gap=0.05, time_limit_s=10)


@dataclass(frozen=True)
class Planned:
    """A network's step, its kernels, a program for each optimizer, and what `STEPS` plain steps leave behind."""

    graph: Graph
    library: KernelLibrary
    programs: dict[str, Program]
    expected: Values


def planned_step(name: str, folder: Path, objects: Path) -> Planned:
    """A network of `SIZES`, its kernels compiled into a folder, from machine code that `objects` holds."""
    library = folder / "kernels.so"
    network, graph_path = build(name, SIZES[name]), folder / "graph.json"
    graph = lower_network(network, "tiny", host_target(1), 1, graph_path, library, {}, objects)
    engines = random_graphs.with_engines(modelled(graph), slower=1.5)
    loaded = KernelLibrary.load(library)
    programs = {name: program_at_least_memory(engines, name) for name in ("synchronous", "asynchronous")}
    return Planned(engines.graph, loaded, programs, plain(engines.graph, loaded))


def modelled(graph: Graph) -> random_graphs.Case:
    """A step with times of a roofline, and links of a GPU's speed."""
    links = random_graphs.make_links(29.0, 12.0, tiny=True)
    return random_graphs.Case(graph, random_graphs.roofline_profile(graph, 0), links)


def program_at_least_memory(case: random_graphs.Case, optimizer: str) -> Program:
    """The optimizer's program at the smallest limit of fast memory that has a plan."""
    graph, profile, links = case.graph, case.profile, case.links
    with pytest.raises(InfeasibleLimitError) as error:
        solve_and_pack(graph, profile, links, optimizer, Limit.parse("64B"), ONLY_FAST)
    least = Limit.parse(f"{error.value.smallest_bytes}B")
    plan, layout = solve_and_pack(graph, profile, links, optimizer, least, ONLY_FAST)
    check_plan(graph, profile, links, plan, fast_operands_only=True)
    program = compile_program(graph, plan, layout)
    check_program(graph, plan, program)
    assert program.slow_bytes
    return program


def launches_of(planned: Planned) -> dict[str, tuple[Launch, ...]]:
    """Each function of the step as one launch of all operands."""
    return {
        kernel.function: (Launch(kernel.function, tuple(range(len(kernel.operands))), (1, 1, 1), (32, 1, 1)),)
        for kernel in planned.graph.kernels
    }


def functions_of(planned: Planned, played: PlayedRuntime) -> dict[str, Callable[..., None]]:
    """The processor's kernels, called with addresses."""

    def call(kernel: Kernel, extents: list[int], addresses: tuple[int, ...]) -> None:
        assert extents == [1, 1, 1, 32, 1, 1]
        arrays = [
            played.bytes_at(address, operand.size_bytes).view(operand.dtype).reshape(operand.shape)
            for address, operand in zip(addresses, kernel.operands, strict=True)
        ]
        planned.library.bind(kernel.function, arrays)()

    return {kernel.function: functools.partial(call, kernel) for kernel in planned.graph.kernels}
