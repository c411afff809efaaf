"""Programs and kernels on a device or on the machine's GPU: verified, and timed from event to event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median, quantiles
from typing import Any, Protocol, TypeVar

from autotm.kernels.library import FatbinLibrary
from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.memory.gpu.interface import Device
from autotm.memory.gpu.opening import open_device, open_managed
from autotm.model.errors import BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Kernel, all_fast
from autotm.model.limit import counting
from autotm.model.links import Links
from autotm.model.machine import Machine
from autotm.model.plan import MANAGED_MEMORY, Plan
from autotm.model.profile import Profile, Timing, TimingKey
from autotm.model.program import Program
from autotm.model.record import Record
from autotm.model.timeline import Lane, Timeline
from autotm.runtime.record import Measured, build_record
from autotm.runtime.run import check_pedigree
from autotm.runtime.step_times import RunOptions, StepParts, time_steps
from autotm.runtime.streams.executor import Call, Kernels, LaunchedKernels, StreamExecutor, prepare_streams
from autotm.runtime.streams.plain import device_reference, plain_steps
from autotm.runtime.streams.schedule import DeviceArguments, device_bytes
from autotm.runtime.verify import verify

# Times of kernels and steps on a device, from event to event.

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


# A program verified and timed on a device.

log = logging.getLogger(__name__)

DeviceT = TypeVar("DeviceT", bound=Device)
OpenedT_co = TypeVar("OpenedT_co", bound=Device, covariant=True)


class OpenManaged(Protocol[OpenedT_co]):
    """Opens a device whose first pool its driver manages."""

    def __call__(self, pool_bytes: int, host_bytes: int, *, allowed_bytes: int) -> OpenedT_co:
        """The device; of the managed pool `allowed_bytes` are in device memory at a time."""


def run_on_device(
    graph: Graph,
    kernels: Callable[[DeviceT], Kernels],
    program: Program,
    plan: Plan,
    machine: Machine,
    links: Links,
    profile: Profile,
    options: RunOptions,
    open_device: Callable[[int, int], DeviceT],
    open_managed: OpenManaged[DeviceT] | None = None,
) -> tuple[Record, Timeline]:
    """Verify and time `program`; the timeline is of a step with the median time.

    The plain step runs on the same device first, with the same implementations of kernels: with all its tensors in
    device memory, or, where that is too little, kernel by kernel; the record says which. Nothing is timed beside the
    program: the device gives its memory to one at a time.

    A program of managed memory has a pool that is larger than its limit, and device memory of the limit's size beside
    the arguments.

    Args:
        graph: as lowered, with all implementations.
        kernels: those of the graph on a device that was opened.
        program: to be run.
        plan: that it was compiled from.
        machine: that has the device.
        links: measured on it.
        profile: of its kernels.
        options: how it is verified and timed; `side_by_side` and `poison` do not count.
        open_device: opens it with a device pool and a host pool of so many bytes.
        open_managed: opens it for managed memory; None where it has none.

    Raises:
        BadInputError: program, plan, profile and graph do not belong together, the library lacks a kernel, a kernel has
            an operand in slow memory, the program exceeds its limit, or the device has no managed memory.
        AutotmError: the device cannot be had, its work failed, or it has too little memory for one kernel alone.
        VerificationError: the program computes something else than the plain step.
    """
    counted = counting(graph, plan.counts)
    check_pedigree(counted, program, plan, profile)
    _require_fitting(program)
    placed, chosen = program.step_of(counted), graph.computed_by(program.implementations)
    expected, steps = None, options.verify_steps
    if steps:
        expected = device_reference(chosen, kernels, machine, options.seed, steps, open_device)
    size_bytes = device_bytes(chosen, placed, program)
    with ExitStack() as stack:
        if program.optimizer == MANAGED_MEMORY:
            device = stack.enter_context(_managed(program, size_bytes, open_managed))
        else:
            device = stack.enter_context(open_device(size_bytes, program.slow_bytes))
        loaded = kernels(device)
        arguments = DeviceArguments.of(chosen, placed, program, device)
        arguments.fill(options.seed)
        executor = prepare_streams(placed, loaded, program, arguments)
        if expected is None:
            executor.step()
        else:
            verify(chosen, executor, arguments, expected.reference, steps, machine.cpus)
        times = time_steps(executor, None, machine.cpus, options)
        parts, timeline = parts_of(executor, options.instrumented_steps)
    measured = Measured(times, parts, steps, options.seed, expected.how if expected else "")
    record = build_record(counted, program, plan, machine, links, profile, measured)
    log.info(
        "%s at %s on %s: %.4f s predicted, %.4f s measured",
        record.optimizer, record.limit, timeline.device, record.predicted_runtime_s, record.actual_runtime_median_s,
    )  # fmt: skip
    return record, timeline


def _require_fitting(program: Program) -> None:
    if not program.fits:
        raise BadInputError(
            f"program of {program.optimizer}: it takes {program.fast_bytes} bytes of device memory, its limit is "
            f"{program.dram_limit_bytes}: give a larger limit"
        )


def _managed(program: Program, size_bytes: int, open_managed: OpenManaged[DeviceT] | None) -> DeviceT:
    if open_managed is None:
        raise BadInputError(
            f"program of {program.optimizer}: this device has no managed memory; take another optimizer"
        )
    beside_bytes = size_bytes - program.fast_bytes
    is_unlimited = program.limit.is_unlimited
    allowed_bytes = size_bytes if is_unlimited else program.dram_limit_bytes + beside_bytes
    return open_managed(size_bytes, program.slow_bytes, allowed_bytes=allowed_bytes)


# Programs and kernels on the GPU that a machine file names.


def run_on_gpu(
    graph: Graph,
    library: FatbinLibrary,
    program: Program,
    plan: Plan,
    machine: Machine,
    links: Links,
    profile: Profile,
    options: RunOptions,
) -> tuple[Record, Timeline]:
    """Verify and time a program, as `run_on_device`; managed memory is what the GPU's driver manages.

    Raises:
        as `run_on_device`; AutotmError, where the GPU is refused.
    """
    opened, managed = (partial(way, machine, built_for=library.architectures) for way in (open_device, open_managed))

    def launched(device: CudaDevice) -> LaunchedKernels:
        loaded = LaunchedKernels.on(device, library)
        device.keep_allowance()  # Not before: the kernels take device memory, too.
        return loaded

    return run_on_device(graph, launched, program, plan, machine, links, profile, options, opened, managed)


def plain_losses_on_gpu(graph: Graph, library: FatbinLibrary, machine: Machine, options: RunOptions) -> list[float]:
    """The losses of as many plain steps as are to be verified, with default implementations.

    Raises:
        as `plain_steps`; AutotmError, where the GPU is refused.
    """
    opened = partial(open_device, machine, built_for=library.architectures)
    launched = partial(LaunchedKernels.on, library=library)
    _, steps = plain_steps(graph, launched, options.seed, options.verify_steps, opened)
    return [float(values.value("loss")) for values in steps]


def profile_on_gpu(
    graph: Graph, library: FatbinLibrary, machine: Machine, repeats: int, provenance: dict[str, Any]
) -> Profile:
    """Time each kernel of a graph in each of its implementations, as `profile_on`.

    Raises:
        AutotmError: the GPU is refused, or lacks the memory for the largest kernel.
    """
    with open_device(machine, operand_bytes(graph), 0, built_for=library.architectures) as device:
        return profile_on(device, LaunchedKernels.on(device, library), graph, repeats, provenance)
