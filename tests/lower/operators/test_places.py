"""Gradients of what reads and writes places, orders and running sums, against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from central_differences import Operator, assert_gradients
from tvm import relax

op = relax.op


def indices(values: object, dtype: str = "int64") -> relax.Constant:
    return relax.const(np.array(values), dtype)


PLACES = {
    "take of axis 1": (lambda x: op.take(x, indices([2, 0, 2, 1]), 1), [(3, 4, 2)]),
    "take of the last axis": (lambda x: op.take(x, indices([3, 3], "int32"), -1), [(2, 4)]),
    "take by a matrix": (lambda x: op.take(x, indices([[0, 2], [1, 1]]), 1), [(3, 4, 2)]),
    "take of one": (lambda x: op.take(x, relax.const(2, "int64"), 1), [(3, 4, 2)]),
    "take of the last": (lambda x: op.take(x, relax.const(-1, "int64"), 0), [(3, 4)]),
    "take from everything": (lambda x: op.take(x, indices([5, 1, 5])), [(12,)]),
    "lookup": (lambda x: op.take(x, indices([[0, 2], [1, 1]]), 0), [(3, 4)]),
    "many gathered": (lambda x: op.gather_elements(x, indices([[0, 2, 1, 1, 0, 2]] * 2), 1), [(2, 4)]),
    "many gathered rows": (lambda x: op.gather_elements(x, indices([[0, 2]] * 6), 0), [(3, 2)]),
    "two indices": (lambda x: op.index_tensor(x, (indices([[0], [2]]), indices([1, 1, -1]))), [(3, 4, 2)]),
    "no axis": (lambda x: op.index_tensor(x, (indices(1), indices([0, 3]))), [(3, 4)]),
    "gathered points": (lambda x: op.gather_nd(x, indices([[0, 1], [2, 2], [0, 1]])), [(3, 4, 2)]),
    "scattered": (
        lambda x, y: op.scatter_elements(x, indices([[0, 2], [1, 0]]), y, 1),
        [(2, 4), (2, 2)],
    ),
    "scattered and added": (
        lambda x, y: op.scatter_elements(x, indices([[0, 0], [1, 0]]), y, 1, "add"),
        [(2, 4), (2, 2)],
    ),
    "scattered points": (lambda x, y: op.scatter_nd(x, indices([[0, 1], [2, 2]]), y), [(3, 4), (2,)]),
}
ORDERS = {
    "largest": (lambda x: op.topk(x, 3, -1, "values"), [(2, 7)]),
    "smallest of an outer axis": (lambda x: op.topk(x, 2, 0, "values", largest=False), [(6, 3)]),
    "largest, with places": (lambda x: op.topk(x, 5, 1, "both")[0], [(2, 7)]),
}
SUMS = {
    "running sum": (lambda x: op.cumsum(x, 1), [(3, 5, 2)]),
    "running sum without itself": (lambda x: op.cumsum(x, -1, exclusive=True), [(3, 5)]),
    "running sum of everything": (op.cumsum, [(3, 4)]),
    "product": (lambda x: op.prod(x, 1), [(3, 4)]),
    "deviation": (lambda x: op.std(x, [0, 2]), [(3, 4, 2)]),
    "variance": (lambda x: op.variance(x, [1], keepdims=True), [(3, 4, 2)]),
}


@pytest.mark.parametrize("name", [*PLACES, *SUMS])
def test_places_and_sums(name: str) -> None:
    operator, shapes = {**PLACES, **SUMS}[name]
    generator = np.random.default_rng(0)
    assert_gradients(operator, [generator.standard_normal(shape) for shape in shapes])


@pytest.mark.parametrize("name", ORDERS)
def test_orders(name: str) -> None:
    operator, shapes = ORDERS[name]
    generator = np.random.default_rng(0)
    assert_gradients(
        operator,
        [generator.permutation(np.arange(np.prod(shape), dtype=np.float64)).reshape(shape) for shape in shapes],
    )


def test_a_product_of_zeros() -> None:
    values = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]])
    operator: Operator = lambda x: op.prod(x, 1)  # noqa: E731
    assert_gradients(operator, [values])
