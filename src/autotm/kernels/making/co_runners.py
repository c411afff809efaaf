"""Kernels to run beside something whose cost to them is in question: one that computes, one that streams memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm
from tvm import te

from autotm.kernels.library import BoundKernel, KernelLibrary, pinned
from autotm.kernels.making.build import build_library
from autotm.kernels.making.contraction_rate import LAYERS, bound_to_noise, scheduled_layer
from autotm.kernels.schedules import ScheduledKernel, schedule
from autotm.model.machine import Machine

_STREAMED = (8, 56, 56, 256)
"""25 MB an operand: far beyond the near caches, a few milliseconds a call."""


@contextmanager
def co_runners(machine: Machine, target: tvm.target.Target) -> Iterator[tuple[BoundKernel, BoundKernel]]:
    """A convolution and the sum of two arrays, on the machine's threads and cores, to be called inside."""
    layer = LAYERS[0]
    kernels = {
        "convolution": (scheduled_layer(layer, target, machine.threads), layer.shapes),
        "sum": (_sum(target, machine.threads), (_STREAMED,) * 3),
    }
    with tempfile.TemporaryDirectory() as folder, pinned(machine):
        path = Path(folder) / "kernels.so"
        build_library({name: kernel.func for name, (kernel, _) in kernels.items()}, target, path)
        library = KernelLibrary.load(path)
        convolution, total = (
            bound_to_noise(library, name, shapes, kernel) for name, (kernel, shapes) in kernels.items()
        )
        yield convolution, total


def _sum(target: tvm.target.Target, threads: int) -> ScheduledKernel:
    one, other = (te.placeholder(_STREAMED, "float32", name) for name in ("one", "other"))
    total = te.compute(_STREAMED, lambda *index: one(*index) + other(*index), name="total")
    return schedule(te.create_prim_func([one, other, total]), target, threads)
