"""Programs and kernels on a device or on the machine's GPU: verified, and timed from event to event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from statistics import median, quantiles
from typing import Any

from autotm.kernels.library import FatbinLibrary
from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Kernel, all_fast
from autotm.model.links import Links
from autotm.model.machine import Machine
from autotm.model.plan import MANAGED_MEMORY, Plan
from autotm.model.profile import Profile, Timing, TimingKey
from autotm.model.program import Program
from autotm.model.record import Record
from autotm.model.timeline import Lane, Timeline
from autotm.runtime.executor import Call
from autotm.runtime.record import Measured
from autotm.runtime.run import PlannedStep, steps_of
from autotm.runtime.step_times import RunOptions, StepParts, StepTimes, time_in_turn
from autotm.runtime.streams.executor import (
    LaunchedKernels,
    OpenDevice,
    StreamExecutor,
    open_machines_gpu,
    plain_on_device,
    prepare_streams,
)
from autotm.runtime.streams.schedule import DeviceArguments, aligned, device_bytes
from autotm.runtime.verify import digested, finite_steps

# Times of kernels and steps on a device, from event to event.

_LEAST_NS = 20_000
"""Events resolve half a microsecond: a kernel is launched as often as lasts so long, and its time is the mean."""


def operand_bytes(graph: Graph) -> int:
    """Return the device memory to time a graph's kernels, all implementations: the largest operands of one."""
    return max(_offsets(kernel.computed_by(name))[-1] for kernel in graph.kernels for name in kernel.implementations)


def profile_on(
    device: CudaDevice, kernels: LaunchedKernels, graph: Graph, repeats: int, provenance: dict[str, object]
) -> Profile:
    """Time each distinct kernel of a graph in each of its implementations, alone, all operands in device memory.

    Args:
        device: whose pool has at least `operand_bytes`; its streams stand still.
        kernels: of the graph, for that device.
        graph: as lowered.
        repeats: timed after one that is not.
        provenance: of the profile.
    """
    timings: dict[TimingKey, Timing] = {}
    for kernel in graph.kernels:
        for variant in map(kernel.computed_by, kernel.implementations):
            key = variant.identity, variant.implementation, all_fast(variant)
            if key not in timings:
                places = zip(variant.operands, _offsets(variant), strict=False)
                views = [device.device_pool.view(place, one.shape, one.dtype) for one, place in places]
                timings[key] = _timing(_times_ns(device, kernels.bind(variant.function, views), repeats))
    return Profile(hash_of(graph), timings, provenance)


def parts_of(executor: StreamExecutor, steps: int) -> tuple[StepParts, Timeline]:
    """Return the median times of a step's parts over `steps` timelines, and the timeline whose step took the median.

    Time in which the compute stream does nothing is in `stall_us`: waits for copies, and the time between kernels.
    """
    timelines = sorted((executor.timeline() for _ in range(steps)), key=lambda timeline: timeline.step_ns)
    typical = timelines[len(timelines) // 2]
    kernels_us = {
        same[0].name: median(one.end_ns - one.start_ns for one in same) / 1e3
        for same in zip(*(timeline.of(Lane.COMPUTE) for timeline in timelines), strict=True)
    }
    is_blocking = [one.is_blocking for one in executor.order.operations if one.reads or one.writes]
    moves_ns = [
        sum(one.end_ns - one.start_ns for one, waits in zip(timeline.operations, is_blocking, strict=True) if waits)
        for timeline in timelines
    ]
    moves_us = median(moves_ns) / 1e3
    stalled_ns = typical.step_ns - sum(one.end_ns - one.start_ns for one in typical.of(Lane.COMPUTE))
    return StepParts(kernels_us, max(0.0, stalled_ns / 1e3 - moves_us), moves_us), typical


def _offsets(kernel: Kernel) -> list[int]:
    """Return where each operand begins if they lie one behind the other, and where the last ends."""
    return list(accumulate((aligned(max(operand.size_bytes, 1)) for operand in kernel.operands), initial=0))


def call_ns(device: CudaDevice, call: Call) -> float:
    """Time one call of a kernel in ns, launched as often as events need to tell it; its streams must be idle."""
    return _times_ns(device, call, 1)[0]


def _times_ns(device: CudaDevice, call: Call, repeats: int) -> list[float]:
    begin, end = device.event(timed=True), device.event(timed=True)

    def timed_ns(calls: int) -> float:
        device.compute.record(begin)
        for _ in range(calls):
            device.compute.launch(call)
        device.compute.record(end)
        device.synchronize()
        return device.elapsed_ns(begin, end) / calls

    timed_ns(1)
    calls = max(1, round(_LEAST_NS / max(1.0, timed_ns(1))))
    return [timed_ns(calls) for _ in range(repeats)]


def _timing(times_ns: Sequence[float]) -> Timing:
    middle = median(times_ns)
    lower, _, upper = quantiles(times_ns, n=4) if len(times_ns) > 1 else (middle, middle, middle)
    return Timing(round(min(times_ns)), round(middle), round(lower), round(upper), len(times_ns))


@dataclass
class _DeviceStep(PlannedStep):
    """A program on a device's streams.

    Attributes:
        timeline: of a step with the median time, once it was recorded.
    """

    executor: StreamExecutor
    timeline: Timeline | None = None

    def _measured(self, times: StepTimes) -> Measured:
        parts, self.timeline = parts_of(self.executor, self.options.instrumented_steps)
        return Measured(times, parts, self.options.verify_steps, self.options.seed, self.against)


def run_on_device(
    graph: Graph,
    program: Program,
    plan: Plan,
    machine: Machine,
    links: Links,
    profile: Profile,
    options: RunOptions,
    opened: OpenDevice,
) -> tuple[Record, Timeline]:
    """Verify and time `program`; the timeline is of a step with the median time.

    The plain step runs on the same device first, with the same implementations of kernels (`plain_on_device`); the
    record says how. No all-fast step is timed in turn with the program: the device gives its memory to one at a time.

    A program of managed memory has a pool that is larger than its limit, and device memory of the limit's size besides
    the arguments.

    Args:
        graph: as lowered, with all implementations.
        program: to be run.
        plan: that it was compiled from.
        machine: that has the device.
        links: measured on it.
        profile: of its kernels.
        options: how it is verified and timed; `side_by_side` and `poison` do not count.
        opened: opens it with the kernels of the graph.

    Raises:
        BadInputError: program, plan, profile and graph do not belong together, the library lacks a kernel, a kernel has
            an operand in slow memory, or the program exceeds its limit.
        AutotmError: the device cannot be had, its work failed, or it has too little memory for one kernel alone.
        VerificationError: the program computes something else than the plain step.
    """
    counted, placed, chosen = steps_of(graph, program, plan, profile)
    if not program.fits:
        raise BadInputError(
            f"program of {program.optimizer}: it takes {program.fast_bytes} bytes of device memory, its limit is "
            f"{program.dram_limit_bytes}: give a larger limit"
        )
    options, cpus = replace(options, poison=False), machine.cpus
    against, expected = "", None
    if options.verify_steps:
        with plain_on_device(chosen, opened) as (against, plain):
            expected = digested(chosen, plain, options.seed, options.verify_steps, cpus)
    size_bytes, allowed_bytes = device_bytes(chosen, placed, program), None
    if program.optimizer == MANAGED_MEMORY:
        in_pool = program.fast_bytes if program.limit.is_unlimited else program.dram_limit_bytes
        allowed_bytes = size_bytes - program.fast_bytes + in_pool
    with opened(size_bytes, program.slow_bytes, allowed_bytes=allowed_bytes) as (device, kernels):
        arguments = DeviceArguments.of(chosen, placed, program, device)
        executor = prepare_streams(placed, kernels, program, arguments)
        planned = _DeviceStep(plan, counted, placed, chosen, executor, options, cpus, expected, against)
        (times,) = time_in_turn([planned.contender()], None, cpus, options, is_warm=True)
        if isinstance(times, AutotmError):
            raise times
        record = planned.record(times, machine, links, profile)
    assert planned.timeline is not None
    return record, planned.timeline


def plain_losses_on_gpu(graph: Graph, library: FatbinLibrary, machine: Machine, options: RunOptions) -> list[float]:
    """Return the losses of as many plain steps as are to be verified, with default implementations.

    Raises:
        as `plain_on_device` and `finite_steps`; AutotmError, where the GPU is refused.
    """
    with plain_on_device(graph, partial(open_machines_gpu, machine, library)) as (_, plain):
        steps = finite_steps(graph, plain, options.seed, options.verify_steps)
        return [float(values.value("loss")) for values in steps]


def profile_on_gpu(
    graph: Graph, library: FatbinLibrary, machine: Machine, repeats: int, provenance: dict[str, Any]
) -> Profile:
    """Time each kernel of a graph in each of its implementations, as `profile_on`.

    Raises:
        AutotmError: the GPU is refused, or lacks the memory for the largest kernel.
    """
    with open_machines_gpu(machine, library, operand_bytes(graph), 0) as (device, kernels):
        return profile_on(device, kernels, graph, repeats, provenance)
