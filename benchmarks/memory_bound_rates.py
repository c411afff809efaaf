"""Rates of the memory-bound kernels at Inception-like sizes, each beside the copy bandwidth measured next to it.

Bytes are those a kernel cannot avoid: its inputs read once and its outputs written once. `copy` is the C library's
memmove, on as many threads, of buffers of the same total size, timed in turn with the kernel; rates are those of the
fastest of all turns, in 1e9 bytes a second. More than 100 % is possible: memmove fetches the lines that it writes.

    python benchmarks/memory_bound_rates.py [--threads 2] [--only NAME]
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm import te, tirx, topi

from autotm.kernels import along_axis, normalization, windowed
from autotm.kernels.compiler import build_library
from autotm.kernels.library import KernelLibrary
from autotm.kernels.schedules import channel_sums as bias_kernel
from autotm.kernels.schedules.dispatch import ScheduledKernel, schedule
from autotm.kernels.target import host_target
from machine_rates import Copier

POOL = ((3, 3), (2, 2), (0, 0, 0, 0))
MEAN = ((3, 3), (1, 1), (1, 1, 1, 1))
SIZES = ((16, 35, 35, 384), (16, 17, 17, 1024), (8, 73, 73, 160))
Graph = list[te.Tensor]


def inputs(*shapes: Sequence[int]) -> Graph:
    """Placeholders of these shapes."""
    return [te.placeholder(shape, name=f"x{index}") for index, shape in enumerate(shapes)]


def add(shape: Sequence[int]) -> Graph:
    """Sum of two tensors."""
    a, b = inputs(shape, shape)
    return [a, b, te.compute(shape, lambda *i: a(*i) + b(*i), name="add")]


def bias(shape: Sequence[int]) -> Graph:
    """Bias and ReLU."""
    a, b = inputs(shape, shape[-1:])
    return [a, b, te.compute(shape, lambda *i: te.max(a(*i) + b(i[-1]), tirx.const(0.0)), name="bias")]


def mask(shape: Sequence[int]) -> Graph:
    """Gradient of ReLU from its output."""
    y, dy = inputs(shape, shape)
    zero = tirx.const(0.0, "float32")
    return [y, dy, te.compute(shape, lambda *i: tirx.Select(y(*i) > zero, dy(*i), zero), name="mask")]


def concat(shape: Sequence[int]) -> Graph:
    """Three parts of uneven width."""
    width = shape[-1]
    parts = inputs(*((*shape[:-1], part) for part in (width // 4, width // 4, width // 2)))
    return [*parts, along_axis.concat(parts, 3)]


def part(shape: Sequence[int]) -> Graph:
    """Return the second half of the channels."""
    (x,) = inputs(shape)
    return [x, topi.strided_slice(x, [shape[3] // 2], [shape[3]], [1], [3])]


def max_pool(shape: Sequence[int]) -> Graph:
    """3x3, stride 2."""
    (x,) = inputs(shape)
    return [x, windowed.max_pool2d(x, *POOL)]


def max_pool_gradient(shape: Sequence[int]) -> Graph:
    """Return the gradient of `max_pool`."""
    (x,) = inputs(shape)
    pooled = windowed.max_pool2d(x, *POOL).shape
    y, dy = inputs(pooled, pooled)
    return [x, y, dy, windowed.max_pool2d_gradient(x, y, dy, *POOL)]


def avg_pool(shape: Sequence[int]) -> Graph:
    """3x3, stride 1, padding 1."""
    (x,) = inputs(shape)
    return [x, windowed.avg_pool2d(x, *MEAN)]


def avg_pool_gradient(shape: Sequence[int]) -> Graph:
    """Return the gradient of `avg_pool`."""
    (dy,) = inputs(shape)
    return [dy, windowed.avg_pool2d_gradient(dy, shape, *MEAN)]


def bias_gradient(shape: Sequence[int]) -> Graph:
    """Sum over all but the channels."""
    (x,) = inputs(shape)
    return [x, bias_kernel.bias_gradient(x)]


def norm_statistics(shape: Sequence[int]) -> Graph:
    """Mean and inverse deviation of each channel."""
    (x,) = inputs(shape)
    return [x, *normalization.statistics(x, 1e-5)]


def norm(shape: Sequence[int]) -> Graph:
    """Batch norm with known statistics, and ReLU."""
    arguments = inputs(shape, *[shape[3:]] * 4)
    y = normalization.normalise(*arguments)
    return [*arguments, te.compute(shape, lambda *i: te.max(y(*i), tirx.const(0.0)), name="relu")]


def norm_gradient_sums(shape: Sequence[int]) -> Graph:
    """Gradients of batch norm's scale and shift."""
    arguments = inputs(shape, shape, *[shape[3:]] * 2)
    return [*arguments, *normalization.gradient_sums(*arguments)]


def norm_gradient(shape: Sequence[int]) -> Graph:
    """Gradient of batch norm's input."""
    arguments = inputs(shape, shape, *[shape[3:]] * 5)
    return [*arguments, normalization.data_gradient(*arguments)]


OPERATORS: tuple[Callable[[Sequence[int]], Graph], ...] = (
    add, bias, mask, concat, part, max_pool, max_pool_gradient, avg_pool, avg_pool_gradient, bias_gradient,
    norm_statistics, norm, norm_gradient_sums, norm_gradient,
)  # fmt: skip


def aligned(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return an array at a page's start, touched, with random values of both signs."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 4096, np.uint8)
    start = -memory.ctypes.data % 4096
    array = memory[start : start + size].view(dtype).reshape(shape)
    if dtype == "float32":
        array[...] = np.random.default_rng(0).random(tuple(shape), "float32") - np.float32(0.5)
    return array


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Wall time of one call when `repeats` follow each other."""
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def compulsory_bytes(kernel: ScheduledKernel) -> int:
    """Bytes of inputs and outputs."""
    operands = kernel.func.params[: len(kernel.func.params) - len(kernel.workspaces)]
    return sum(math.prod(int(e) for e in operand.shape) * operand.dtype.itemsize for operand in operands)


def main() -> None:
    """Print one line for each operator and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="operators whose names start with this")
    parser.add_argument("--turns", type=int, default=40)
    arguments = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(arguments.threads)
    tvm.get_global_func("runtime.config_threadpool")(-2, arguments.threads, [str(c) for c in range(arguments.threads)])
    target = host_target(arguments.threads)
    wanted = [op for op in OPERATORS if op.__name__.startswith(arguments.only)]
    functions = {f"{op.__name__}_{'x'.join(map(str, shape))}": op(shape) for op in wanted for shape in SIZES}
    kernels = {
        name: schedule(te.create_prim_func(graph), target, arguments.threads) for name, graph in functions.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.so"
        build_library({name: kernel.func for name, kernel in kernels.items()}, target, path)
        library = KernelLibrary.load(path)
    copy = Copier(arguments.threads)
    print(f"{'operator':36} {'MB':>8} {'us':>9} {'GB/s':>7} {'copy':>7} {'share':>6}")
    for name, kernel in kernels.items():
        operands = [aligned([int(e) for e in operand.shape], str(operand.dtype)) for operand in kernel.func.params]
        call = library.bind(name, operands)
        moved = 2 * operands[1].nbytes if name.startswith("part") else compulsory_bytes(kernel)
        source, destination = aligned([moved // 2], "uint8"), aligned([moved // 2], "uint8")
        call()
        copy(source, destination)
        move = functools.partial(copy, source, destination)
        pairs = [(seconds(call, 2), seconds(move, 2)) for _ in range(arguments.turns)]
        took, copied = (min(column) for column in zip(*pairs, strict=True))
        rate, reference = moved / took / 1e9, moved / copied / 1e9
        print(f"{name:36} {moved / 1e6:8.1f} {took * 1e6:9.0f} {rate:7.1f} {reference:7.1f} {rate / reference:6.0%}")


if __name__ == "__main__":
    main()
