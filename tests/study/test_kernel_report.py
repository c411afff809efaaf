"""The report on a step's kernels: sums, shares and best times of hand-made profiles, and what it says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import small_step

from autotm.model.files import hash_of
from autotm.model.graph import Graph, Kernel, OpClass, ScheduleKind, all_fast
from autotm.model.links import MachineRates
from autotm.model.profile import Profile, Timing
from autotm.study.columns import MEANINGS
from autotm.study.kernel_report import (
    KernelReport,
    KernelTime,
    moved_bytes,
    report_kernels,
    report_text,
    shapes,
    write_kernel_csv,
)

STEP = small_step.graph(batch=32, width=64)
RATES = MachineRates(flop_per_s=1e9, copy_bytes_per_s=1e9)
"""A multiply-add takes 2 ns, a byte 1 ns."""
ROWS, SQUARE = 32 * 64 * 4, 64 * 64 * 4
GENERATED = {kernel.function: ScheduleKind.GENERATED for kernel in STEP.kernels}


def profile(times_us: dict[str, float], step: Graph = STEP, disturbed: str = "") -> Profile:
    """A profile with these times by operation, 10 us for the others."""

    def timing(kernel: Kernel) -> Timing:
        time_ns = round(1e3 * times_us.get(kernel.op, 10.0))
        return Timing(time_ns, time_ns, time_ns, time_ns, 9, disturbed=kernel.op == disturbed)

    timings = {(kernel.identity, "default", all_fast(kernel)): timing(kernel) for kernel in step.kernels}
    return Profile(hash_of(step), timings, {"machine": "desk-1t", "threads": 1, "cpu_model": "a processor"})


def report(times_us: dict[str, float], **schedules: ScheduleKind) -> KernelReport:
    return report_kernels(STEP, profile(times_us), RATES, GENERATED | schedules)


def of(analysis: KernelReport, function: str) -> KernelTime:
    return next(kernel for kernel in analysis.kernels if kernel.function == function)


def test_times_add_up_and_calls_of_one_function_are_one_kernel(tmp_path: Path) -> None:
    analysis = report({"relu": 30.0})
    write_kernel_csv(tmp_path / "kernels.csv", analysis, profile({}).provenance)
    table = pd.read_csv(tmp_path / "kernels.csv")
    assert set(table) <= set(MEANINGS)
    assert list(table["function"]) == [kernel.function for kernel in analysis.kernels]
    assert set(table["machine"]) == {"desk-1t"}
    assert table["time_us"].sum() == analysis.time_us == 8 * 10 + 2 * 30
    relu = of(analysis, "relu")
    assert (relu.calls, relu.time_us, relu.share) == (2, 60.0, 60 / 140)
    for kernels in (analysis.kernels, analysis.by_class, analysis.by_op, analysis.by_schedule):
        assert sum(kernel.calls for kernel in kernels) == len(STEP.kernels)
        assert sum(kernel.time_us for kernel in kernels) == pytest.approx(analysis.time_us)
        assert sum(kernel.share for kernel in kernels) == pytest.approx(1.0)
        assert [kernel.time_us for kernel in kernels] == sorted((k.time_us for k in kernels), reverse=True)


def test_a_contraction_is_set_by_multiply_adds_and_a_map_by_copies() -> None:
    flops, moved = 2 * 32 * 64 * 64, 2 * ROWS + SQUARE
    analysis = report({"hidden": 2 * flops / 1e3, "relu": 4 * 2 * ROWS / 1e3})
    hidden, relu = of(analysis, "hidden"), of(analysis, "relu")
    needs = (hidden.flops, hidden.moved_bytes, hidden.best_us, hidden.set_by)
    assert needs == (flops, moved, flops / 1e3, "multiply-adds")
    assert hidden.of_best == pytest.approx(0.5)
    assert hidden.beyond_best_us == pytest.approx(flops / 1e3)
    assert (relu.flops, relu.moved_bytes, relu.set_by) == (0, 2 * 2 * ROWS, "copies")
    assert relu.of_best == pytest.approx(0.25)
    quick = report_kernels(STEP, profile({}), replace(RATES, flop_per_s=1e12), GENERATED)
    assert {kernel.set_by for kernel in quick.kernels} == {"copies"}, "with quicker cores contractions are, too"


def test_groups_hold_what_their_kernels_need_against_what_the_machine_can_do() -> None:
    analysis = report({})
    groups = {group.name: group for group in analysis.by_class}
    kernels, matmul = [k for k in analysis.kernels if k.op_class is OpClass.MATMUL], groups[OpClass.MATMUL]
    assert matmul.of_multiply_adds == pytest.approx(sum(k.flops for k in kernels) / 1e3 / matmul.time_us)
    assert matmul.of_copies == pytest.approx(sum(k.moved_bytes for k in kernels) / 1e3 / matmul.time_us)
    assert matmul.of_best == pytest.approx(sum(k.best_us or 0.0 for k in kernels) / matmul.time_us)
    assert groups[OpClass.ELEMENTWISE].of_multiply_adds is None


def test_workspaces_need_not_be_moved() -> None:
    kernel = next(kernel for kernel in STEP.kernels if kernel.op == "grad_act")
    assert kernel.workspaces
    assert moved_bytes(STEP, kernel) == 3 * ROWS + SQUARE
    assert shapes(kernel) == "32x64,64x64,32x64->32x64"


def test_the_worst_kernels_are_those_that_lose_most_time_not_those_that_take_most() -> None:
    flops = 2 * 32 * 64 * 64
    analysis = report({"hidden": flops / 1e3 + 1, "relu": 100.0})
    assert of(analysis, "hidden").time_us > of(analysis, "relu").time_us
    assert analysis.worst(1)[0].function == "relu"
    assert analysis.worst(100)[-1].beyond_best_us > 0


def test_what_was_compiled_as_written_is_flagged_with_its_share() -> None:
    text = report_text(report({"loss": 110.0}, loss=ScheduleKind.AS_WRITTEN), "desk-1t")
    assert "WARNING: 1 kernels had no schedule that works" in text
    assert "they take 55.0% of the time" in text
    assert "loss_4: loss 32x64,32x64->32x64,1, 110.0 us, 55.0%" in text
    assert "WARNING" not in report_text(report({}), "desk-1t")


def test_the_text_says_what_is_measured_and_where() -> None:
    text = report_text(report({}), "desk-1t", worst=3)
    assert text.startswith("small (test) on desk-1t: 10 kernels, 9 distinct, 100.0 us a step. MEASURED")
    assert "multiply-adds in registers 1 GF/s, copies 1 GB/s" in text
    assert "No kernel takes longer than its best." in text
    slow = report_text(report({"loss": 20_000.0, "relu": 1000.0, "out": 500.0}), "desk-1t", worst=2)
    assert "22.56 ms a step" in slow
    worst = slow.split("machine needs:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in worst] == ["kernel", "loss_4", "relu_1"]
    disturbed = report_kernels(STEP, profile({"loss": 500.0}, disturbed="loss"), RATES, GENERATED)
    assert "loss_4*" in report_text(disturbed, "desk-1t")
    assert "its time is too long" in report_text(disturbed, "desk-1t")


def test_without_rates_there_are_shares_but_nothing_to_judge_by() -> None:
    analysis = report_kernels(STEP, profile({}), None, {})
    assert {kernel.best_us for kernel in analysis.kernels} == {None}
    assert {group.of_copies for group in analysis.by_op} == {None}
    text = report_text(analysis, "desk-1t")
    assert "To measure it: autotm calibrate" in text
    assert "does not say where schedules come from" in text
