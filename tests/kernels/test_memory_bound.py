"""What is limited by memory computes the same in one pass: maps, chains of results, elementary functions, sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from compiled_kernels import call, kernel_of, placeholders
from memory_bound_cases import CONCATS, SHAPES, SUMS, summed
from tvm import te, tirx, topi
from tvm.s_tir import Schedule

from autotm.kernels.along_axis import concat
from autotm.kernels.schedules.dispatch import ScheduledKernel
from autotm.kernels.schedules.memory_bound import _blocking
from autotm.kernels.target import PARALLEL_BYTES, Parallelism, divisor_near
from autotm.model.graph import OpClass


def values(shape, seed=0):
    return np.random.default_rng(seed).random(shape, "float32") - np.float32(0.5)


def is_parallel(kernel):
    return "T.parallel" in kernel.func.script()


@pytest.mark.parametrize("shape", SHAPES)
def test_bias_add_relu_mask_chain_is_one_pass(shape):
    x, b, dy = placeholders(shape, shape[-1:], shape)
    zero = tirx.const(0.0, "float32")
    biased = te.compute(shape, lambda *i: x(*i) + b(i[-1]), name="biased")
    positive = te.compute(shape, lambda *i: biased(*i) > zero, name="positive")
    masked = te.compute(shape, lambda *i: tirx.Select(positive(*i), dy(*i) * biased(*i), zero), name="masked")
    kernel = kernel_of([x, b, dy, masked])
    assert kernel.op_class == OpClass.ELEMENTWISE
    assert kernel.workspaces == ()
    assert is_parallel(kernel) == (3 * 4 * np.prod(shape) + 4 * shape[-1] >= PARALLEL_BYTES)
    operands = [values(shape), values(shape[-1:], 1), values(shape, 2)]
    sums = operands[0] + operands[1]
    np.testing.assert_array_equal(call(kernel, operands)[0], np.where(sums > 0, operands[2] * sums, 0))


def test_one_thread_asks_for_no_parallel_loop():
    (x,) = placeholders((64, 4096))
    double = te.compute(x.shape, lambda *i: x(*i) * 2.0, name="double")
    assert is_parallel(kernel_of([x, double], threads=2))
    assert not is_parallel(kernel_of([x, double], threads=1))


def test_reads_elsewhere_and_values_that_depend_on_the_index_are_right():
    x, row, wide = placeholders((37, 53), (37, 1), (12, 40))
    turned = te.compute((53, 37), lambda i, j: x[j, i] - row[j, 0], name="turned")
    operands = [values((37, 53)), values((37, 1), 1)]
    np.testing.assert_array_equal(call(kernel_of([x, row, turned]), operands)[0], (operands[0] - operands[1]).T)
    body = lambda i, j: tirx.if_then_else(j < i + 3, wide[i, j], tirx.const(0.0, "float32"))  # noqa: E731
    data, keep = values((12, 40)), np.arange(40) < np.arange(12)[:, None] + 3
    band = kernel_of([wide, te.compute((12, 40), body, name="band")])
    np.testing.assert_array_equal(call(band, [data])[0], data * keep)


@pytest.mark.parametrize(("shapes", "axis"), CONCATS)
def test_concat(shapes, axis):
    arguments = placeholders(*shapes)
    kernel = kernel_of([*arguments, concat(arguments, axis)])
    assert kernel.op_class == OpClass.DATA_MOVEMENT
    assert kernel.op == "concat"
    assert "if_then_else" not in kernel.func.script()
    operands = [values(shape, seed) for seed, shape in enumerate(shapes)]
    np.testing.assert_array_equal(call(kernel, operands)[0], np.concatenate(operands, axis))


@pytest.mark.parametrize(("axis", "begin", "end"), [(3, 32, 65), (3, 0, 7), (1, 2, 5), (0, 1, 2)])
def test_slice_and_what_follows_are_one_pass(axis, begin, end):
    shape = (2, 6, 5, 97)
    (x,) = placeholders(shape)
    part = topi.strided_slice(x, [begin], [end], [1], [axis])
    data = values(shape)
    expected = np.take(data, range(begin, end), axis)
    assert kernel_of([x, part]).op_class == OpClass.DATA_MOVEMENT
    np.testing.assert_array_equal(call(kernel_of([x, part]), [data])[0], expected)
    kernel = kernel_of([x, te.compute(part.shape, lambda *i: part(*i) * 2.0, name="double")])
    assert kernel.op_class == OpClass.ELEMENTWISE
    assert kernel.workspaces == ()
    np.testing.assert_array_equal(call(kernel, [data])[0], expected * 2)


def test_tiles_divide_and_fill_vectors():
    machine = Parallelism(threads=2, lanes=16)
    for extent in range(1, 400):
        tile = machine.tile(extent)
        if tile is not None:
            assert extent % tile == 0
            assert tile <= 64
            assert machine.vector(tile) >= min(extent, 8)
        if extent % 16 == 0:
            assert tile % 16 == 0
    assert machine.tile(384) == 64
    assert machine.tile(67) is None


def test_divisor_near():
    assert divisor_near(19600, 27) == 28
    assert divisor_near(13, 4) in (1, 13)
    assert all(extent % divisor_near(extent, 7) == 0 for extent in range(1, 200))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((40, 56), (1, 0)), ((3, 17, 33), (0, 2, 1)), ((2, 9, 5, 24), (0, 3, 1, 2)), ((64, 16, 2, 64), (2, 1, 3, 0))],
)
def test_transpositions_in_tiles(shape, axes):
    (x,), data = placeholders(shape), values(shape)
    np.testing.assert_array_equal(call(kernel_of([x, topi.transpose(x, axes)]), [data])[0], data.transpose(axes))


RATE, SHARE = 0.5, 0.25
CHAIN_SHAPES = [(7,), (5000,), (300, 200), (3, 3, 16, 24), (37, 41), (1,)]


def update(shape: tuple[int, ...]) -> list[te.Tensor]:
    """Operands and results of a step along an average of slopes and one of their squares."""
    old, slope, mean, square = placeholders(*[shape] * 4)

    def towards(before: te.Tensor, value: Callable[..., tirx.Expr]) -> te.Tensor:
        return te.compute(shape, lambda *at: before(*at) + (value(*at) - before(*at)) * SHARE, "average")

    new_mean, new_square = towards(mean, slope), towards(square, lambda *at: slope(*at) * slope(*at))
    new = te.compute(shape, lambda *at: old(*at) - new_mean(*at) * RATE / new_square(*at), "new")
    return [old, slope, mean, square, new_mean, new_square, new]


def loops(kernel: ScheduledKernel) -> int:
    """Loop nests of a scheduled function."""
    body = kernel.func.body.block.body
    return len(body.seq) if isinstance(body, tirx.SeqStmt) else 1


@pytest.mark.parametrize("shape", CHAIN_SHAPES, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_chain_is_one_loop_nest(shape: tuple[int, ...], in_place: bool) -> None:
    kernel = kernel_of(update(shape))
    assert (kernel.op_class, kernel.workspaces) == (OpClass.ELEMENTWISE, ())
    assert loops(kernel) == 1
    random = np.random.default_rng(0)
    old, slope, mean, square = (random.uniform(0.5, 1.5, shape).astype("float32") for _ in range(4))
    results = call(kernel, [old, slope, mean, square], shared={4: 2, 5: 3, 6: 0} if in_place else {})
    new_mean, new_square = mean + (slope - mean) * SHARE, square + (slope * slope - square) * SHARE
    for array, value in zip(results, [new_mean, new_square, old - RATE * new_mean / new_square], strict=True):
        np.testing.assert_allclose(array, value, rtol=1e-6, atol=3e-7)


def test_results_that_have_nothing_to_do_with_one_another_keep_their_loops() -> None:
    first, second = update((640,)), update((640,))
    assert loops(kernel_of([*first[:4], *second[:4], *first[4:], *second[4:]])) == 2


def test_a_result_that_reads_another_elsewhere_keeps_its_loops() -> None:
    (x,) = placeholders((64,))
    twice = te.compute((64,), lambda i: x[i] + x[i], "twice")
    kernel = kernel_of([x, twice, te.compute((64,), lambda i: twice[63 - i] + x[i], "turned")])
    assert loops(kernel) == 2
    assert Schedule(kernel.func)
    data = np.arange(64, dtype="float32")
    np.testing.assert_array_equal(call(kernel, [data])[1], 2 * data[::-1] + data)


FUNCTIONS = {
    "exp": (tirx.exp, np.exp),
    "tanh": (tirx.tanh, np.tanh),
    "erf": (tirx.erf, np.vectorize(math.erf)),
    "sigmoid": (tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}
ODD = np.array([0.0, np.inf, -np.inf, np.nan, 200.0, -200.0, 88.0], np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_exact_as_float32(name: str) -> None:
    function, exact = FUNCTIONS[name]
    values = np.concatenate([np.linspace(-30, 30, 5003), np.geomspace(1e-30, 80, 1000), ODD]).astype(np.float32)
    x = te.placeholder(values.shape, "float32", name="x")
    kernel = kernel_of([x, te.compute(x.shape, lambda i: function(x[i]), name="y")])
    with np.errstate(all="ignore"):
        expected = exact(values.astype(np.float64))
        (result,) = call(kernel, [values])
        np.testing.assert_allclose(result, expected.astype(np.float32), rtol=8e-7, atol=1e-37)
    assert f"T.{name}(" not in kernel.func.script()


@pytest.mark.parametrize(("shape", "axes"), SUMS)
def test_sum_over_any_axes(shape, axes):
    x = np.random.default_rng(0).random(shape, "float32") - np.float32(0.3)
    kernel = kernel_of(summed(shape, axes))
    assert (kernel.op, kernel.op_class) == ("sum", OpClass.REDUCTION)
    expected = x.sum(axes, dtype="float64")
    scale = np.abs(x).sum(axes, dtype="float64")
    (result,) = call(kernel, [x])
    assert (np.abs(result - expected) <= 1e-6 * scale).all()


@pytest.mark.parametrize(("shape", "axes"), [((1_000_000, 16), (0,)), ((3, 1_000_000), (1,)), ((1_000_003, 2), (0,))])
def test_long_sums_lose_little_to_rounding(shape, axes):
    """A plain float32 loop is off by 1e-5 here; pairwise sums, NumPy's and PyTorch's, by a rounding or two."""
    x = np.random.default_rng(1).random(shape, "float32")
    expected = x.sum(axes, dtype="float64")
    (result,) = call(kernel_of(summed(shape, axes)), [x])
    assert np.sqrt(np.mean((result / expected - 1) ** 2)) <= 5 * 2.0**-24


def test_elementwise_work_before_a_sum_is_fused():
    shape = (8, 17, 17, 64)
    kernel = kernel_of(summed(shape, (0, 1, 2), before=lambda value: value * value))
    x = np.random.default_rng(2).random(shape, "float32")
    np.testing.assert_allclose(call(kernel, [x])[0], (x.astype("float64") ** 2).sum((0, 1, 2)), rtol=1e-5)
    assert all(math.prod(extents) <= 64 * 64 for extents, _ in kernel.workspaces)


def test_levels_of_partial_sums_cover_every_term():
    for count in range(129, 5000):
        parts, runs = _blocking(count)
        assert count % (parts * runs) == 0 or runs == 1
        assert max(parts, runs, -(-count // parts // runs)) <= max(8 * count ** (1 / 3), 1.5 * count**0.5 + 1)
