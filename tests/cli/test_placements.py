"""`autotm solve`, `potential`, `sweep` and `profile` on a step that is profiled already, and on the tiny MLP."""

from __future__ import annotations

import gzip
import json
import logging
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import small_step
from random_graphs import Case, training_step_case
from tiny_study import network_in, run, save_profiled

from autotm.model.files import load, save
from autotm.model.limit import Limit
from autotm.model.links import MachineRates
from autotm.model.plan import Plan, Status
from autotm.model.program import Program
from autotm.model.record import Record
from autotm.solve.highs import Outcome, Session, Solved
from autotm.stages.solve import SERIES

# `autotm solve` and `autotm potential`: every outcome of a solve reaches the user as an exit status and a message.


@pytest.fixture(scope="module")
def case() -> Case:
    return training_step_case(layers=4, branches=3)


@pytest.fixture
def results(case: Case, tmp_path: Path) -> Path:
    save_profiled(tmp_path, case)
    return tmp_path


def plan_at(results: Path, optimizer: str, limit: str) -> Plan:
    return load(network_in(results) / optimizer / Limit.parse(limit).slug / "plan.json", "plan", Plan)


def test_a_plan_within_the_gap_with_its_program_beside_it(
    results: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "program.mps.gz"
    with caplog.at_level(logging.INFO):
        assert run(results, "solve", "mlp", "synchronous", "4:1", "--write-mps", str(file)) == 0
    assert "synchronous, limit 4:1: " in caplog.text
    assert "% (asked: 1 %) of the best" in caplog.text
    assert plan_at(results, "synchronous", "4:1").status in {Status.OPTIMAL, Status.WITHIN_GAP}
    assert b"capacity_chain[0]" in gzip.decompress(file.read_bytes())


@pytest.mark.parametrize("solved", [Solved(Outcome.STOPPED, None, None), Solved(Outcome.HUNG, None, None)])
def test_a_search_that_ends_with_nothing_leaves_a_legal_plan(
    solved: Solved, results: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Session, "relax", lambda *_: solved)
    monkeypatch.setattr(Session, "search", lambda *_, **__: solved)
    assert run(results, "solve", "mlp", "synchronous", "4:1") == 0
    assert "the time limit of 60 s ended the search at a gap of " in caplog.text
    assert "raise solve.time_limit_s" in caplog.text
    assert plan_at(results, "synchronous", "4:1").status is Status.TIME_LIMIT


def test_a_search_that_is_stopped_with_a_solution_keeps_the_better_plan(
    results: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Session, "relax", lambda *_: Solved(Outcome.STOPPED, None, None))
    searched = Session.search
    monkeypatch.setattr(
        Session,
        "search",
        lambda session, *rest, **named: Solved(Outcome.STOPPED, searched(session, *rest, **named).objective, None),
    )
    assert run(results, "solve", "mlp", "synchronous", "4:1") == 0
    assert "raise solve.time_limit_s" in caplog.text
    plan = plan_at(results, "synchronous", "4:1")
    assert plan.status is Status.TIME_LIMIT
    monkeypatch.setattr(Session, "search", lambda *_, **__: Solved(Outcome.STOPPED, None, None))
    assert run(results, "solve", "mlp", "synchronous", "4:1") == 0
    assert plan.objective_us <= plan_at(results, "synchronous", "4:1").objective_us


@pytest.mark.parametrize("outcome", [Outcome.INFEASIBLE, Outcome.FAILED])
def test_what_the_solver_cannot_mean_is_reported_as_its_fault(
    outcome: Outcome, results: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Session, "relax", lambda *_: Solved(outcome, None, None))
    assert run(results, "solve", "mlp", "synchronous", "4:1") == 1
    assert f"HiGHS ended with '{outcome}' on a placement that has a solution" in caplog.text
    assert not list(results.rglob("plan.json"))


def test_an_infeasible_limit_names_the_smallest_feasible_one(
    case: Case, results: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(results, "solve", "mlp", "all-fast", "4:1") == 1
    assert f"the smallest feasible limit is {case.graph.peak_live_bytes} bytes" in caplog.text
    assert not list(results.rglob("plan.json"))


def test_what_lies_beyond_placement_is_told(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results, "solve", "mlp", "synchronous", "4:1") == 0
    assert run(results, "potential", "mlp", "4:1") == 0
    output = capsys.readouterr().out
    assert "synchronous 4:1" in output
    assert "recomputing could save at most" in output
    assert run(results, "potential", "mlp", "8:1") == 1, "no such plan"


# `autotm sweep`: a table, an answer, files; what cannot be kept is a row, and what is missing is made.


def test_a_sweep_writes_the_files_of_the_pipeline(results: Path) -> None:
    limits = ("1:0", "4:1", "1:1", "0:1")
    assert run(results, "sweep", "mlp", "static", "--limits", ",".join(limits)) == 0
    folders = [network_in(results) / "static" / Limit.parse(limit).slug for limit in limits]
    plans = [load(folder / "plan.json", "plan", Plan) for folder in folders]
    assert [str(plan.limit) for plan in plans] == list(limits)
    assert sorted((plan.objective_us for plan in plans), reverse=True) == [plan.objective_us for plan in plans]
    programs = [load(folder / "program.json", "program", Program) for folder in folders]
    assert [str(program.limit) for program in programs] == list(limits)


def test_without_limits_it_goes_from_all_fast_to_none(
    case: Case, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(results, "sweep", "mlp") == 0
    table = pd.read_csv(network_in(results) / "synchronous" / "sweep" / "sweep.csv")
    assert list(table["limit"]) == list(SERIES)
    assert list(table["dram_limit_bytes"]) == sorted(table["dram_limit_bytes"], reverse=True)
    assert table["dram_limit_bytes"].iloc[0] == case.graph.peak_live_bytes
    assert (table["bound_slowdown"] <= table["predicted_slowdown"]).all()
    output = capsys.readouterr().out
    assert output.startswith("synthetic (tiny), synchronous, on laptop-1t, 1 thread; slow memory EMULATED")
    assert output.count("is predicted to be at most") == 3
    assert (network_in(results) / "synchronous" / "sweep" / "sweep.pdf").exists()


def test_limits_that_nothing_keeps_are_rows(
    case: Case, results: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert run(results, "sweep", "mlp", "all-fast", "--limits", "4:1,0:1", "--limits", "8:1") == 0
    smallest = f"the smallest feasible limit is {case.graph.peak_live_bytes} bytes"
    assert caplog.text.count(smallest) == 2
    output = capsys.readouterr().out
    assert output.count("impossible") == 2
    assert smallest in output
    table = pd.read_csv(network_in(results) / "all-fast" / "sweep" / "sweep.csv")
    assert list(table["limit"]) == ["0:1", "4:1", "8:1"]
    assert [path.parent.name for path in results.rglob("plan.json")] == ["0to1"]


def test_the_series_ends_where_the_optimizer_ends_and_where_no_limit_can_be_kept_there_is_no_picture(
    case: Case, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(results, "sweep", "mlp", "all-fast", "--folder", str(results / "there")) == 0
    assert list(pd.read_csv(results / "there" / "sweep.csv")["dram_limit_bytes"]) == [case.graph.peak_live_bytes]
    assert run(results, "sweep", "mlp", "all-fast", "--limits", "4:1") == 0
    assert "impossible" in capsys.readouterr().out
    assert [path.name for path in (network_in(results) / "all-fast" / "sweep").iterdir()] == ["sweep.csv"]


def test_what_is_missing_is_made_and_plans_are_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = replace(small_step.links(), rates=MachineRates(1e11, 1e10))
    save(tmp_path / "laptop-1t" / "links.json", "links", links, {})
    assert run(tmp_path, "sweep", "mlp", "--limits", "0:1,4:1", "--run") == 0
    assert (network_in(tmp_path) / "kernels.so").exists()
    record = load(network_in(tmp_path) / "synchronous" / "4to1" / "record.json", "record", Record)
    table = pd.read_csv(network_in(tmp_path) / "synchronous" / "sweep" / "sweep.csv")
    assert table["measured_runtime_s"].iloc[1] == record.actual_runtime_median_s
    assert table["bytes_moved"].iloc[1] == record.bytes_moved + record.bytes_async_moved
    assert table["pmem_alloc_bytes"].iloc[1] == record.pmem_alloc_size
    assert "(measured: " in capsys.readouterr().out


# `autotm profile` on the tiny MLP: its report, and the files of it.


def test_a_profile_ends_with_where_the_time_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = replace(small_step.links(), rates=MachineRates(1e11, 1e10))
    save(tmp_path / "laptop-1t" / "links.json", "links", links, {})
    csv = tmp_path / "report.csv"
    assert run(tmp_path, "profile", "mlp", "--csv", str(csv), "--worst", "2") == 0
    output = capsys.readouterr().out
    assert output.startswith("mlp (tiny) on laptop-1t: 21 kernels, ")
    assert "multiply-adds in registers 100 GF/s, copies 10 GB/s" in output
    assert "No kernel was compiled nearly as written." in output
    assert run(tmp_path, "profile", "mlp", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in report["kernel_report"]["by_schedule"]} == {"generated", "general"}
    assert report["provenance"]["threads"] == 1
    assert len(pd.read_csv(csv)) == len(report["kernel_report"]["kernels"])
