"""A result and those that it is made of share one pass, and may take the memory of what they replace."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from tvm import te, tirx
from tvm.s_tir import Schedule

from autotm.kernels.schedules.dispatch import ScheduledKernel
from autotm.model.graph import OpClass

RATE, SHARE = 0.5, 0.25
SHAPES = [(7,), (5000,), (300, 200), (3, 3, 16, 24), (37, 41), (1,)]


def update(shape: tuple[int, ...], share: float = SHARE) -> list[te.Tensor]:
    """Operands and results of a step along an average of slopes and one of their squares."""
    old, slope, mean, square = (te.placeholder(shape, "float32", name) for name in ("old", "slope", "mean", "square"))
    part = tirx.const(share, "float32")

    def towards(before: te.Tensor, power: int, name: str) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.Expr:
            value = slope(*at) if power == 1 else slope(*at) * slope(*at)
            return before(*at) + (value - before(*at)) * part

        return te.compute(shape, element, name)

    new_mean, new_square = towards(mean, 1, "new_mean"), towards(square, 2, "new_square")
    rate = tirx.const(RATE, "float32")
    new = te.compute(shape, lambda *at: old(*at) - rate * new_mean(*at) / new_square(*at), "new")
    return [old, slope, mean, square, new_mean, new_square, new]


def loops(kernel: ScheduledKernel) -> int:
    """Loop nests of a scheduled function."""
    body = kernel.func.body.block.body
    return len(body.seq) if isinstance(body, tirx.SeqStmt) else 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_chain_is_one_loop_nest(shape: tuple[int, ...], in_place: bool) -> None:
    kernel = kernel_of(update(shape))
    assert (kernel.op_class, kernel.workspaces) == (OpClass.ELEMENTWISE, ())
    assert loops(kernel) == 1
    random = np.random.default_rng(0)
    old, slope, mean, square = (random.uniform(0.5, 1.5, shape).astype("float32") for _ in range(4))
    shared = {4: 2, 5: 3, 6: 0} if in_place else {}
    found = call(kernel, [old, slope, mean, square], shared=shared)
    new_mean, new_square = mean + (slope - mean) * SHARE, square + (slope * slope - square) * SHARE
    expected = [new_mean, new_square, old - RATE * new_mean / new_square]
    for array, value in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, value, rtol=1e-6, atol=3e-7)


def test_results_that_have_nothing_to_do_with_one_another_keep_their_loops() -> None:
    first, second = update((640,)), update((640,))
    kernel = kernel_of([*first[:4], *second[:4], *first[4:], *second[4:]])
    assert loops(kernel) == 2


def test_a_result_that_reads_another_elsewhere_keeps_its_loops() -> None:
    x = te.placeholder((64,), "float32", "x")
    twice = te.compute((64,), lambda i: x[i] + x[i], "twice")
    turned = te.compute((64,), lambda i: twice[63 - i] + x[i], "turned")
    kernel = kernel_of([x, twice, turned])
    assert loops(kernel) == 2
    assert Schedule(kernel.func)
    values = np.arange(64, dtype="float32")
    np.testing.assert_array_equal(call(kernel, [values])[1], 2 * values[::-1] + values)
