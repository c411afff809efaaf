"""The words that generated kernels are written with."""

from __future__ import annotations

import numpy as np
from compiled_kernels import call
from tvm import s_tir, te, tirx

from autotm.kernels import tir
from autotm.kernels.schedules.dispatch import ScheduledKernel
from autotm.kernels.tir import Code, replace_body
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
