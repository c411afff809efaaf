"""Every habit of HiGHS that could turn into a wrong plan, and the program that it is given as a file."""

from __future__ import annotations

import gzip
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import highspy
import pyomo.environ as pyo
import pytest
from random_graphs import exact_case, random_case

from autotm.model.errors import AutotmError, BadInputError, InfeasibleLimitError
from autotm.model.limit import Limit
from autotm.solve import highs
from autotm.solve.highs import Outcome, Session, Solved, outcome, require_solved, set_option
from autotm.solve.options import SolveOptions
from autotm.solve.placing import ProgramSize, export, solve

LONG_S = 120.0
"""No solver here runs on for so long after it was told to stop."""


def knapsacks(items: int = 60, rows: int = 40, seed: int = 1) -> pyo.ConcreteModel:
    """Hard enough not to be solved in milliseconds."""
    draw = random.Random(seed)
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(items), domain=pyo.Binary)
    model.rows = pyo.ConstraintList()
    for _ in range(rows):
        weights = [draw.randint(10, 999) for _ in range(items)]
        model.rows.add(sum(weight * model.x[i] for i, weight in enumerate(weights)) <= sum(weights) / 2)
    model.value = pyo.Objective(expr=-sum(draw.randint(10, 999) * model.x[i] for i in range(items)))
    return model


def test_an_accepted_gap_is_not_mistaken_for_optimality() -> None:
    model = knapsacks()
    solved = Session(model, seed=0).search(30.0, 0.5, warm=False)
    assert solved.outcome is Outcome.CONVERGED
    assert solved.bound < solved.objective
    assert sum(1 for variable in model.x.values() if round(variable.value) not in {0, 1}) == 0


def test_a_relaxation_after_a_search_has_its_own_time() -> None:
    """HiGHS counts an instance's relaxations from its first run: the limit that it gets is later by as much."""
    session = Session(knapsacks(300, 200), seed=0)
    session.search(0.2, 0.0, warm=False)
    searched_s = session._solver.getRunTime()
    assert session.relax(1e4).outcome is Outcome.CONVERGED
    assert session._solver.getOptionValue("time_limit")[1] == searched_s + 1e4 > 1e4


def test_time_limit_without_a_solution() -> None:
    solved = Session(knapsacks(300, 200), seed=0).search(1e-3, 0.0, warm=False)
    assert solved == Solved(Outcome.STOPPED, None, solved.bound)
    assert not solved.has_solution


def test_time_limit_with_a_solution_keeps_it() -> None:
    model = knapsacks(300, 200)
    for variable in model.x.values():
        variable.set_value(0)
    model.x[0].set_value(1)
    solved = Session(model, seed=0).search(0.3, 0.0, warm=True)
    assert solved.outcome is Outcome.STOPPED
    assert solved.objective <= 0
    assert sum(variable.value for variable in model.x.values()) >= 1
    assert solved.bound is None or solved.bound <= solved.objective


def test_a_start_is_used() -> None:
    model = knapsacks(30, 20)
    best = Session(model, seed=0).search(60.0, 0.0, warm=False)
    stopped = Session(model, seed=0).search(1e-3, 0.0, warm=True)
    assert stopped.objective == pytest.approx(best.objective)


def test_infeasible_is_told_from_time_limit() -> None:
    model = knapsacks(10, 5)
    model.rows.add(sum(model.x.values()) >= 10)
    solved = Session(model, seed=0).search(30.0, 0.0, warm=False)
    assert solved.outcome is Outcome.INFEASIBLE
    with pytest.raises(AutotmError, match="infeasible"):
        require_solved(solved)


def test_relaxation_and_search_of_one_session_differ() -> None:
    session = Session(knapsacks(20, 10), seed=0)
    relaxed = session.relax(30.0)
    assert relaxed == Solved(Outcome.CONVERGED, relaxed.objective, relaxed.objective)
    assert relaxed.objective < session.search(60.0, 0.0, warm=False).objective - 1
    assert session.relax(30.0).objective == pytest.approx(relaxed.objective)


def test_held_variables_keep_their_values_for_a_while() -> None:
    model = knapsacks(20, 10)
    session = Session(model, seed=0)
    free = session.search(60.0, 0.0, warm=False)
    taken = [variable for variable in model.x.values() if round(variable.value)]
    for variable in taken:
        variable.set_value(0)
    with session.held(taken):
        assert session.search(60.0, 0.0, warm=False).objective > free.objective
        assert not any(round(variable.value) for variable in taken)
    assert session.search(60.0, 0.0, warm=False).objective == pytest.approx(free.objective)


@pytest.mark.parametrize(
    ("name", "value"), [("mip_relative_gap", 0.1), ("mip_rel_gap", "small"), ("threads", 1.5), ("mip_rel_gap", -1.0)]
)
def test_options_are_never_ignored(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="refuses"):
        set_option(highspy.Highs(), name, value)


@pytest.mark.parametrize(
    ("expected", "statuses"),
    [
        (Outcome.CONVERGED, ["kOptimal", "kObjectiveTarget"]),
        (Outcome.STOPPED, ["kTimeLimit", "kIterationLimit", "kHighsInterrupt", "kUnknown"]),
        (Outcome.INFEASIBLE, ["kInfeasible", "kUnboundedOrInfeasible"]),
        (Outcome.FAILED, ["kUnbounded", "kSolveError"]),
    ],
)
def test_status_map(expected: Outcome, statuses: list[str]) -> None:
    assert {outcome(getattr(highspy.HighsModelStatus, status)) for status in statuses} == {expected}


class _Stubborn:
    """A solver that runs on until it is cancelled, or (`deaf`) whatever happens."""

    def __init__(self, *, deaf: bool) -> None:
        self.deaf = deaf
        self.HandleUserInterrupt = False
        self.cancelled = threading.Event()
        self.released = threading.Event()

    def run(self) -> None:
        (self.released if self.deaf else self.cancelled).wait(LONG_S)

    def cancelSolve(self) -> None:  # noqa: N802 - highspy's name
        self.cancelled.set()


def test_watchdog_cancels_an_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs, "_GRACE_S", LONG_S)
    solver = _Stubborn(deaf=False)
    highs._run_watched(solver, 0.1 - LONG_S)
    assert solver.cancelled.is_set()
    assert solver.HandleUserInterrupt


def test_watchdog_leaves_a_deaf_solver_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs, "_GRACE_S", 0.1)
    solver = _Stubborn(deaf=True)
    with pytest.raises(highs._Hung):
        highs._run_watched(solver, 0.1)
    solver.released.set()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_the_solver_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    solver, join = _Stubborn(deaf=False), threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if not solver.cancelled.is_set():
            os.kill(os.getpid(), signal.SIGINT)
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        highs._run_watched(solver, LONG_S)
    assert solver.cancelled.is_set()


def test_cancelling_reaches_highs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs, "_GRACE_S", LONG_S)
    session = Session(knapsacks(300, 200), seed=0)
    original = highs._run_watched
    monkeypatch.setattr(highs, "_run_watched", lambda solver, _: original(solver, 0.2 - LONG_S))
    assert session.search(1e4, 0.0, warm=False).outcome is Outcome.STOPPED


EXACT = SolveOptions(gap=0.0, additive_tolerance=0.0)


def optimum_of(path: Path) -> float:
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.readModel(str(path))
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value)


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@pytest.mark.parametrize("seed", range(6))
def test_the_file_has_the_optimum(seed: int, optimizer: str, tmp_path: Path) -> None:
    case = exact_case(seed, kernels=6) if seed % 2 else random_case(seed, kernels=12)
    path = tmp_path / "program.mps.gz"
    size = export(*case, optimizer, Limit(2, 1), EXACT, path)
    plan = solve(*case, optimizer, Limit(2, 1), EXACT)
    assert optimum_of(path) * size.us_per_unit == pytest.approx(plan.objective_us, rel=1e-6)
    assert size == export(*case, optimizer, Limit(2, 1), EXACT)


def test_names_are_those_of_the_formulation(tmp_path: Path) -> None:
    case, path = random_case(0, kernels=12), tmp_path / "program.mps.gz"
    size = export(*case, "synchronous", Limit(4, 1), EXACT, path)
    text = gzip.decompress(path.read_bytes()).decode()
    rows = text.split("ROWS\n")[1].split("COLUMNS\n")[0].splitlines()
    assert len(rows) == size.rows + 1, "and one for the objective"
    assert any("capacity_chain[0]" in row for row in rows)
    assert any("born_fast_once_left_never_returns[" in row for row in rows)
    assert "u[0]" in text


def test_where_nothing_is_left_to_solve(tmp_path: Path) -> None:
    case = random_case(0)
    for optimizer, limit in (("synchronous", Limit(0, 1)), ("all-slow", Limit(1, 0))):
        assert export(*case, optimizer, limit) == ProgramSize(0, 0, 0, 0.0)
        with pytest.raises(BadInputError, match="needs no integer program"):
            export(*case, optimizer, limit, path=tmp_path / "program.mps")
    assert not list(tmp_path.iterdir())


def test_an_infeasible_limit_is_refused(tmp_path: Path) -> None:
    case, options = random_case(0, kernels=12), SolveOptions(fast_operands_only=True)
    path = tmp_path / "program.mps"
    with pytest.raises(InfeasibleLimitError, match="smallest feasible limit"):
        export(*case, "synchronous", Limit(size_bytes=64), options, path)
    assert not path.exists()
