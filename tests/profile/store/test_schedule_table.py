"""Tuned schedules in the store: kept by target, threads and version, used where they gain enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import small_step

from autotm.model.kernel_studies import TunedSchedule
from autotm.profile.store import Entry, KernelStore, ScheduleTable, Where

HERE = Where("llvm -mcpu=x", 2, "this processor", "0.27")
ENTRY = Entry("matmul", "[[],[]]", "own", 900, 1000, 64)
NOTHING = Entry("matmul", None, "own", None, 1000, 64)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ScheduleTable]:
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        yield store.schedules


def test_what_was_put_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "kernels.sqlite"
    with KernelStore(path) as store:
        store.schedules.put("work", HERE, ENTRY)
        store.schedules.put("other", HERE, NOTHING)
    with KernelStore(path) as store:
        assert store.schedules.here(HERE) == {"work": ENTRY, "other": NOTHING}


@pytest.mark.parametrize("change", [{"target": "y"}, {"threads": 3}, {"tvm": "y"}])
def test_another_target_thread_count_or_tvm_is_another_entry(table: ScheduleTable, change: dict[str, object]) -> None:
    table.put("work", HERE, ENTRY)
    other = replace(HERE, **change)
    assert table.here(other) == {}
    assert table.usable(other, 0.0) == {}


@pytest.mark.parametrize(("min_gain", "is_used"), [(0.0, True), (0.03, True), (0.11, True), (0.12, False)])
def test_a_schedule_is_used_only_where_it_gains_enough(table: ScheduleTable, min_gain: float, is_used: bool) -> None:
    table.put("work", HERE, ENTRY)
    assert table.usable(HERE, min_gain) == ({"work": TunedSchedule("[[],[]]", "own")} if is_used else {})


@pytest.mark.parametrize("entry", [NOTHING, replace(ENTRY, tuned_ns=1000)])
def test_what_gains_nothing_is_never_used(table: ScheduleTable, entry: Entry) -> None:
    table.put("work", HERE, entry)
    assert table.usable(HERE, 0.0) == {}


def test_a_schedule_of_another_processor_with_the_same_target_serves(table: ScheduleTable) -> None:
    table.put("work", replace(HERE, cpu="a"), replace(ENTRY, trace="[1]", tuned_ns=800))
    table.put("work", replace(HERE, cpu="b"), replace(ENTRY, trace="[2]", tuned_ns=600))
    table.put("work", replace(HERE, cpu="c"), replace(ENTRY, trace="[3]", tuned_ns=700))
    assert table.here(HERE) == {}
    assert table.usable(HERE, 0.03) == {"work": TunedSchedule("[2]", "own")}, "the one that gained most"


def test_what_was_measured_here_decides(table: ScheduleTable) -> None:
    table.put("work", replace(HERE, cpu="a"), replace(ENTRY, tuned_ns=100))
    table.put("work", HERE, replace(ENTRY, tuned_ns=1100))
    assert table.usable(HERE, 0.03) == {}


def test_a_schedule_and_its_time_belong_together() -> None:
    with pytest.raises(ValueError, match="belong together"):
        replace(ENTRY, trace=None)


def test_where_names_this_machine() -> None:
    found = Where.of(small_step.machine(), "llvm")
    assert (found.target, found.threads) == ("llvm", 1)
    assert found.tvm.startswith("0.")


def test_a_store_without_the_table_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "kernels.sqlite"
    with KernelStore(path) as store:
        store.connection.execute("DROP TABLE schedules")
    with KernelStore(path) as store:
        assert store.schedules.here(HERE) == {}
    assert [file.name for file in tmp_path.iterdir()] == ["kernels.sqlite"], "the old store was kept"
