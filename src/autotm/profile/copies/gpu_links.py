"""What copies take on a GPU, alone and beside a kernel of each op class, and the rate of its convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from autotm.kernels.library import FatbinLibrary
from autotm.memory.gpu import DEVICE_LINK_BYTES, Device, device_links, open_device
from autotm.model.machine import Machine
from autotm.model.measurement import Links
from autotm.model.step import ALIGNMENT_BYTES, OpClass
from autotm.runtime.streams import Call, LaunchedKernels, call_ns

if TYPE_CHECKING:
    from autotm.kernels.cuda import CudaKernel

_TIMED = 15


def measure_gpu_links(
    machine: Machine,
    library: FatbinLibrary,
    beside: Mapping[OpClass, CudaKernel],
    sizes_bytes: Sequence[int] = DEVICE_LINK_BYTES,
) -> Links:
    """Copies between the memories of the GPU that a machine file names and of its host.

    Args:
        machine: of kind cuda.
        library: holds the kernels of `beside`.
        beside: a kernel of each op class, to run beside copies; the rate is that of the forward convolution.
        sizes_bytes: of the copies, ascending, two at least.

    Raises:
        AutotmError: the GPU is refused, or lacks the memory.
    """
    most = sizes_bytes[-1]
    places = {op_class: _places(kernel, most) for op_class, kernel in beside.items()}
    needed = max(ends[-1] for ends in places.values())
    with open_device(machine, needed, most, built_for=library.architectures) as device:
        kernels = LaunchedKernels.on(device, library)
        calls = {op_class: _bound(device, kernels, kernel, places[op_class]) for op_class, kernel in beside.items()}
        convolution = calls[OpClass.CONV_FORWARD]
        taken_s = float(np.median([call_ns(device, convolution) for _ in range(_TIMED)])) / 1e9
        return device_links(device, beside[OpClass.CONV_FORWARD].flops / taken_s, calls, sizes_bytes)


def _places(kernel: CudaKernel, start: int) -> list[int]:
    """Where operands begin behind what copies write, and where the last ends."""
    sizes = (-(-np.dtype(dtype).itemsize * int(np.prod(shape)) // ALIGNMENT_BYTES) for dtype, shape in kernel.operands)
    return list(
        accumulate((size * ALIGNMENT_BYTES for size in sizes), initial=-(-start // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
    )


def _bound(device: Device, kernels: LaunchedKernels, kernel: CudaKernel, places: Sequence[int]) -> Call:
    """The kernel on operands that are zero; how long it takes does not depend on them."""
    views = [
        device.device_pool.view(place, shape, dtype)
        for place, (dtype, shape) in zip(places, kernel.operands, strict=False)
    ]
    return kernels.bind(kernel.symbol, views)
