"""Schedules of one kernel on the same memory, laid out and filled as in the step."""

from __future__ import annotations

import numpy as np
import pytest
from stand_in_clock import StandInClock

from autotm import zoo
from autotm.kernels.compiler import compiled
from autotm.kernels.target import host_target
from autotm.lower.lowering import distinct_kernels, scheduled_step
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.tuning import TuningBench, agree

TARGET = host_target(2)
QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=5, kernel_s=0.001, rotation_bytes=1 << 20)


@pytest.fixture(scope="module")
def step():
    return scheduled_step(zoo.build("dlrm", {"batch": 8, "rows": 50}), "test", TARGET, 2)


def of(step, op):
    """The heaviest kernel of an operation, ready to run, and its bench."""
    item = next(item for item in distinct_kernels(step) if item.scheduled.op == op)
    return TuningBench(step.graph, item.example, QUICK), (item.scheduled, compiled(item.scheduled, TARGET))


@pytest.mark.parametrize("op", ["matmul", "matmul_tn", "sgd_update", "embedding_update"])
def test_every_call_starts_from_the_same_inputs(step, op):
    bench, schedule = of(step, op)
    first = bench.results(schedule)
    bench.compare([schedule, schedule])
    for before, after in zip(first, bench.results(schedule), strict=True):
        np.testing.assert_array_equal(before, after)


def test_an_updated_table_has_the_memory_of_the_old_one(step):
    bench, schedule = of(step, "embedding_update")
    tables = bench.results(schedule)
    fresh = TuningBench(step.graph, bench.kernel, QUICK)
    old = [view.copy() for view in fresh._operand_views(0)[: len(tables)]]
    changed = [np.any(new != before, axis=1) for new, before in zip(tables, old, strict=True)]
    assert all(rows.any() for rows in changed), "rows that were looked up"
    assert any(not rows.all() for rows in changed), "the others were neither written nor scrap"
    assert all(np.isfinite(table).all() for table in tables)


def test_indices_go_everywhere_in_a_table(step):
    bench, _ = of(step, "embedding_update")
    names = [operand.tensor for operand in bench.kernel.inputs]
    limits = {name: step.graph.by_name[name].initial for name in names}
    views = zip(names, bench._operand_views(0), strict=False)
    drawn = [(view, limits[name].scale) for name, view in views if view.dtype.kind == "i"]
    assert drawn
    assert all(view.min() >= 0 and view.max() < limit for view, limit in drawn)
    assert any(view.max() > 1 for view, _ in drawn)


@pytest.fixture
def stand_in(monkeypatch):
    """A clock by which kernels take no time, but for what `Slowed` adds."""
    return StandInClock().put_into(monkeypatch, "profile.kernel_timing", "profile.tuning")


def test_times_come_in_the_order_of_the_schedules(step, stand_in):
    bench, schedule = of(step, "matmul")
    slow = (schedule[0], Slowed(schedule[1], stand_in))
    assert [timing.min_ns for timing in bench.compare([schedule, slow, schedule])] == [0, 2_000_000, 0]
    assert bench.seconds(slow, limit_s=1.0) == 0.002


class Slowed:
    """A kernel that takes two milliseconds longer."""

    def __init__(self, module, stand_in):
        self._function = module["main"]
        self._stand_in = stand_in
        self.calls = 0

    def __getitem__(self, _):
        def call(*operands):
            self.calls += 1
            self._stand_in.advance(2e6)
            self._function(*operands)

        return call


def test_a_hopeless_schedule_is_called_once(step, stand_in):
    bench, schedule = of(step, "matmul")
    slowed = Slowed(schedule[1], stand_in)
    assert bench.seconds((schedule[0], slowed), limit_s=1e-6) == 0.002
    assert slowed.calls == 1


def test_results_of_other_code_do_not_agree(step):
    bench, schedule = of(step, "matmul")
    expected = bench.results(schedule)
    assert agree(bench.results(schedule), expected)
    assert not agree([np.nextafter(expected[0], 0) * np.float32(1.001)], expected)
