"""A step on a GPU: compared with the plain step, timed kernel by kernel and copy by copy, by events of its streams."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from autotm.memory.gpu.interface import Device, DeviceMemoryError
from autotm.memory.gpu.links import StreamTimer, copy_times
from autotm.model.errors import AutotmError
from autotm.model.graph import ALIGNMENT_BYTES, Graph, OpClass, Role, Tier
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.profile.kernel_timing import ProfileOptions
from autotm.runtime.streams.executor import Kernels, StreamExecutor, prepare_streams
from autotm.runtime.streams.plain import KernelByKernel, largest_kernel, too_large
from autotm.runtime.streams.run import operand_bytes, profile_on
from autotm.runtime.streams.schedule import DeviceArguments, device_bytes
from autotm.runtime.verify import VerificationError, plain_program

log = logging.getLogger(__name__)

Open = Callable[[int, int], AbstractContextManager[tuple[Device, Kernels]]]
"""A device with so many bytes in its own pool and in the host's, and the kernels loaded on it."""
COPIED_BYTES = (ALIGNMENT_BYTES, *(4096 * 4**power for power in range(8)))
"""Sizes of copies that are timed: a copy's latency, then 4 KiB to 64 MiB."""
_CONTRACTIONS = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT, OpClass.CONV_WEIGHT_GRADIENT, OpClass.MATMUL}
_WARM_UP = 2


def compared(graph: Graph, program: Program, counts: Counts, seed: int, steps: int, opened: Open) -> int:
    """Run steps of a program and of the plain step; returns how many results were the same, bit for bit.

    Memory of the program is overwritten as soon as its tensor is dead. Where the device has too little memory for the
    plain step, that is run kernel by kernel.

    Raises:
        VerificationError: a result differs, or is not finite.
        AutotmError: as `opened`.
    """
    chosen = graph.computed_by(program.implementations)
    wanted = _plain_results(graph, chosen, seed, steps, opened)
    found = _results(graph, program, counts, seed, steps, opened, poison=True)
    for number, (plain, planned) in enumerate(zip(wanted, found, strict=True), start=1):
        wrong = [name for name, value in plain.items() if value.tobytes() != planned[name].tobytes()]
        if wrong:
            raise VerificationError(
                f"{program.optimizer} at limit {program.limit}: step {number} differs from the plain step in "
                f"{len(wrong)} of {len(plain)} results, first '{wrong[0]}'; report program.json and the GPU's name"
            )
        if endless := [name for name, value in plain.items() if _is_endless(value)]:
            raise VerificationError(
                f"network '{graph.network}': plain step {number} gives values that are not finite in '{endless[0]}': "
                "nothing can be compared; lower its learning rate, or the values that it starts from"
            )
    return len(wanted[0])


def step_seconds(graph: Graph, program: Program, counts: Counts, seed: int, rounds: int, opened: Open) -> list[float]:
    """What whole steps took, each waited for, after a warm-up."""
    with _prepared(graph, program, counts, seed, opened) as (executor, _):
        return _timed(executor.step, rounds)


def profiled(
    graph: Graph,
    counts: Counts,
    options: ProfileOptions,
    opened: Open,
    came_from: Mapping[str, Any],
) -> tuple[Profile, Links]:
    """Time every kernel by each of its implementations, and copies; both alone.

    Kernels use device memory only, so there are no other configurations. The profile's provenance names the GPU.

    Raises:
        AutotmError: as `opened`.
    """
    counted = counting(graph, counts)
    with opened(operand_bytes(counted), ALIGNMENT_BYTES) as (device, kernels):
        timed = profile_on(device, kernels, counted, options.min_repeats, {**came_from, "gpu": device.name})
    with opened(COPIED_BYTES[-1], COPIED_BYTES[-1]) as (device, _):
        alone_ns = StreamTimer(device).alone_ns
        curves = (copy_times(alone_ns, tier, COPIED_BYTES) for tier in (Tier.FAST, Tier.SLOW))
        links = Links(*curves, _contraction_flop_per_s(graph, timed), 1.0)
    return timed, links


def _contraction_flop_per_s(graph: Graph, profile: Profile) -> float:
    """Rate of the step's contractions, or, where it has none, of its kernels; floating-point operations a second."""
    kernels = [each for each in graph.computed_by(()).kernels if each.op_class in _CONTRACTIONS] or graph.kernels
    seconds = sum(profile.base_us(kernel) for kernel in kernels) / 1e6
    if not seconds:
        raise AutotmError(f"network '{graph.network}': its kernels took no time that events could tell")
    return sum(kernel.flops for kernel in kernels) / seconds


def _is_endless(value: np.ndarray) -> bool:
    return value.dtype.kind == "f" and not np.isfinite(value).all()


def _names(graph: Graph) -> list[str]:
    return [tensor.name for tensor in graph.tensors if tensor.role is Role.RESULT]


def _plain_results(graph: Graph, chosen: Graph, seed: int, steps: int, opened: Open) -> list[dict[str, np.ndarray]]:
    try:
        return _results(graph, plain_program(chosen), Counts.INTERMEDIATES, seed, steps, opened)
    except DeviceMemoryError as error:
        log.info("the plain step is run kernel by kernel, its tensors in memory of the host: %s", error)
    largest, size_bytes = largest_kernel(chosen)
    found = []
    try:
        with opened(size_bytes, ALIGNMENT_BYTES) as (device, kernels):
            one_by_one = KernelByKernel(chosen, device, kernels)
            one_by_one.fill(seed)
            for _ in range(steps):
                one_by_one.step()
                found.append({name: one_by_one.value(name).copy() for name in _names(graph)})
    except DeviceMemoryError as error:
        raise too_large(largest.name, size_bytes, error) from None
    return found


def _results(
    graph: Graph,
    program: Program,
    counts: Counts,
    seed: int,
    steps: int,
    opened: Open,
    *,
    poison: bool = False,
) -> list[dict[str, np.ndarray]]:
    found = []
    with _prepared(graph, program, counts, seed, opened, poison=poison) as (executor, arguments):
        for _ in range(steps):
            executor.step()
            found.append({name: arguments.value(name) for name in _names(graph)})
    return found


@contextmanager
def _prepared(
    graph: Graph,
    program: Program,
    counts: Counts,
    seed: int,
    opened: Open,
    *,
    poison: bool = False,
) -> Iterator[tuple[StreamExecutor, DeviceArguments]]:
    placed, chosen = program.step_of(counting(graph, counts)), graph.computed_by(program.implementations)
    with opened(device_bytes(chosen, placed, program), max(program.slow_bytes, ALIGNMENT_BYTES)) as (device, kernels):
        arguments = DeviceArguments.of(chosen, placed, program, device)
        arguments.fill(seed)
        executor = prepare_streams(placed, kernels, program, arguments, poison=poison)
        yield executor, arguments


def _timed(step: Callable[[], None], rounds: int) -> list[float]:
    found = []
    for _ in range(_WARM_UP + rounds):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return found[_WARM_UP:]
