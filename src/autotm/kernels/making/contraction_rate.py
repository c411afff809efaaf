"""How fast this process computes: the rate of its best convolutions, against which emulated memory is balanced."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tvm
from tvm import te

from autotm.kernels.library import BoundKernel, KernelLibrary, aligned_empty, check_cores, pinned
from autotm.kernels.making.build import build_library
from autotm.kernels.operators import conv2d
from autotm.kernels.schedules import ScheduledKernel, schedule
from autotm.model.machine import Machine, Watch

_SECONDS_EACH = 0.4
_MIN_RUNS = 5


@dataclass(frozen=True)
class Layer:
    """A 3 x 3 convolution with padding 1 that keeps its image's size."""

    batch: int
    image: int
    channels: int
    features: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of image, weights and result."""
        image = (self.batch, self.image, self.image)
        return (*image, self.channels), (3, 3, self.channels, self.features), (*image, self.features)


LAYERS = (Layer(8, 56, 64, 64), Layer(8, 28, 128, 128), Layer(8, 14, 256, 256), Layer(8, 28, 96, 128))
"""Middle layers of the zoo's networks: large enough to reach the cores' rate, small enough to take a few ms."""


def contraction_flop_per_s(machine: Machine, target: tvm.target.Target, watch: Watch) -> float:
    """Median over `LAYERS` of each layer's best rate, in floating-point operations a second (2 a multiply-add).

    `watch` judges each layer's runs together: those during which others hold the cores are repeated.

    Raises:
        AutotmError: no C compiler, or kernels run on fewer threads than the machine asks for.
    """
    layers = {f"layer_{index}": layer for index, layer in enumerate(LAYERS)}
    kernels = {name: scheduled_layer(layer, target, machine.threads) for name, layer in layers.items()}
    with tempfile.TemporaryDirectory() as folder, pinned(machine):
        path = Path(folder) / "kernels.so"
        build_library({name: kernel.func for name, kernel in kernels.items()}, target, path)
        library = KernelLibrary.load(path)
        calls = {name: bound_to_noise(library, name, layers[name].shapes, kernel) for name, kernel in kernels.items()}
        check_cores(machine, calls["layer_0"])
        best_s = {name: min(watch.rounds(partial(_best_s, call), 1, "convolutions")) for name, call in calls.items()}
        return statistics.median(kernels[name].flops / best_s[name] for name in calls)


def scheduled_layer(layer: Layer, target: tvm.target.Target, threads: int) -> ScheduledKernel:
    """The layer as a kernel that takes image, weights and result."""
    image, weights, _ = layer.shapes
    x, w = te.placeholder(image, "float32", "x"), te.placeholder(weights, "float32", "w")
    y = conv2d(x, w, (1, 1), (1, 1, 1, 1))
    return schedule(te.create_prim_func([x, w, y]), target, threads)


def bound_to_noise(
    library: KernelLibrary, name: str, shapes: Sequence[tuple[int, ...]], kernel: ScheduledKernel
) -> BoundKernel:
    """The kernel on float32 operands of these shapes, filled with normal noise, and its workspaces."""
    views = [aligned_empty(shape, "float32") for shape in shapes]
    views += [aligned_empty(shape, dtype) for shape, dtype in kernel.workspaces]
    generator = np.random.default_rng(0)
    for view in views:
        view[...] = generator.standard_normal(view.shape, dtype=np.float32)
    return library.bind(name, views)


def _best_s(call: BoundKernel) -> float:
    """Least seconds of a call: disturbances only ever make it longer."""
    times: list[float] = []
    deadline = time.perf_counter() + _SECONDS_EACH
    while len(times) < _MIN_RUNS or time.perf_counter() < deadline:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
