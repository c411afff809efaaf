"""A step on a GPU: compared with the plain step, timed kernel by kernel and copy by copy, by events of its streams."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from autotm.memory.gpu.links import StreamTimer, copy_times
from autotm.model.errors import AutotmError
from autotm.model.graph import ALIGNMENT_BYTES, Graph, OpClass, Tier
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.profile.kernel_timing import ProfileOptions
from autotm.runtime.streams.executor import OpenDevice, StreamExecutor, plain_on_device, prepare_streams
from autotm.runtime.streams.run import operand_bytes, profile_on
from autotm.runtime.streams.schedule import DeviceArguments, device_bytes
from autotm.runtime.verify import digested, verify

COPIED_BYTES = (ALIGNMENT_BYTES, *(4096 * 4**power for power in range(8)))
"""Sizes of copies that are timed: a copy's latency, then 4 KiB to 64 MiB."""
_CONTRACTIONS = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT, OpClass.CONV_WEIGHT_GRADIENT, OpClass.MATMUL}
_WARM_UP = 2


def compared(graph: Graph, program: Program, counts: Counts, seed: int, steps: int, opened: OpenDevice) -> int:
    """Run steps of a program and of the plain step; returns how many results were the same, bit for bit.

    Memory of the program is overwritten as soon as its tensor is dead. Where the device has too little memory for the
    plain step, that is run kernel by kernel.

    Raises:
        VerificationError: a result differs, or is not finite.
        AutotmError: as `opened`.
    """
    chosen = graph.computed_by(program.implementations)
    with plain_on_device(chosen, opened) as (_, plain):
        expected = digested(chosen, plain, seed, steps)
    with _prepared(graph, program, counts, opened, poison=True) as executor:
        executor.arguments.fill(seed)
        verify(chosen, executor, expected, steps)
    return len(expected[0])


def step_seconds(
    graph: Graph, program: Program, counts: Counts, seed: int, rounds: int, opened: OpenDevice
) -> list[float]:
    """Time `rounds` whole steps after a warm-up, each waited for; returns the seconds of each."""
    seconds = []
    with _prepared(graph, program, counts, opened) as executor:
        executor.arguments.fill(seed)
        for _ in range(_WARM_UP + rounds):
            start = time.perf_counter()
            executor.step()
            seconds.append(time.perf_counter() - start)
    return seconds[_WARM_UP:]


def profiled(
    graph: Graph,
    counts: Counts,
    options: ProfileOptions,
    opened: OpenDevice,
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


@contextmanager
def _prepared(
    graph: Graph, program: Program, counts: Counts, opened: OpenDevice, *, poison: bool = False
) -> Iterator[StreamExecutor]:
    placed, chosen = program.step_of(counting(graph, counts)), graph.computed_by(program.implementations)
    with opened(device_bytes(chosen, placed, program), max(program.slow_bytes, ALIGNMENT_BYTES)) as (device, kernels):
        arguments = DeviceArguments.of(chosen, placed, program, device)
        yield prepare_streams(placed, kernels, program, arguments, poison=poison)
