"""Generated loops, buffers that become workspaces, and machine code that kernels share."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from compiled_kernels import TARGET, GuardedMemory, call, compiled, kernel_of, placeholders
from tvm import s_tir, te, tirx, topi
from tvm.s_tir import Schedule

from autotm.kernels import contractions, normalization, tir, windowed
from autotm.kernels.along_axis import concat
from autotm.kernels.contractions import batched_matmul
from autotm.kernels.passes import machine_code
from autotm.kernels.schedules.dispatch import ScheduledKernel
from autotm.kernels.share import SHARED
from autotm.kernels.tir import STACK_BYTES, Code, hoist_workspaces, replace_body
from autotm.model.graph import OpClass


def test_loops_that_start_where_another_loop_is():
    """TVM forgets such a start if the outer loop itself does not count from zero."""
    x = te.placeholder((100,), name="x")
    schedule = s_tir.Schedule(te.create_prim_func([x, te.compute((2,), lambda i: x[i], name="sums")]))
    source, sums = next(iter(schedule.mod.functions.values())).params

    def half(part: tir.Index) -> tirx.Stmt:
        def block(index: tir.Index) -> tirx.Stmt:
            first, last = tir.share(index, 5, 100)
            add = lambda row: tir.store(sums, part, tir.load(sums, part) + tir.load(source, row))  # noqa: E731
            return tir.loop(last - first, add, "row", start=first)

        first, last = tir.share(part, 2, 5)
        clear = tir.store(sums, part, tir.zeros(1))
        return tir.sequence([clear, tir.loop(last - first, block, "block", start=first)])

    replace_body(schedule, Code(tir.loop(2, half, "part"), ()))
    kernel = ScheduledKernel(schedule.mod["main"], (), "sums", OpClass.REDUCTION, 0)
    data = np.arange(100, dtype="float32")
    np.testing.assert_array_equal(call(kernel, [data])[0], [data[:40].sum(), data[40:].sum()])


def allocates(func: tirx.PrimFunc) -> bool:
    """Whether the machine code calls TVM's allocator."""
    source = compiled(func).inspect_source("ll")
    return any("AllocWorkspace" in line and "global" not in line.split("=")[-1] for line in source.splitlines())


def chain(width):
    """exp(x) used by every element of its row: cannot be inlined cheaply, so it is kept in a buffer."""
    (x,) = placeholders((8, width))
    kept = te.compute(x.shape, lambda i, j: te.exp(x[i, j]), name="kept")
    k = te.reduce_axis((0, width), "k")
    total = te.compute((8,), lambda i: te.sum(kept[i, k], axis=k), name="total")
    return [x, te.compute(x.shape, lambda i, j: kept[i, j] / total[i], name="share")]


@pytest.mark.parametrize("width", [3, 31, 32, 1000])
def test_large_buffers_become_parameters_and_small_ones_stay(width):
    function = te.create_prim_func(chain(width))
    assert allocates(function) == (8 * width * 4 >= STACK_BYTES), "the inspection sees an allocation"
    func, workspaces = hoist_workspaces(function)
    expected = [((8, width), "float32")] if 8 * width * 4 >= STACK_BYTES else []
    assert list(workspaces) == expected
    assert [tuple(int(e) for e in p.shape) for p in func.params[2:]] == [shape for shape, _ in expected]
    assert not allocates(func)
    x = np.random.default_rng(0).random((8, width), "float32")
    (result,) = call(ScheduledKernel(func, workspaces, "chain", OpClass.ELEMENTWISE, 0), [x])
    np.testing.assert_allclose(result, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-4)


def parallel_scratch(scope):
    """Each iteration of a parallel loop keeps 400 floats for itself."""
    x = te.placeholder((6, 400), name="x")
    twice = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="twice")
    back = te.compute(x.shape, lambda i, j: twice[i, 399 - j] + 1.0, name="back")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([x, back])}))
    row = schedule.get_loops(schedule.get_sblock("back"))[0]
    schedule.compute_at(schedule.get_sblock("twice"), row)
    schedule.set_scope(schedule.get_sblock("twice"), 0, scope)
    schedule.parallel(row)
    return schedule.mod["main"]


@pytest.mark.parametrize("scope", ["global", "local"])
def test_scratch_of_parallel_iterations_is_kept_apart(scope):
    assert allocates(parallel_scratch(scope))
    func, workspaces = hoist_workspaces(parallel_scratch(scope))
    assert len(workspaces) == 1
    assert workspaces[0][0][0] == 6
    assert np.prod(workspaces[0][0]) == 6 * 400
    assert not allocates(func)
    x = np.random.default_rng(1).random((6, 400), "float32")
    kernel = ScheduledKernel(func, workspaces, "scratch", OpClass.ELEMENTWISE, 0)
    np.testing.assert_array_equal(call(kernel, [x])[0], x[:, ::-1] * 2 + 1)


def test_small_local_buffers_live_on_the_stack():
    x = te.placeholder((64, 32), name="x")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([x, te.compute(x.shape, lambda *i: x(*i) * 2.0)])}))
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    schedule.reverse_compute_at(schedule.cache_write(block, 0, "local"), schedule.get_loops(block)[0])
    assert allocates(schedule.mod["main"])
    func, workspaces = hoist_workspaces(schedule.mod["main"])
    assert workspaces == ()
    assert not allocates(func)


def kernels():
    geometry = ((3, 3), (2, 2), (0, 0, 0, 0))
    x, y, dy, w = placeholders((2, 9, 9, 96), (2, 4, 4, 96), (2, 4, 4, 96), (3, 3, 96, 40))
    yield "max_pool2d", [x, windowed.max_pool2d(x, *geometry)]
    yield "max_pool2d_gradient", [x, y, dy, windowed.max_pool2d_gradient(x, y, dy, *geometry)]
    yield "avg_pool2d", [x, windowed.avg_pool2d(x, (3, 3), (1, 1), (1, 1, 1, 1))]
    yield "sum", [x, topi.sum(x, (0, 1, 2))]
    yield "softmax_chain", chain(1000)
    rows, dy_rows, width, heads = placeholders((20, 600), (20, 600), (600,), (2, 9, 3, 40))
    yield "softmax", [rows, normalization.softmax(rows)]
    yield "layer_norm_gradient", [rows, width, dy_rows, *normalization.layer_norm_gradient(rows, width, dy_rows, 1e-5)]
    yield "batched_matmul", [heads, batched_matmul(heads, heads, "bihd,bjhd->bhij")]
    yield "conv2d", [x, w, contractions.conv2d(x, w, (1, 1), (1, 1, 1, 1))]


@pytest.mark.parametrize(("name", "tensors"), list(kernels()))
def test_no_kernel_allocates(name, tensors):
    assert not allocates(kernel_of(tensors).func), name


# Kernels that differ in numbers only run the same machine code, and compute what they compute alone.


def normalised(width):
    x, *others = placeholders((2, 8, 8, width), *[(width,)] * 4)
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
    a, b = placeholders((64, 64), (64, 64))
    assert SHARED not in kernel_of([a, b, contractions.matmul(a, b)]).func.attrs


def loops(module):
    """How many loops that threads share there are in the code of a module."""
    return len(re.findall(r"^define .*@__tvm_parallel_lambda", module.inspect_source("ll"), re.MULTILINE))
