"""Times of copies between a machine's memories, alone and during kernels, and how fast the machine computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autotm.kernels.compute_rates import CalibrationKernels, co_runners, contraction_flop_per_s, multiply_add_flop_per_s
from autotm.kernels.library import FatbinLibrary, KernelLibrary
from autotm.memory.calibration import calibrate_links, copy_bytes_per_s
from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.memory.gpu.links import DEVICE_LINK_BYTES, REPEATS, StreamTimer, links_of
from autotm.memory.gpu.opening import open_device
from autotm.model.cores import Watch
from autotm.model.graph import ALIGNMENT_BYTES, OpClass
from autotm.model.links import Links, MachineRates
from autotm.model.machine import Machine
from autotm.runtime.executor import Call
from autotm.runtime.streams.executor import LaunchedKernels
from autotm.runtime.streams.run import call_ns

if TYPE_CHECKING:
    from autotm.kernels.cuda.source import CudaKernel


# The rates of a machine: copies between its memories, its cores at best, and how copies and kernels slow each other.


def measure_links(
    machine: Machine,
    devices_dir: Path,
    library: KernelLibrary,
    known: CalibrationKernels,
    load_co_runners: Callable[[float], tuple[KernelLibrary, CalibrationKernels]],
    patience_s: float,
) -> Links:
    """Measure copies between the tiers, the convolutions that balance emulated memory, and the cores' highest rates.

    Measurements that other processes disturb are repeated, for `patience_s` or three times the undisturbed time.

    Args:
        machine: the machine this process runs on.
        devices_dir: folder of the device files.
        library: holds the kernels of `known`.
        known: kernels of known work, compiled for the machine's threads.
        load_co_runners: gives a kernel of each op class, to run during copies, for cores whose convolutions reach a
            rate, in floating-point operations a second.
        patience_s: as above.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
    """
    watch = Watch(machine.cpus, patience_s)
    rate = contraction_flop_per_s(library, known, machine, watch)
    best = MachineRates(multiply_add_flop_per_s(library, known, machine, watch), copy_bytes_per_s(machine, watch))
    with co_runners(*load_co_runners(rate), machine) as kernels:
        measured = calibrate_links(machine, devices_dir, rate, kernels, watch)
    return replace(measured, rates=best)


# Times of copies on a GPU, alone and during a kernel of each op class, and the rate of its convolutions.

_TIMED = 15  # calls whose median gives the rate


def measure_gpu_links(
    machine: Machine,
    library: FatbinLibrary,
    overlap: Mapping[OpClass, CudaKernel],
    sizes_bytes: Sequence[int] = DEVICE_LINK_BYTES,
) -> Links:
    """Measure copies between the memories of the GPU that a machine file names and of its host.

    Args:
        machine: of kind cuda.
        library: holds the kernels of `overlap`.
        overlap: a kernel of each op class, to run during copies; the rate is that of the forward convolution.
        sizes_bytes: of the copies, ascending, two at least.

    Raises:
        AutotmError: the GPU is refused, or lacks the memory.
    """
    most = sizes_bytes[-1]
    places = {op_class: _places(kernel, most) for op_class, kernel in overlap.items()}
    needed = max(ends[-1] for ends in places.values())
    with open_device(machine, needed, most, built_for=library.architectures) as device:
        kernels = LaunchedKernels(device, library.image, library.launches)
        calls = {op_class: _bound(device, kernels, kernel, places[op_class]) for op_class, kernel in overlap.items()}
        convolution = calls[OpClass.CONV_FORWARD]
        taken_s = float(np.median([call_ns(device, convolution) for _ in range(_TIMED)])) / 1e9
        timer, rate = StreamTimer(device), overlap[OpClass.CONV_FORWARD].flops / taken_s
        return links_of(timer, rate, calls, sizes_bytes, REPEATS, timer.call_us())


def _places(kernel: CudaKernel, start: int) -> list[int]:
    """Return the offsets of operands, behind the bytes that copies write, and the end of the last."""
    sizes = (-(-np.dtype(dtype).itemsize * int(np.prod(shape)) // ALIGNMENT_BYTES) for dtype, shape in kernel.operands)
    return list(
        accumulate((size * ALIGNMENT_BYTES for size in sizes), initial=-(-start // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
    )


def _bound(device: CudaDevice, kernels: LaunchedKernels, kernel: CudaKernel, places: Sequence[int]) -> Call:
    """Bind the kernel to operands that are zero; its time does not depend on their values."""
    views = [
        device.device_pool.view(place, shape, dtype)
        for place, (dtype, shape) in zip(places, kernel.operands, strict=False)
    ]
    return kernels.bind(kernel.symbol, views)
