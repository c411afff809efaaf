"""A step of PyTorch under `save_on_cpu` held to a limit of device memory, compared with ours, and timed."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch

from autotm.memory.torch import Device
from autotm.model.files import AutotmError
from autotm.model.machine import Machine
from autotm.model.measurement import FrameworkRecord
from autotm.model.step import Counts
from autotm.runtime.options import RunOptions
from autotm.runtime.streams.framework.device import products_of
from autotm.runtime.streams.framework.loss import ExpectedLoss, expected_loss
from autotm.runtime.streams.framework.step import Arrays, SavedStep
from autotm.runtime.timing import time_steps
from autotm.runtime.verify import VerificationError
from autotm.zoo import Network

log = logging.getLogger(__name__)


def run_save_on_cpu(
    network: Network,
    arrays: Arrays,
    machine: Machine,
    options: RunOptions,
    device: Device,
    plain_losses: Sequence[float],
    record: FrameworkRecord,
) -> FrameworkRecord:
    """Run, compare and time the step.

    Its memory is what PyTorch's allocator gave at most during a warm step, beyond what was there before it: parameters,
    inputs, and what the update rule keeps; with `counts: all` these count too. A step that takes more than the limit is
    not timed.

    Args:
        network: to be trained.
        arrays: its parameters and inputs before the first step, by name.
        machine: whose `products` count, and whose cores are watched for others.
        options: how long it is timed, and how many steps are compared; `side_by_side` and `poison` do not count.
        device: that runs it.
        plain_losses: of our plain steps; empty to compare nothing.
        record: what is known before.

    Returns:
        The record, with what was measured.

    Raises:
        BadInputError: the network has no counterpart in PyTorch.
        VerificationError: the first loss is another one than the plain step's.
        AutotmError: PyTorch failed, or has no room to compare.
    """
    torch.set_num_threads(machine.threads)
    is_gpu = device.torch.type == "cuda"
    named = replace(
        record,
        framework=f"PyTorch {torch.__version__}",
        device=device.name,
        tier_reality=record.tier_reality if is_gpu else "stand-in",
    )
    with products_of(machine):
        try:
            step = SavedStep(network, arrays, device)
            found = _held_to_limit(step, device, plain_losses, named)
        except torch.OutOfMemoryError:
            log.info("%s at %s does not fit: PyTorch ran out of device memory", record.optimizer, record.limit)
            return replace(named, fits=False, most_bytes=None)
        except RuntimeError as error:  # of CUDA, such as host memory that cannot be pinned
            raise AutotmError(
                f"{record.optimizer} of {record.network}: PyTorch failed: {error}; give it more host memory "
                "(`ulimit -l unlimited`), or leave save-on-cpu out of figures: fig12: rivals"
            ) from error
        if plain_losses:
            found = _compared(found, _expected(network, arrays, device, options))
        return _timed(step, machine, options, found) if found.fits else found


def _expected(network: Network, arrays: Arrays, device: Device, options: RunOptions) -> ExpectedLoss:
    try:
        return expected_loss(network, arrays, device, options.seed)
    except torch.OutOfMemoryError as error:
        raise AutotmError(
            f"network {network.name}: its forward pass in float64, which losses are compared by, does not fit the "
            "device; set run: verify_steps: 0 to compare nothing"
        ) from error


def _held_to_limit(
    step: SavedStep, device: Device, plain_losses: Sequence[float], record: FrameworkRecord
) -> FrameworkRecord:
    """The first losses, and what a warm step takes of device memory."""
    losses = []
    for _ in range(max(1, len(plain_losses))):
        step.step()
        losses.append(step.loss)
    _, beyond_bytes = device.peak(step.train)
    most_bytes = beyond_bytes + (record.io_size if record.counts == Counts.ALL else 0)
    fits = most_bytes <= record.dram_limit_bytes
    if not fits:
        log.info(
            "%s at %s does not fit: it takes %d bytes of device memory, %d are allowed; it is not timed",
            *(record.optimizer, record.limit, most_bytes, record.dram_limit_bytes),
        )
    return replace(record, losses=tuple(losses), plain_losses=tuple(plain_losses), fits=fits, most_bytes=most_bytes)


def _timed(step: SavedStep, machine: Machine, options: RunOptions, record: FrameworkRecord) -> FrameworkRecord:
    step.device_s.clear()
    times = time_steps(step, None, machine.cpus, options)
    found = replace(
        record,
        samples_s=times.samples_s,
        between_events_s=statistics.median(step.device_s),
        disturbed_steps=times.disturbed,
        disturbed_steps_count=times.disturbed_count,
        waited_s=times.waited_s,
    )
    log.info("%s at %s on %s: %.4f s measured", found.optimizer, found.limit, found.device, found.step_s)
    return found


def _compared(found: FrameworkRecord, expected: ExpectedLoss) -> FrameworkRecord:
    """With what shows that PyTorch computes the plain step's network: the first loss, which no update has changed."""
    theirs, ours = found.losses[0], found.plain_losses[0]
    if not abs(theirs - ours) <= expected.tolerance:
        raise VerificationError(
            f"{found.optimizer} of {found.network}: PyTorch's first loss is {theirs:.9g}, the plain step's {ours:.9g} "
            f"(in float64 {expected.exact:.9g}); roundings explain {expected.tolerance:.3g}: they are not one network. "
            "Leave save-on-cpu out of figures: fig12: rivals, and report the network"
        )
    return replace(found, exact_loss=expected.exact, loss_margin=expected.tolerance)
