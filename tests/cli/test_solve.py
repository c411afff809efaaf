"""`autotm solve` and `autotm potential`: every outcome of a solve reaches the user as an exit status and a message."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest
from random_graphs import Case, training_step_case

from autotm.cli.main import main
from autotm.model.files import load, save
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Status
from autotm.model.profile import write_profile
from autotm.solve import highs
from autotm.solve.highs import Outcome, Session, Solved

ROOT = Path(__file__).parents[2]
FOLDER = "laptop-1t"


@pytest.fixture(scope="module")
def case() -> Case:
    return training_step_case(layers=4, branches=3)


@pytest.fixture
def results(case: Case, tmp_path: Path) -> Path:
    """What profiling and calibration would have left behind for a network called mlp."""
    network = tmp_path / FOLDER / "tiny" / "mlp"
    save(network / "graph.json", "graph", case.graph, {})
    save(tmp_path / FOLDER / "links.json", "links", case.links, {})
    write_profile(network / "profile.parquet", case.profile)
    return tmp_path


def run(results: Path, *arguments: str) -> int:
    config = ("--config", str(ROOT / "config" / "config.yaml"), "--results", str(results))
    return main([*arguments, *config, "--scale", "tiny", "--threads", "1"])


def plan_at(results: Path, optimizer: str, limit: str) -> Plan:
    path = results / FOLDER / "tiny" / "mlp" / optimizer / Limit.parse(limit).slug / "plan.json"
    return load(path, "plan", Plan)


def test_a_plan_within_the_gap(results: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert run(results, "solve", "mlp", "synchronous", "4:1") == 0
    assert "synchronous, limit 4:1: " in caplog.text
    assert "% (asked: 1 %) of the best" in caplog.text
    assert plan_at(results, "synchronous", "4:1").status in {Status.OPTIMAL, Status.WITHIN_GAP}


def test_the_program_is_written_beside_the_plan(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "program.mps.gz"
    assert run(results, "solve", "mlp", "static", "4:1", "--write-mps", str(file)) == 0
    assert b"capacity_chain[0]" in gzip.decompress(file.read_bytes())
    assert plan_at(results, "static", "4:1").optimizer == "static"


@pytest.mark.parametrize("solved", [Solved(Outcome.STOPPED_EMPTY, None, None), Solved(Outcome.HUNG, None, None)])
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
    monkeypatch.setattr(Session, "relax", lambda *_: Solved(Outcome.STOPPED_EMPTY, None, None))
    searched = Session.search
    monkeypatch.setattr(
        Session,
        "search",
        lambda session, *rest, **named: Solved(
            Outcome.STOPPED_WITH_SOLUTION, searched(session, *rest, **named).objective, None
        ),
    )
    assert run(results, "solve", "mlp", "synchronous", "4:1") == 0
    assert "raise solve.time_limit_s" in caplog.text
    plan = plan_at(results, "synchronous", "4:1")
    assert plan.status is Status.TIME_LIMIT
    monkeypatch.setattr(Session, "search", lambda *_, **__: Solved(Outcome.STOPPED_EMPTY, None, None))
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


def test_an_interrupt_is_one_message(
    results: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(highs, "_run_watched", interrupted)
    assert run(results, "solve", "mlp", "synchronous", "4:1") == 130
    assert "interrupted" in caplog.text
    assert not list(results.rglob("plan.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("solve", "mlp", "statik", "4:1"), "unknown optimizer 'statik'; did you mean 'static'?"),
        (("solve", "mlp", "static", "four"), "'four' is not a limit"),
        (("solve", "mlp", "all-slow", "1:0", "--write-mps", "x.mps"), "needs no integer program"),
    ],
)
def test_a_fault_is_one_message(
    arguments: tuple[str, ...], message: str, results: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(results, *arguments) == 1
    assert message in caplog.text


def test_what_lies_beyond_placement_is_told(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results, "solve", "mlp", "synchronous", "4:1") == 0
    assert run(results, "potential", "mlp", "4:1") == 0
    told = capsys.readouterr().out
    assert "synchronous 4:1" in told
    assert "recomputing could save at most" in told
    assert run(results, "potential", "mlp", "8:1") == 1, "no such plan"
