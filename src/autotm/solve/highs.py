"""HiGHS behind Pyomo: the only place that knows its options, statuses and habits.

What it guards against (`docs/formulation.md` §6): option names that are unknown or values of a wrong type are ignored
silently; a time limit with an incumbent raises; "optimal" means only that the asked gap was reached; a process keeps
the thread count of its first solve; some phases look at the clock too rarely.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import highspy
import pyomo.environ as pyo
from pyomo.contrib.solver.common.results import TerminationCondition
from pyomo.contrib.solver.solvers.highs import Highs

from autotm.model.errors import AutotmError

log = logging.getLogger(__name__)

OptionValue = bool | int | float | str

Untyped: TypeAlias = Any
"""An object of highspy or Pyomo, which carry no types."""

_TOLERANCES: dict[str, OptionValue] = {
    "mip_feasibility_tolerance": 1e-9,
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
    "mip_abs_gap": 0.0,
}
_GRACE_S = 5.0
"""How long HiGHS may overrun its own time limit before it is told to stop, and then before it is left behind."""


class Outcome(StrEnum):
    """How a solve ended."""

    CONVERGED = "converged"
    STOPPED_WITH_SOLUTION = "stopped_with_solution"
    STOPPED_EMPTY = "stopped_empty"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    HUNG = "hung"


@dataclass(frozen=True)
class Solved:
    """Result of one solve in the model's units; with a solution, the model's variables hold its values."""

    outcome: Outcome
    objective: float | None
    bound: float | None

    @property
    def has_solution(self) -> bool:
        """Whether the model's variables hold a solution."""
        return self.objective is not None


class _Hung(Exception):  # noqa: N818 - never leaves this module
    pass


class _WarmHighs(Highs):  # type: ignore[misc] # Pyomo has no types
    """Pyomo's interface with checked options, a start solution and a watchdog; uses private names of Pyomo 6.10."""

    checked: Mapping[str, OptionValue]
    warm: bool
    deadline_s: float

    def _solve(self) -> Untyped:
        solver = self._solver_model
        for name, value in self.checked.items():
            set_option(solver, name, value)
        if self.warm:
            self._set_start(solver)
        timer = self._active_config.timer
        timer.start("optimize")
        _run_watched(solver, self.deadline_s)
        timer.stop("optimize")
        return self._postsolve(io.StringIO())

    def _set_start(self, solver: Untyped) -> None:
        start = highspy.HighsSolution()
        start.col_value = [float(self._vars[key][0].value or 0.0) for key in self._pyomo_var_to_solver_var_map]
        solver.setSolution(start)


def set_option(solver: Untyped, name: str, value: OptionValue) -> None:
    """Set an option of a `highspy.Highs`.

    Raises:
        ValueError: HiGHS knows no such option, or wants another type or range.
    """
    status, current = solver.getOptionValue(name)
    if status != highspy.HighsStatus.kOk:
        raise ValueError(f"HiGHS has no option '{name}'")
    if type(current) is not type(value):
        raise ValueError(f"HiGHS option '{name}' takes {type(current).__name__}, got {value!r}")
    if solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
        raise ValueError(f"HiGHS refuses {value!r} for option '{name}'")


def _run_watched(solver: Untyped, deadline_s: float) -> None:
    """Run in a thread, so that a phase that forgets the time cannot hold up the caller for ever."""
    solver.HandleUserInterrupt = True
    worker = threading.Thread(target=solver.run, daemon=True, name="highs")
    worker.start()
    worker.join(deadline_s + _GRACE_S)
    if worker.is_alive():
        log.warning("HiGHS overran its time limit by %g s; telling it to stop", _GRACE_S)
        solver.cancelSolve()
        worker.join(_GRACE_S)
    if worker.is_alive():
        log.warning("HiGHS did not stop; leaving it behind")
        raise _Hung


class Session:
    """One model, solved as a linear relaxation first and as an integer program then."""

    _threads_in_use: int | None = None

    def __init__(self, model: pyo.ConcreteModel, threads: int, seed: int) -> None:
        if Session._threads_in_use not in {None, threads}:
            highspy.Highs.resetGlobalScheduler(True)
        Session._threads_in_use = threads
        self._model = model
        self._solver = _WarmHighs()
        self._common: dict[str, OptionValue] = {
            **_TOLERANCES, "threads": threads, "random_seed": seed, "output_flag": False
        }  # fmt: skip

    def relax(self, time_limit_s: float) -> Solved:
        """Solve without integrality."""
        return self._run({"solve_relaxation": True}, time_limit_s, warm=False)

    def search(self, time_limit_s: float, gap: float, *, warm: bool) -> Solved:
        """Solve with integrality to a relative `gap`; `warm` starts from the values in the model."""
        return self._run({"solve_relaxation": False, "mip_rel_gap": gap}, time_limit_s, warm=warm)

    def reduced_costs(self, variables: Sequence[Untyped]) -> list[float]:
        """Reduced costs of the last relaxation, in objective units per unit of each variable."""
        costs = self._solver._get_reduced_costs(list(variables))  # noqa: SLF001 - the loader asks for the whole model
        return [float(costs[variable]) for variable in variables]

    def duals(self, constraints: Sequence[Untyped]) -> list[float]:
        """Duals of the last relaxation, in objective units per unit of each constraint's right-hand side."""
        values = self._solver._get_duals(list(constraints))  # noqa: SLF001 - the loader asks for the whole model
        return [float(values[constraint]) for constraint in constraints]

    def _run(self, options: Mapping[str, OptionValue], time_limit_s: float, *, warm: bool) -> Solved:
        limit_s = max(float(time_limit_s), 1e-3)
        self._solver.checked = {**self._common, **options, "time_limit": limit_s}
        self._solver.warm = warm
        self._solver.deadline_s = limit_s
        started = time.perf_counter()
        try:
            results = self._solver.solve(self._model, raise_exception_on_nonoptimal_result=False, load_solutions=False)
        except _Hung:
            return Solved(Outcome.HUNG, None, None)
        log.debug("HiGHS: %s in %.2f s", results.termination_condition, time.perf_counter() - started)
        return self._read(results)

    def _read(self, results: Untyped) -> Solved:
        if results.incumbent_objective is not None:
            results.solution_loader.load_vars()
        bound = results.objective_bound
        return Solved(
            outcome(results.termination_condition, results.incumbent_objective is not None),
            None if results.incumbent_objective is None else float(results.incumbent_objective),
            None if bound is None or abs(bound) == float("inf") else float(bound),
        )


def outcome(condition: TerminationCondition, has_solution: bool) -> Outcome:
    """The one map from Pyomo's conditions to ours."""
    if condition is TerminationCondition.convergenceCriteriaSatisfied:
        return Outcome.CONVERGED
    stopped = {
        TerminationCondition.maxTimeLimit,
        TerminationCondition.iterationLimit,
        TerminationCondition.objectiveLimit,
        TerminationCondition.interrupted,
        TerminationCondition.unknown,
    }
    if condition in stopped:
        return Outcome.STOPPED_WITH_SOLUTION if has_solution else Outcome.STOPPED_EMPTY
    if condition in {TerminationCondition.provenInfeasible, TerminationCondition.infeasibleOrUnbounded}:
        return Outcome.INFEASIBLE
    return Outcome.FAILED


def require_solved(solved: Solved) -> None:
    """Refuse results that cannot come from a well-formed placement.

    Raises:
        AutotmError: HiGHS called the model infeasible or failed.
    """
    if solved.outcome in {Outcome.INFEASIBLE, Outcome.FAILED}:
        raise AutotmError(
            f"HiGHS ended with '{solved.outcome}' on a placement that has a solution; please report the input files"
        )
