"""Tuning a step: one real search, small; and what needs none."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_step
import tvm
from compiled_kernels import call
from tvm.s_tir import Schedule

from autotm import zoo
from autotm.kernels.compiler import copy_of, identity, to_json
from autotm.kernels.target import host_target
from autotm.kernels.tir import top_blocks
from autotm.lower.lowering import distinct_kernels, scheduled_step
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.profile import Timing
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.profiler import timing_context
from autotm.profile.store import Entry, KernelStore, StoreKey, Where
from autotm.profile.tuning import TuneOptions, coverage, least_gain, matching, table, tune_kernels

QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=20, kernel_s=0.01, rotation_bytes=100_000)
MACHINE = small_step.machine()
TARGET = host_target(1)


def step(tuned=None):
    return scheduled_step(zoo.build("mlp", {"batch": 4, "width": 24}), "test", TARGET, 1, tuned or {})


def test_the_gain_must_show_in_minimum_and_median() -> None:
    assert least_gain(Timing(90, 100, 0, 0, 9), Timing(100, 300, 0, 0, 9)) == (90, 100)
    assert least_gain(Timing(50, 100, 0, 0, 9), Timing(100, 110, 0, 0, 9)) == (100, 110)


def test_a_pattern_that_matches_nothing_names_what_there_is() -> None:
    kernels = distinct_kernels(step())
    assert {item.scheduled.op for item in matching(kernels, "matmul*")} == {"matmul", "matmul_nt", "matmul_tn"}
    with pytest.raises(BadInputError, match=r"conv\*.*softmax"):
        matching(kernels, "conv*")


def test_missing_packages_are_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with KernelStore(tmp_path / "kernels.sqlite") as store, pytest.raises(AutotmError, match="make setup-tune"):
        tune_kernels(step(), TARGET, MACHINE, store.schedules, TuneOptions(), QUICK)


def test_the_list_tells_timed_from_tuned(tmp_path: Path) -> None:
    kernels = distinct_kernels(step())
    timed, tuned = kernels[1], kernels[2]
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        key = StoreKey(timing_context(MACHINE), identity(timed.scheduled.func, TARGET), "default", "DDD", 0)
        store.put({key: Timing(1, 1, 1, 1, 1)})
        entry = Entry(tuned.scheduled.op, None, identity(tuned.scheduled.func, TARGET), None, 1000, 4)
        store.schedules.put(tuned.workload, Where.of(MACHINE, TARGET), entry)
        store.schedules.put(kernels[3].workload, Where.of(MACHINE, TARGET), replace(entry, own_identity="older"))
        (softmax,) = matching(kernels, "log_softmax")
        found = replace(
            entry, trace=parallel_rows(softmax), tuned_ns=1, own_identity=identity(softmax.scheduled.func, TARGET)
        )
        store.schedules.put(softmax.workload, Where.of(MACHINE, TARGET), found)
        rows = coverage(step(), TARGET, MACHINE, store, 0.03, None)
    assert [row.is_timed for row in rows] == [number == 1 for number in range(len(kernels))]
    assert [row.is_tuned for row in rows] == [number == 2 or item is softmax for number, item in enumerate(kernels)]
    assert [row.op for row in rows if row.is_taken] == ["log_softmax"]
    assert sum(row.flop_share for row in rows) == pytest.approx(1)
    text = table(rows).splitlines()
    assert len(text) == len(kernels) + 1
    assert text[0].split() == ["op", "shapes", "calls", "FLOPs", "timing", "tuned"]
    assert text[2].split()[-2:] == ["yes", "-"]
    assert [line.split()[0] for line in text if line.endswith("own is faster")] == [tuned.scheduled.op]
    assert [line.split()[0] for line in text if line.endswith("taken")] == ["log_softmax"]


@pytest.mark.slow
def test_a_search_is_stored_used_and_not_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if importlib.util.find_spec("xgboost") is None:
        message = "NOT TESTED: the search for schedules; xgboost is not installed (make setup-tune)"
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)
    own, place = step(), Where.of(MACHINE, TARGET)
    options = TuneOptions(trials=4, kernels="matmul_nt")
    with KernelStore(tmp_path / "kernels.sqlite") as store, caplog.at_level(logging.INFO):
        report = tune_kernels(own, TARGET, MACHINE, store.schedules, options, QUICK)
        entries = store.schedules.here(place)
        assert tune_kernels(own, TARGET, MACHINE, store.schedules, options, QUICK) == report, (
            "nothing is searched again"
        )
        anyhow = store.schedules.usable(place, min_gain=-0.999)
    assert "2 distinct kernels, 2 of them tuned before" in caplog.text
    assert {kernel.op for kernel in report.kernels} == {"matmul_nt"}
    assert len(entries) == len(report.kernels) == 2
    assert set(anyhow) == set(entries), "both searches found a schedule that computes the same"
    draws = np.random.default_rng(0)
    taken = {item.workload: item.scheduled for item in distinct_kernels(step(anyhow))}
    for item in matching(distinct_kernels(own), "matmul_nt"):
        assert identity(taken[item.workload].func, TARGET) != identity(item.scheduled.func, TARGET)
        inputs = [draws.standard_normal(operand.shape, "float32") for operand in item.example.inputs]
        (found,), (expected,) = call(taken[item.workload], inputs), call(item.scheduled, inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def parallel_rows(item) -> str:
    """Every block's outermost loop in parallel, as a search would record it."""
    schedule = Schedule(tvm.IRModule({"main": copy_of(item.function)}))
    for block in top_blocks(schedule):
        schedule.parallel(schedule.get_loops(block)[0])
    return to_json(schedule.trace)


@pytest.mark.parametrize("origin", ["another processor", "beside an older schedule of ours"])
def test_a_known_schedule_is_measured_here_before_anything_is_searched(
    origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # no search is reached
    own, place = step(), Where.of(MACHINE, TARGET)
    (item,) = matching(distinct_kernels(own), "log_softmax")
    is_foreign = origin == "another processor"
    entry = Entry("log_softmax", parallel_rows(item), "older", 1, 1000, 64)
    with KernelStore(tmp_path / "kernels.sqlite") as store, caplog.at_level(logging.INFO):
        store.schedules.put(item.workload, replace(place, cpu="other") if is_foreign else place, entry)
        options = TuneOptions(min_gain=-0.999, kernels="log_softmax")
        report = tune_kernels(own, TARGET, MACHINE, store.schedules, options, QUICK)
        found = store.schedules.here(place)[item.workload]
    assert found.own_identity == identity(item.scheduled.func, TARGET)
    assert (found.trace, found.trials) == (entry.trace, 64)
    assert found.tuned_ns not in (None, 1), "it was measured"
    assert [kernel.chosen for kernel in report.kernels] == ["tuned"]
