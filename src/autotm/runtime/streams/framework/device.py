"""The GPU of a machine file as PyTorch has it, and how exact its products are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from autotm.memory.torch import Device, device_of
from autotm.model.files import AutotmError
from autotm.model.machine import CudaTier, Machine


class NoFrameworkError(AutotmError):
    """PyTorch cannot run on the machine's GPU."""


def framework_device(machine: Machine) -> Device:
    """The GPU that the machine file names.

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
    """Convolutions and products of matrices as exact as the machine file has ours.

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
