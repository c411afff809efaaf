"""A program verified and timed on a device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol, TypeVar

from autotm.memory.gpu import Device
from autotm.model.files import BadInputError, hash_of
from autotm.model.machine import Machine
from autotm.model.measurement import Links, Profile, Record, Timeline
from autotm.model.plan import MANAGED_MEMORY, Plan, Program
from autotm.model.step import Graph, Limit, counting
from autotm.runtime.options import RunOptions
from autotm.runtime.record import Measured, build_record
from autotm.runtime.run import check_pedigree
from autotm.runtime.streams.arguments import DeviceArguments, device_bytes
from autotm.runtime.streams.executor import Kernels, kernels_on, prepare_streams
from autotm.runtime.streams.plain import plain_steps
from autotm.runtime.streams.timing import parts_of
from autotm.runtime.timing import time_steps
from autotm.runtime.verify import Reference, digests, verify

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

    The plain step runs on the same device first, with the same implementations of kernels, and needs memory for all
    tensors of the step at once; where that is too much, set `verify_steps` to 0. Nothing is timed beside the program:
    the device gives its memory to one at a time.

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
        AutotmError: the device cannot be had, or its work failed.
        VerificationError: the program computes something else than the plain step.
    """
    counted = counting(graph, plan.counts)
    check_pedigree(counted, program, plan, profile)
    _require_fitting(program)
    placed, chosen = (step.computed_by(program.implementations) for step in (counted, graph))
    expected = _reference(chosen, kernels, machine, options, open_device) if options.verify_steps else None
    size_bytes = device_bytes(chosen, placed, program)
    with ExitStack() as stack:
        if program.optimizer == MANAGED_MEMORY:
            device = stack.enter_context(_managed(program, size_bytes, open_managed))
        else:
            device = stack.enter_context(open_device(size_bytes, program.slow_bytes))
        stack.enter_context(kernels_on(device, machine))
        loaded = kernels(device)
        arguments = DeviceArguments.of(chosen, placed, program, device)
        arguments.fill(options.seed)
        executor = prepare_streams(placed, loaded, program, arguments)
        if expected is None:
            executor.step()
        else:
            verify(chosen, executor, arguments, expected, options.verify_steps, machine.cpus)
        times = time_steps(executor, None, machine.cpus, options)
        parts, timeline = parts_of(executor, options.instrumented_steps)
    measured = Measured(times, parts, options.verify_steps, options.seed)
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
    is_unlimited = Limit.parse(program.limit).is_unlimited
    allowed_bytes = size_bytes if is_unlimited else program.dram_limit_bytes + beside_bytes
    return open_managed(size_bytes, program.slow_bytes, allowed_bytes=allowed_bytes)


def _reference(
    graph: Graph,
    kernels: Callable[[DeviceT], Kernels],
    machine: Machine,
    options: RunOptions,
    open_device: Callable[[int, int], DeviceT],
) -> Reference:
    """Digests of plain steps on the device."""
    steps = plain_steps(graph, kernels, machine, options.seed, options.verify_steps, open_device)
    found = [digests(graph, arguments, machine.cpus) for arguments in steps]
    return Reference(hash_of(graph), "", machine.threads, options.seed, tuple(found))
