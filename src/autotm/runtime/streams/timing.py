"""Times of kernels and steps on a device, from event to event."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

from autotm.memory.gpu import Device
from autotm.model.files import hash_of
from autotm.model.measurement import Lane, Profile, Timeline, Timing, TimingKey
from autotm.model.step import Graph, Kernel, all_fast
from autotm.runtime.streams.executor import Call, Kernels, StreamExecutor
from autotm.runtime.timing import StepParts

_LEAST_NS = 20_000
"""Events resolve half a microsecond: a kernel is launched as often as lasts so long, and its time is the mean."""


def operand_bytes(graph: Graph) -> int:
    """Device memory that timing the kernels of a graph takes, all implementations: the largest operands of one."""
    return max(_offsets(way)[-1] for kernel in graph.kernels for way in ways(kernel))


def profile_on(device: Device, kernels: Kernels, graph: Graph, repeats: int, provenance: dict[str, object]) -> Profile:
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
        for way in ways(kernel):
            key = way.identity, way.implementation, all_fast(way)
            if key not in timings:
                timings[key] = _timing(_times_ns(device, _bound(device, kernels, way), repeats))
    return Profile(hash_of(graph), timings, provenance)


def ways(kernel: Kernel) -> list[Kernel]:
    """The kernel in each of its implementations."""
    return [kernel.computed_by(name) for name in kernel.implementations]


def parts_of(executor: StreamExecutor, steps: int) -> tuple[StepParts, Timeline]:
    """What steps spend where, the median of `steps` timelines; and the timeline of the step with the median time.

    What the compute stream spends on nothing is in `stall_us`: waits for copies, and the time between kernels.
    """
    timelines = sorted((executor.timeline() for _ in range(steps)), key=lambda timeline: timeline.step_ns)
    typical = timelines[len(timelines) // 2]
    kernels_us = {
        same[0].name: median(one.end_ns - one.start_ns for one in same) / 1e3
        for same in zip(*(timeline.of(Lane.COMPUTE) for timeline in timelines), strict=True)
    }
    moves_us = median(_blocking_ns(executor, timeline) for timeline in timelines) / 1e3
    stalled_ns = typical.step_ns - typical.busy_ns(Lane.COMPUTE)
    return StepParts(kernels_us, max(0.0, stalled_ns / 1e3 - moves_us), moves_us), typical


def _blocking_ns(executor: StreamExecutor, timeline: Timeline) -> int:
    worked = (one for one in executor.order.operations if one.reads or one.writes)
    pairs = zip(worked, timeline.operations, strict=True)
    return sum(timed.end_ns - timed.start_ns for operation, timed in pairs if operation.is_blocking)


def _offsets(kernel: Kernel) -> list[int]:
    """Where each operand begins if they lie one behind the other, and where the last ends."""
    places = [0]
    for operand in kernel.operands:
        places.append(places[-1] + -(-max(operand.size_bytes, 1) // 64) * 64)
    return places


def _bound(device: Device, kernels: Kernels, kernel: Kernel) -> Call:
    places = zip(kernel.operands, _offsets(kernel), strict=False)
    return kernels.bind(
        kernel.function, [device.device_pool.view(place, operand.shape, operand.dtype) for operand, place in places]
    )


def call_ns(device: Device, call: Call) -> float:
    """What a kernel takes, launched as often as events need to tell; its streams stand still."""
    return _times_ns(device, call, 1)[0]


def _times_ns(device: Device, call: Call, repeats: int) -> list[float]:
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
