"""Kernels that differ in numbers only run the same machine code, and compute what they compute alone."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from compiled_kernels import TARGET, compiled, kernel_of
from guarded_memory import GuardedMemory
from tvm import te

from autotm.kernels import normalization
from autotm.kernels.along_axis import concat
from autotm.kernels.passes import machine_code
from autotm.kernels.share import SHARED


def normalised(width):
    x, *others = te.placeholder((2, 8, 8, width)), *(te.placeholder((width,)) for _ in range(4))
    return [x, *others, normalization.normalise(x, *others)]


def statistics(width):
    x = te.placeholder((2, 12, 12, width))
    return [x, *normalization.statistics(x, 1e-5)]


def joined(width):
    parts = [te.placeholder((2, 8, 8, size)) for size in (width, 32)]
    return [*parts, concat(parts, 3)]


def cut(width):
    x = te.placeholder((2, 8, 8, width))
    return [x, te.compute((2, 8, 8, 256), lambda n, h, w, c: x[n, h, w, c + width - 256])]


FAMILIES = [normalised, statistics, joined, cut]
WIDTHS = (320, 448, 576)


def run(function, kernel, seed):
    """The outputs of a kernel on guarded memory."""
    random = np.random.default_rng(seed)
    operands = [([int(extent) for extent in slot.shape], str(slot.dtype)) for slot in kernel.func.params]
    memory = GuardedMemory(operands, {})
    for array in memory.arrays:
        array[...] = random.random(array.shape, np.float32)
    memory.remember()
    function(*(tvm.runtime.from_dlpack(array) for array in memory.arrays))
    assert not memory.strays(range(len(operands)))
    return [array.copy() for array in memory.arrays[: len(operands) - len(kernel.workspaces)]]


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_that_share_code_compute_what_they_do_alone(family):
    kernels = {f"k{width}": kernel_of(family(width)) for width in WIDTHS}
    together = machine_code({symbol: kernel.func for symbol, kernel in kernels.items()}, TARGET)
    assert loops(together) == loops(compiled(kernels["k320"].func)) == 1, "one parallel loop serves them all"
    for seed, (symbol, kernel) in enumerate(kernels.items()):
        alone = run(compiled(kernel.func)["main"], kernel, seed)
        for mine, theirs in zip(run(together[symbol], kernel, seed), alone, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_kernels_of_other_structure_keep_their_own_code():
    kernels = [kernel_of(normalised(width)) for width in (320, 353)]
    module = machine_code({f"k{number}": kernel.func for number, kernel in enumerate(kernels)}, TARGET)
    assert loops(module) == 2


def test_contractions_keep_their_constants():
    a, b = te.placeholder((64, 64)), te.placeholder((64, 64))
    k = te.reduce_axis((0, 64))
    product = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    assert SHARED not in kernel_of([a, b, product]).func.attrs


def loops(module):
    """How many loops that threads share there are in the code of a module."""
    return len(re.findall(r"^define .*@__tvm_parallel_lambda", module.inspect_source("ll"), re.MULTILINE))
