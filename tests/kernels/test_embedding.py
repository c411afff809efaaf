from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from autotm.kernels.dispatch import ScheduledKernel
from autotm.kernels.embedding import embedding, embedding_update
from autotm.kernels.tiling import PARALLEL_BYTES
from autotm.model.graph import OpClass
from compiled_kernels import Guarded, call, compiled, kernel_of

RATE = np.float32(0.25)
"""A power of two: the product is exact, so that a fused multiply-add and two operations round alike."""
# Rows and width of the table, indices of each lookup.
TABLES = [(10, 16, [7]), (3, 16, [40]), (5, 1, [9, 4]), (1, 33, [6]), (50, 67, [1, 80, 3]), (7, 512, [20, 20])]


def placeholder(shape, dtype="float32"):
    return te.placeholder(shape, dtype, name="p")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("rows", "width", "shape"), [(9, 16, (5,)), (3, 7, (4, 6)), (1, 1, (1,)), (40, 33, (2, 3, 5)), (500, 64, (3000,))]
)
def test_lookup(rows, width, shape, dtype):
    random = np.random.default_rng(0)
    table, indices = random.random((rows, width), "float32"), random.integers(rows, size=shape, dtype=dtype)
    operands = [placeholder(table.shape), placeholder(shape, dtype)]
    kernel = kernel_of([*operands, embedding(*operands)])
    assert (kernel.op, kernel.op_class, kernel.workspaces) == ("embedding", OpClass.DATA_MOVEMENT, ())
    assert ("T.parallel" in kernel.func.script()) == (4 * (2 * width + 1) * indices.size >= PARALLEL_BYTES)
    np.testing.assert_array_equal(call(kernel, [table, indices])[0], table[indices])


def update_kernel(rows: int, width: int, counts: list[int], columns: list[int], threads: int) -> ScheduledKernel:
    """The kernel for slopes that are two columns wider than what they need."""
    table = placeholder((rows, width))
    operands = []
    for count, column in zip(counts, columns, strict=True):
        operands += [placeholder((count,), "int32"), placeholder((count, width + column + 2))]
    return kernel_of([table, *operands, embedding_update(table, operands, columns, float(RATE))], threads)


def updated(table: np.ndarray, operands: list[np.ndarray], columns: list[int]) -> np.ndarray:
    """Every occurrence subtracted in turn, in float32."""
    result = table.copy()
    for indices, slope, column in zip(operands[::2], operands[1::2], columns, strict=True):
        for row, change in zip(indices, slope[:, column : column + table.shape[1]], strict=True):
            result[row] -= RATE * change
    return result


def update_in_place(kernel: ScheduledKernel, table: np.ndarray, operands: list[np.ndarray]) -> np.ndarray:
    """Run on guarded memory, the table's being the result's too."""
    memory = [Guarded(array.shape, str(array.dtype), array) for array in (table, *operands)]
    views = [tvm.runtime.from_dlpack(part.array) for part in memory]
    compiled(kernel.func)["main"](*views, views[0])
    for slot, part in enumerate(memory):
        part.check(f"operand {slot}")
    for part, array in zip(memory[1:], operands, strict=True):
        np.testing.assert_array_equal(part.array, array)
    return memory[0].array


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
    kernel = update_kernel(rows, width, counts, columns, threads=2)
    assert (kernel.op, kernel.op_class, kernel.workspaces) == ("embedding_update", OpClass.DATA_MOVEMENT, ())
    expected = updated(table, operands, columns)
    np.testing.assert_array_equal(update_in_place(kernel, table, operands), expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_rows_and_change_nothing(threads):
    counts, columns = [3000, 500], [0, 5]
    table, operands = random_operands(91, 19, counts, columns, seed=1)
    kernel = update_kernel(91, 19, counts, columns, threads)
    assert ("T.parallel" in kernel.func.script()) == (threads > 1)
    expected = updated(table, operands, columns)
    for _ in range(3):
        np.testing.assert_array_equal(update_in_place(kernel, table, operands), expected)


def test_rows_that_are_not_looked_up_are_not_written():
    table, (_, slope) = random_operands(6, 16, [4], [0])
    table[[0, 3, 5]] = np.nan
    kernel = update_kernel(6, 16, [4], [0], threads=2)
    result = update_in_place(kernel, table, [np.array([1, 4, 2, 1], "int32"), slope])
    np.testing.assert_array_equal(np.isnan(result).any(axis=1), [True, False, False, True, False, True])
