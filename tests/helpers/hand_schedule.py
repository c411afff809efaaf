"""A function with a schedule made by hand, recorded as a search would record it."""

from __future__ import annotations

import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from autotm.kernels.compiler import copy_of, to_json


def matmul_relu(rows: int = 12, depth: int = 40, columns: int = 48) -> tirx.PrimFunc:
    """max(a b, 0), unscheduled; the product is a buffer of its own."""
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((depth, columns), name="b")
    k = te.reduce_axis((0, depth), "k")
    product = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    relu = te.compute(product.shape, lambda i, j: te.max(product[i, j], tirx.const(0, "float32")), name="relu")
    return te.create_prim_func([a, b, relu])


def by_hand(func: tirx.PrimFunc, rows_at_once: int = 4) -> str:
    """Rows in parallel pieces, the product computed a piece at a time; as the steps' JSON."""
    schedule = Schedule(tvm.IRModule({"main": copy_of(func)}))
    relu, matmul = schedule.get_sblock("relu"), schedule.get_sblock("matmul")
    outer, _ = schedule.split(schedule.get_loops(relu)[0], [None, rows_at_once])
    schedule.parallel(outer)
    schedule.compute_at(matmul, outer)
    return to_json(schedule.trace)
