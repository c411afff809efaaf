"""Sums at places that indices name, and running sums: the same on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from tvm import te

from autotm.kernels.along_axis import running_sum
from autotm.kernels.tables import Scatter, scatter_sum
from autotm.model.graph import OpClass


def operand(array: np.ndarray) -> te.Tensor:
    return te.placeholder(array.shape, str(array.dtype), name="p")


# Shape of the table, its axis, number of indices: few and many of each, so that threads share each kind of loop.
TAKES = [((9, 16), 0, 5), ((500, 640), 0, 3000), ((4, 50, 33), 1, 200), ((700, 33), 0, 900), ((90, 40, 1), 1, 300)]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("shape", "axis", "count"), TAKES)
def test_rows_are_added_up(shape, axis, count, threads):
    random = np.random.default_rng(0)
    indices = random.integers(-shape[axis], shape[axis], count, dtype="int32")
    dy = random.random((*shape[:axis], count, *shape[axis + 1 :]), "float32")
    scatter = Scatter.of_axis(dy.shape, shape, axis, indices.shape)
    slots = [operand(dy), operand(indices)]
    kernel = kernel_of([*slots, scatter_sum(slots[0], slots[1:], shape, scatter)], threads)
    assert (kernel.op, kernel.op_class, kernel.workspaces) == ("scatter_sum", OpClass.DATA_MOVEMENT, ())
    expected = np.zeros(shape, np.float32)
    np.add.at(np.moveaxis(expected, axis, 0), indices, np.moveaxis(dy, axis, 0))
    np.testing.assert_allclose(call(kernel, [dy, indices])[0], expected, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "axis", "count"), [((3, 7), 1, 5), ((600, 40), 1, 70), ((300, 64), 0, 500)])
def test_elements_are_added_up(shape, axis, count, threads):
    random = np.random.default_rng(1)
    own = tuple(count if number == axis else extent for number, extent in enumerate(shape))
    indices, dy = random.integers(shape[axis], size=own, dtype="int64"), random.random(own, "float32")
    slots = [operand(dy), operand(indices)]
    scatter = Scatter.of_elements(own, shape, axis)
    kernel = kernel_of([*slots, scatter_sum(slots[0], slots[1:], shape, scatter)], threads)
    expected, at = np.zeros(shape, np.float32), list(np.indices(own))
    at[axis] = indices
    np.add.at(expected, tuple(at), dy)
    np.testing.assert_allclose(call(kernel, [dy, indices])[0], expected, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_two_indices_that_are_broadcast(threads):
    random = np.random.default_rng(2)
    shape = (40, 30, 65)
    rows, columns = random.integers(40, size=(50, 1)), random.integers(-30, 30, size=(9,))
    dy = random.random((50, 9, 65), "float32")
    slots = [operand(dy), operand(rows), operand(columns)]
    scatter = Scatter.of_places(shape, [rows.shape, columns.shape])
    kernel = kernel_of([*slots, scatter_sum(slots[0], slots[1:], shape, scatter)], threads)
    expected = np.zeros(shape, np.float32)
    np.add.at(expected, (rows, columns), dy)
    np.testing.assert_allclose(call(kernel, [dy, rows, columns])[0], expected, rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((300, 90), 1), ((4, 50, 60), 1)])
def test_running_sums(shape, axis, reverse):
    values = np.random.default_rng(3).integers(-5, 5, shape).astype(np.float32)
    x = operand(values)
    kernel = kernel_of([x, running_sum(x, axis, "float32", reverse=reverse)])
    turned = np.flip(values, axis) if reverse else values
    expected = np.cumsum(turned, axis)
    np.testing.assert_array_equal(call(kernel, [values])[0], np.flip(expected, axis) if reverse else expected)
