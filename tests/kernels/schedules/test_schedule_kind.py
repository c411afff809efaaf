"""A kernel says where its schedule comes from, above all where none of ours worked."""

from __future__ import annotations

import pytest
import tvm
from compiled_kernels import TARGET
from tvm import te

from autotm.kernels.compiler import KernelFacts
from autotm.kernels.contractions import matmul
from autotm.kernels.schedules import dispatch
from autotm.kernels.schedules.dispatch import schedule
from autotm.model.graph import SCHEDULES_KEY, ScheduleKind, schedules_in


def functions() -> tuple[tvm.tirx.PrimFunc, tvm.tirx.PrimFunc]:
    """A product of matrices, and a map."""
    x, w = te.placeholder((8, 16), "float32", "x"), te.placeholder((16, 32), "float32", "w")
    doubled = te.compute(x.shape, lambda i, j: x[i, j] * tvm.tirx.const(2, "float32"), name="doubled")
    return te.create_prim_func([x, w, matmul(x, w)]), te.create_prim_func([x, doubled])


def test_generated_code_and_general_rules_are_told_apart() -> None:
    assert [schedule(func, TARGET, 2).kind for func in functions()] == [ScheduleKind.GENERATED, ScheduleKind.GENERAL]


def test_what_no_schedule_works_for_is_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(dispatch, "schedule_blocks", fails)
    monkeypatch.setitem(dispatch._GENERATED, "matmul", fails)
    kernels = [schedule(func, TARGET, 2) for func in functions()]
    assert {kernel.kind for kernel in kernels} == {ScheduleKind.AS_WRITTEN}
    facts = KernelFacts.of(kernels[0], TARGET)
    assert KernelFacts.from_json(facts.to_json()) == facts


def test_files_from_before_name_no_kinds() -> None:
    assert schedules_in({}) == {}
    assert schedules_in({SCHEDULES_KEY: {"f": "as written"}}) == {"f": ScheduleKind.AS_WRITTEN}
