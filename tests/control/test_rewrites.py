"""Each rewrite alone: a small program before and after it, as in the golden files.

After a change that is meant: `python tests/control/test_rewrites.py` writes the files anew; read the difference.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import random_cells
from program_text import program_text
from random_cells import Cells
from tvm import relax

from autotm.control.function import compile_program
from autotm.control.levels import by_levels
from autotm.control.packing import pack_weights
from autotm.control.reader import read_program
from autotm.control.rewrites import NO_REWRITES, hoist_from_branches, hoist_invariants, predicate, unroll
from autotm.control.splitting import split_loops
from autotm.zoo import loop_models
from autotm.zoo.functions import FunctionWriter, as_module, integer

GOLDEN = Path(__file__).parent / "golden"
ROW = ((1, 8), "float32")
WIDE = ((64, 8), "float32")


def counted(steps, rows=1, width=8):
    """x = tanh(x wᵀ + b) some times, where w is turned in each step."""
    kind = ((rows, width), "float32")
    kinds = {"x": kind, "w": ((width, width), "float32"), "b": ((width,), "float32")}
    loop = FunctionWriter("loop", {"step": ((), "int64"), **kinds}, kind)
    step, x, w, b = loop.params.values()
    emit, op = loop.emit, relax.op

    def again():
        product = emit(op.matmul(x, emit(op.permute_dims(w))))
        return loop.call(loop, emit(op.add(step, integer(1))), emit(op.tanh(emit(op.add(product, b)))), w, b)

    result = loop.branch(emit(op.less(step, integer(steps))), again, lambda: x)
    main = FunctionWriter("main", kinds, kind)
    last = main.call(loop, integer(0), *main.params.values())
    return as_module({loop: loop.function(result), main: main.function(last)})


def multiplied(rows):
    """x = x w some times."""
    kinds = {"x": ((rows, 32), "float32"), "w": ((32, 32), "float32")}
    loop = FunctionWriter("loop", {"step": ((), "int64"), **kinds}, kinds["x"])
    step, x, w = loop.params.values()
    emit, op = loop.emit, relax.op
    result = loop.branch(
        emit(op.less(step, integer(6))),
        lambda: loop.call(loop, emit(op.add(step, integer(1))), emit(op.matmul(x, w)), w),
        lambda: x,
    )
    main = FunctionWriter("main", kinds, kinds["x"])
    last = main.call(loop, integer(0), *main.params.values())
    return as_module({loop: loop.function(result), main: main.function(last)})


def searched():
    """A row is taken in each step of a loop that data end: not to be moved, since it may have no step."""
    kinds = {"x": ROW, "rows": WIDE, "index": ((), "int64")}
    loop = FunctionWriter("loop", kinds, ROW)
    x, rows, index = loop.params.values()
    emit, op = loop.emit, relax.op

    def again():
        row = emit(op.exp(emit(op.take(rows, index, axis=0))))
        return loop.call(loop, emit(op.add(x, row)), rows, index)

    test = emit(op.less(emit(op.max(x)), relax.const(9.0, "float32")))
    result = loop.branch(test, again, lambda: x)
    main = FunctionWriter("main", kinds, ROW)
    last = main.call(loop, *main.params.values())
    return as_module({loop: loop.function(result), main: main.function(last)})


def branching(kind):
    """One side computes more than the other; of (64, 8) they are too large to be computed for nothing."""
    main = FunctionWriter("main", {"c": ((), "bool"), "x": kind, "small": ROW}, kind)
    c, x, small = main.params.values()
    emit, op = main.emit, relax.op

    def then():
        return emit(op.multiply(x, emit(op.exp(small))))

    return as_module({main: main.function(main.branch(c, then, lambda: emit(op.negative(x))))})


def recursive():
    """f(n, x) = x if n < 1 else tanh(f(n - 1, x w)), where w is packed in each call."""
    kinds = {"n": ((), "int64"), "x": ROW, "w": ((8, 8), "float32")}
    own = FunctionWriter("f", kinds, ROW)
    n, x, w = own.params.values()
    emit, op = own.emit, relax.op

    def inner():
        y = emit(op.matmul(x, emit(op.permute_dims(w))))
        return emit(op.tanh(own.call(own, emit(op.subtract(n, integer(1))), y, w)))

    result = own.branch(emit(op.less(n, integer(1))), lambda: x, inner)
    main = FunctionWriter("main", kinds, ROW)
    last = main.call(own, *main.params.values())
    return as_module({own: own.function(result), main: main.function(last)})


def convolved(kernel, stride, padding, image=4, channels=64):
    """A convolution of an image, whose channels are last."""
    kinds = {"x": ((1, image, image, channels), "float32"), "w": ((*kernel, channels, 64), "float32")}
    top, left, bottom, right = padding
    places = [(image + top + bottom - kernel[0]) // stride + 1, (image + left + right - kernel[1]) // stride + 1]
    main = FunctionWriter("main", kinds, ((1, *places, 64), "float32"))
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    x, w = main.params.values()
    y = relax.op.nn.conv2d(x, w, strides=stride, padding=padding, **layouts)
    return as_module({main: main.function(main.emit(y))})


def with_known_weights(program):
    """The second argument is a constant instead."""
    x, w, *others = program.parameters
    constants = {**program.constants, w: np.ones(w.shape, w.dtype)}
    return replace(program, parameters=(x, *others), constants=constants)


def packed(program):
    return hoist_invariants(pack_weights(hoist_invariants(program), lanes=8))


def split(program):
    return split_loops(hoist_invariants(program), 1)


CASES = {
    "unroll_2": (counted(6), lambda program: unroll(program, 2)),
    "unroll_4": (counted(8), lambda program: unroll(program, 4)),
    "unroll_8": (counted(17), lambda program: unroll(program, 8)),
    "unroll_4_and_a_rest": (counted(6), lambda program: unroll(program, 4)),
    "hoist_invariants": (counted(6), hoist_invariants),
    "hoist_invariants_that_may_fault": (searched(), hoist_invariants),
    "hoist_invariants_of_a_recursion": (recursive(), hoist_invariants),
    "hoist_from_branches": (branching(WIDE), lambda program: hoist_from_branches(program, 128)),
    "predicate": (branching(ROW), lambda program: predicate(program, 128)),
    "predicate_not_what_is_large": (branching(WIDE), lambda program: predicate(program, 128)),
    "by_levels": (loop_models.encoder(9, 5, 8), lambda program: by_levels(program, 1)),
    "by_levels_not_what_a_smaller_matrix_joins": (
        loop_models.encoder(9, 5, 8),
        lambda program: by_levels(program, 513),
    ),
    "split_loops_before": (random_cells.module_of(Cells(4, (("product", 0, 2),), (3,), 3)), split),
    "split_loops_between": (random_cells.module_of(Cells(4, (("add", 0, 2), ("product", 4, 3)), (4, 5), 5)), split),
    "split_loops_not_what_needs_itself": (random_cells.module_of(Cells(4, (("product", 2, 0),), (3,), 3)), split),
    "pack_weights": (counted(6, rows=4, width=32), packed),
    "pack_weights_of_a_single_row": (counted(6, width=32), packed),
    "pack_weights_that_are_known": (multiplied(4), lambda program: packed(with_known_weights(program))),
    "pack_weights_that_are_known_for_a_single_row": (
        multiplied(1),
        lambda program: packed(with_known_weights(program)),
    ),
    "pack_weights_of_a_convolution": (
        convolved((4, 4), 2, (1, 1, 1, 1)),
        lambda program: packed(with_known_weights(program)),
    ),
    "pack_weights_not_of_many_positions": (
        convolved((4, 4), 1, (0, 0, 0, 0), image=12),
        lambda program: packed(with_known_weights(program)),
    ),
}


def before_and_after(name):
    module, rewrite = CASES[name]
    program = NO_REWRITES.apply(read_program(module))
    return f"Before:\n{program_text(program)}\nAfter:\n{program_text(rewrite(program))}"


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name):
    assert before_and_after(name) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "image", "channels"),
    [
        ((3, 3), 1, (1, 1, 1, 1), 4, 128),
        ((3, 3), 2, (0, 1, 2, 0), 7, 128),
        ((2, 4), 1, (1, 0, 0, 3), 5, 128),
        ((1, 1), 1, (0, 0, 0, 0), 3, 1024),
        ((1, 1), 2, (0, 0, 0, 0), 5, 1024),
        ((4, 4), 1, (0, 0, 0, 0), 4, 128),
    ],
)
def test_convolutions_with_panels(kernel, stride, padding, image, channels):
    program = read_program(convolved(kernel, stride, padding, image, channels))
    x, w = program.parameters
    random = np.random.default_rng(0)
    weights = (random.standard_normal(w.shape) / np.sqrt(w.elements / 64)).astype(w.dtype)
    rewritten = pack_weights(replace(program, parameters=(x,), constants={w: weights}), lanes=8)
    assert "conv2d" not in program_text(rewritten)
    array = random.standard_normal(x.shape).astype(x.dtype)
    result = compile_program(rewritten)(array)
    top, left, bottom, right = padding
    padded = np.pad(array.astype("float64"), ((0, 0), (top, bottom), (left, right), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(1, 2))[:, ::stride, ::stride]
    np.testing.assert_allclose(result, np.einsum("nijcyx,yxcf->nijf", windows, weights), atol=1e-5)


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / f"{case}.txt").write_text(before_and_after(case), encoding="utf-8")
