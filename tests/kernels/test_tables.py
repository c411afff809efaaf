"""Lookups, updates of tables, sums at places that indices name, running sums: in order, on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from tvm import te

from autotm.kernels.along_axis import running_sum
from autotm.kernels.schedules.dispatch import ScheduledKernel
from autotm.kernels.tables import Scatter, Use, embedding, embedding_concat, embedding_update, scatter_sum
from autotm.kernels.target import PARALLEL_BYTES
from autotm.model.graph import OpClass

RATE = np.float32(0.25)
"""A power of two: the product is exact, so that a fused multiply-add and two operations round alike."""
# Rows and width of the table, indices of each lookup.
TABLES = [(10, 16, [7]), (3, 16, [40]), (5, 1, [9, 4]), (1, 33, [6]), (50, 67, [1, 80, 3]), (7, 512, [20, 20])]


def like(array):
    return te.placeholder(array.shape, str(array.dtype), name="p")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("rows", "width", "shape"), [(9, 16, (5,)), (3, 7, (4, 6)), (1, 1, (1,)), (40, 33, (2, 3, 5)), (500, 64, (3000,))]
)
def test_lookup(rows, width, shape, dtype):
    random = np.random.default_rng(0)
    table, indices = random.random((rows, width), "float32"), random.integers(rows, size=shape, dtype=dtype)
    operands = [like(table), like(indices)]
    kernel = kernel_of([*operands, embedding(*operands)])
    assert (kernel.op, kernel.op_class, kernel.workspaces) == ("embedding", OpClass.DATA_MOVEMENT, ())
    assert ("T.parallel" in kernel.func.script()) == (4 * (2 * width + 1) * indices.size >= PARALLEL_BYTES)
    np.testing.assert_array_equal(call(kernel, [table, indices])[0], table[indices])


@pytest.mark.parametrize("count", [5, 700])
def test_lookups_and_matrices_side_by_side(count):
    random = np.random.default_rng(5)
    tables = [random.random((rows, width), "float32") for rows, width in ((9, 16), (3, 33), (40, 1))]
    indices = [random.integers(len(table), size=count, dtype="int32") for table in tables]
    matrix = random.random((count, 20), "float32")
    parts = [(tables[0], indices[0]), (matrix,), (tables[1], indices[1]), (tables[2], indices[2])]
    operands = [tuple(map(like, part)) for part in parts]
    kernel = kernel_of([*(operand for part in operands for operand in part), embedding_concat(operands)])
    assert (kernel.op, kernel.op_class, kernel.workspaces) == ("embedding_concat", OpClass.DATA_MOVEMENT, ())
    assert ("T.parallel" in kernel.func.script()) == (count == 700)
    expected = np.hstack([part[0] if len(part) == 1 else part[0][part[1]] for part in parts])
    np.testing.assert_array_equal(call(kernel, [array for part in parts for array in part])[0], expected)


def update_kernel(table: np.ndarray, operands: list[np.ndarray], columns: list[int], threads: int) -> ScheduledKernel:
    """The kernel of one lookup after the other, each of indices and slope, from these columns of the slopes on."""
    uses = [Use(0, 2 * number, 2 * number + 1, column) for number, column in enumerate(columns)]
    tensors = [like(table), *map(like, operands)]
    return kernel_of([*tensors, embedding_update(tensors[:1], tensors[1:], uses, float(RATE))], threads)


def updated(table: np.ndarray, operands: list[np.ndarray], columns: list[int]) -> np.ndarray:
    """Every occurrence subtracted in turn, in float32."""
    result = table.copy()
    for indices, slope, column in zip(operands[::2], operands[1::2], columns, strict=True):
        for row, change in zip(indices, slope[:, column : column + table.shape[1]], strict=True):
            result[row] -= RATE * change
    return result


def update_in_place(kernel: ScheduledKernel, tables: list[np.ndarray], operands: list[np.ndarray]) -> list[np.ndarray]:
    """Run on the tables' own memory."""
    inputs = [*tables, *operands]
    return call(kernel, inputs, shared={len(inputs) + slot: slot for slot in range(len(tables))})


def random_operands(rows, width, counts, columns, seed=0):
    random = np.random.default_rng(seed)
    operands = []
    for count, column in zip(counts, columns, strict=True):
        operands.append(random.integers(rows, size=count, dtype="int32"))
        operands.append(random.standard_normal((count, width + column + 2), "float32"))
    return random.standard_normal((rows, width), "float32"), operands


@pytest.mark.parametrize(("rows", "width", "counts"), TABLES)
def test_update_subtracts_every_occurrence_in_order(rows, width, counts):
    columns = [3 * lookup for lookup in range(len(counts))]
    table, operands = random_operands(rows, width, counts, columns)
    kernel = update_kernel(table, operands, columns, threads=2)
    assert (kernel.op, kernel.op_class, kernel.workspaces) == ("embedding_update", OpClass.DATA_MOVEMENT, ())
    np.testing.assert_array_equal(update_in_place(kernel, [table], operands)[0], updated(table, operands, columns))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_rows_and_change_nothing(threads):
    counts, columns = [3000, 500], [0, 5]
    table, operands = random_operands(91, 19, counts, columns, seed=1)
    kernel = update_kernel(table, operands, columns, threads)
    assert ("T.parallel" in kernel.func.script()) == (threads > 1)
    expected = updated(table, operands, columns)
    for _ in range(3):
        np.testing.assert_array_equal(update_in_place(kernel, [table], operands)[0], expected)


def test_rows_that_are_not_looked_up_are_not_written():
    table, (_, slope) = random_operands(6, 16, [4], [0])
    table[[0, 3, 5]] = np.nan
    operands = [np.array([1, 4, 2, 1], "int32"), slope]
    result = update_in_place(update_kernel(table, operands, [0], threads=2), [table], operands)[0]
    np.testing.assert_array_equal(np.isnan(result).any(axis=1), [True, False, False, True, False, True])


@pytest.mark.parametrize("count", [6, 900])
def test_several_tables_take_their_columns_of_one_slope(count):
    random = np.random.default_rng(4)
    shapes, columns = [(5, 16), (30, 7), (2, 32)], [20, 0, 40]
    tables = [random.standard_normal(shape, "float32") for shape in shapes]
    indices = [random.integers(rows, size=count, dtype="int32") for rows, _ in shapes]
    slope = random.standard_normal((count, 80), "float32")
    operands = [slope, *indices]
    uses = [Use(at, 1 + at, 0, column) for at, column in enumerate(columns)]
    inputs = list(map(like, (*tables, *operands)))
    kernel = kernel_of([*inputs, *embedding_update(inputs[:3], inputs[3:], uses, float(RATE))], threads=2)
    assert ("T.parallel" in kernel.func.script()) == (count == 900)
    results = update_in_place(kernel, tables, operands)
    for result, table, rows, column in zip(results, tables, indices, columns, strict=True):
        np.testing.assert_array_equal(result, updated(table, [rows, slope], [column]))


def scattered(dy, indices, shape, scatter, threads):
    """The sums at the places of `shape`, as the kernel computes them."""
    slots = [like(dy), *map(like, indices)]
    kernel = kernel_of([*slots, scatter_sum(slots[0], slots[1:], shape, scatter)], threads)
    assert (kernel.op, kernel.op_class, kernel.workspaces) == ("scatter_sum", OpClass.DATA_MOVEMENT, ())
    return call(kernel, [dy, *indices])[0]


# Shape of the table, its axis, number of indices: few and many of each, so that threads share each kind of loop.
TAKES = [((9, 16), 0, 5), ((500, 640), 0, 3000), ((4, 50, 33), 1, 200), ((700, 33), 0, 900), ((90, 40, 1), 1, 300)]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("shape", "axis", "count"), TAKES)
def test_rows_are_added_up(shape, axis, count, threads):
    random = np.random.default_rng(0)
    indices = random.integers(-shape[axis], shape[axis], count, dtype="int32")
    dy = random.random((*shape[:axis], count, *shape[axis + 1 :]), "float32")
    scatter = Scatter.of_axis(dy.shape, shape, axis, indices.shape)
    expected = np.zeros(shape, np.float32)
    np.add.at(np.moveaxis(expected, axis, 0), indices, np.moveaxis(dy, axis, 0))
    np.testing.assert_allclose(scattered(dy, [indices], shape, scatter, threads), expected, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "axis", "count"), [((3, 7), 1, 5), ((600, 40), 1, 70), ((300, 64), 0, 500)])
def test_elements_are_added_up(shape, axis, count, threads):
    random = np.random.default_rng(1)
    own = tuple(count if number == axis else extent for number, extent in enumerate(shape))
    indices, dy = random.integers(shape[axis], size=own, dtype="int64"), random.random(own, "float32")
    scatter = Scatter.of_elements(own, shape, axis)
    expected, at = np.zeros(shape, np.float32), list(np.indices(own))
    at[axis] = indices
    np.add.at(expected, tuple(at), dy)
    np.testing.assert_allclose(scattered(dy, [indices], shape, scatter, threads), expected, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_two_indices_that_are_broadcast(threads):
    random = np.random.default_rng(2)
    shape = (40, 30, 65)
    rows, columns = random.integers(40, size=(50, 1)), random.integers(-30, 30, size=(9,))
    dy = random.random((50, 9, 65), "float32")
    scatter = Scatter.of_places(shape, [rows.shape, columns.shape])
    expected = np.zeros(shape, np.float32)
    np.add.at(expected, (rows, columns), dy)
    np.testing.assert_allclose(scattered(dy, [rows, columns], shape, scatter, threads), expected, rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((300, 90), 1), ((4, 50, 60), 1)])
def test_running_sums(shape, axis, reverse):
    values = np.random.default_rng(3).integers(-5, 5, shape).astype(np.float32)
    x = like(values)
    kernel = kernel_of([x, running_sum(x, axis, "float32", reverse=reverse)])
    expected = np.cumsum(np.flip(values, axis) if reverse else values, axis)
    np.testing.assert_array_equal(call(kernel, [values])[0], np.flip(expected, axis) if reverse else expected)
