"""A step of PyTorch under `save_on_cpu` held to a limit of device memory, compared with ours, and timed."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from autotm.memory.torch_device import Device, device_of
from autotm.model.errors import AutotmError
from autotm.model.limit import Counts
from autotm.model.machine import CudaTier, Machine
from autotm.model.record import FrameworkRecord
from autotm.runtime.step_times import RunOptions, time_steps
from autotm.runtime.verify import VerificationError
from autotm.zoo import Network
from autotm.zoo.torch_reference import TorchNetwork, has_sparse_gradients, optimizer_of

log = logging.getLogger(__name__)


class NoFrameworkError(AutotmError):
    """PyTorch cannot run on the machine's GPU."""


def framework_device(machine: Machine) -> Device:
    """Return the GPU that the machine file names.

    Raises:
        NoFrameworkError: PyTorch has no CUDA here, or does not see that GPU.
    """
    assert isinstance(machine.slow_tier, CudaTier)
    index = machine.slow_tier.device_index
    if not torch.cuda.is_available():
        raise NoFrameworkError("PyTorch has no CUDA here")
    if index >= torch.cuda.device_count():
        raise NoFrameworkError(f"PyTorch does not see GPU {index}")
    return device_of(torch.device("cuda", index))


@contextmanager
def products_of(machine: Machine) -> Iterator[None]:
    """Compute convolutions and products of matrices, inside the `with` block, as exact as the machine file has ours.

    PyTorch lets cuDNN round factors to tf32 unless told otherwise. It has no products of float32 that round to bf16:
    where the file says so, tf32 is the nearest.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = machine.products != "float32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


# A training step of PyTorch whose saved tensors wait for the backward pass in pinned host memory.

Arrays = Mapping[str, npt.NDArray[Any]]


class SavedStep:
    """One network's step under `torch.autograd.graph.save_on_cpu`, with the batch, loss and update rules of ours.

    Attributes:
        device_s: of each step that `step` ran, from an event before to one after.
    """

    def __init__(self, network: Network, arrays: Arrays, device: Device) -> None:
        """Put parameters and inputs on the device, in float32.

        Raises:
            BadInputError: the network has no counterpart in PyTorch.
        """
        sparse = has_sparse_gradients(network)
        self._module = TorchNetwork(network, arrays, torch.float32, sparse=sparse, device=device.torch)
        self._optimizer = optimizer_of(network, self._module)
        self._clip_norm = network.training.clip_norm if network.training else None
        self._device = device
        self._loss = torch.zeros(())
        self.device_s: list[float] = []

    def step(self) -> None:
        """Run one training step to its end; gradients do not outlive it."""
        self.device_s.append(self._device.seconds(self.train, 1))

    def train(self) -> None:
        """Queue one training step on the device."""
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = self._module()
        loss.backward()
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._module.parameters(), self._clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._loss = loss.detach()

    @property
    def loss(self) -> float:
        """Of the last step."""
        return float(self._loss)


# By how much losses of one network may differ that different programs compute in float32.

_DRAWS = 4  # of roundings, whose worst error counts
_ALLOWED = 3.0  # times that error
_FLOOR = 1e-4  # relative error that is allowed in any case
_ROUNDING = 2.0**-24  # half a unit in the last place of float32


def expected_loss(network: Network, arrays: Arrays, device: Device, seed: int) -> tuple[float, float]:
    """Return the first step's loss in float64, and the most by which two losses in float32 may differ.

    PyTorch makes forward passes in float64, and, several times, in float32. Bits depend on the order of sums, and on a
    convolution's algorithm. What roundings make of a loss depends on the network: batch norm over few values, or the
    logarithm of a score near zero, amplify them a millionfold. So the scale is the largest error of PyTorch's own
    float32 in a few passes whose inputs are off by a rounding (2^-24, drawn); two programs may be three of it apart,
    and 1e-4 of the loss in any case, since algorithms that ours and cuDNN choose may lose digits of float32 (Winograd's
    do) that PyTorch's own passes all have.
    """

    def loss(values: Arrays, dtype: torch.dtype) -> float:
        with torch.no_grad():
            return float(TorchNetwork(network, values, dtype, device=device.torch)())

    exact = loss(arrays, torch.float64)
    draw = np.random.default_rng(seed)
    errors = []
    for _ in range(_DRAWS):
        rounded = {
            name: (values * (1 + _ROUNDING * draw.uniform(-2, 2, values.shape))).astype(values.dtype)
            for name, values in arrays.items()
            if name in network.inputs and values.dtype.kind == "f"
        }
        errors.append(abs(loss({**arrays, **rounded}, torch.float32) - exact))
    return exact, _ALLOWED * max(errors) + _FLOOR * abs(exact)


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
    known = replace(
        record,
        framework=f"PyTorch {torch.__version__}",
        device=device.name,
        tier_reality=record.tier_reality if device.torch.type == "cuda" else "stand-in",
    )
    with products_of(machine):
        try:
            step = SavedStep(network, arrays, device)
            held = _held_to_limit(step, device, plain_losses, known)
        except torch.OutOfMemoryError:
            log.info("%s at %s does not fit: PyTorch ran out of device memory", record.optimizer, record.limit)
            return replace(known, fits=False, most_bytes=None)
        except RuntimeError as error:  # of CUDA, such as host memory that cannot be pinned
            raise AutotmError(
                f"{record.optimizer} of {record.network}: PyTorch failed: {error}; give it more host memory "
                "(`ulimit -l unlimited`), or leave save-on-cpu out of figures: fig12: rivals"
            ) from error
        if plain_losses:
            held = _compared(held, network, arrays, device, options.seed)
        return _timed(step, machine, options, held) if held.fits else held


def _held_to_limit(
    step: SavedStep, device: Device, plain_losses: Sequence[float], record: FrameworkRecord
) -> FrameworkRecord:
    """Return the first losses, and what a warm step takes of device memory."""
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
    times = time_steps(step.step, None, machine.cpus, options)
    timed = replace(
        record,
        samples_s=times.samples_s,
        between_events_s=statistics.median(step.device_s),
        disturbed_steps=times.disturbed,
        disturbed_steps_count=times.disturbed_count,
        waited_s=times.waited_s,
    )
    log.info("%s at %s on %s: %.4f s measured", timed.optimizer, timed.limit, timed.device, timed.step_s)
    return timed


def _compared(held: FrameworkRecord, network: Network, arrays: Arrays, device: Device, seed: int) -> FrameworkRecord:
    """Add what shows that PyTorch computes the plain step's network: the first loss, which no update has changed."""
    try:
        exact, tolerance = expected_loss(network, arrays, device, seed)
    except torch.OutOfMemoryError as error:
        raise AutotmError(
            f"network {network.name}: its forward pass in float64, which losses are compared by, does not fit the "
            "device; set run: verify_steps: 0 to compare nothing"
        ) from error
    theirs, ours = held.losses[0], held.plain_losses[0]
    if not abs(theirs - ours) <= tolerance:
        raise VerificationError(
            f"{held.optimizer} of {held.network}: PyTorch's first loss is {theirs:.9g}, the plain step's {ours:.9g} "
            f"(in float64 {exact:.9g}); roundings explain {tolerance:.3g}: they are not one network. "
            "Leave save-on-cpu out of figures: fig12: rivals, and report the network"
        )
    return replace(held, exact_loss=exact, loss_margin=tolerance)
