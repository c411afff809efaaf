"""HiGHS behind Pyomo's models: the only place that knows its arrays, options, statuses and quirks.

`docs/formulation.md` §6 says which of its faults are guarded against.
"""

from __future__ import annotations

import logging
import math
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import highspy
import numpy as np
import pyomo.core as pyo
from pyomo.repn import generate_standard_repn

from autotm.model.errors import AutotmError

Untyped: TypeAlias = Any
"""An object of highspy or Pyomo, which carry no types."""


class Matrix:
    """A linear Pyomo model as the arrays that HiGHS takes: columns and rows in order.

    Pyomo's own interface to HiGHS keeps a copy of every row, to notice changes; our models never change, and reading
    them once takes a tenth of the time.

    Attributes:
        variables, constraints: Pyomo's objects, by column and by row.
        columns, rows: their places, by the object's id.
    """

    def __init__(self, model: pyo.ConcreteModel) -> None:
        self.variables = list(model.component_data_objects(pyo.Var, descend_into=True))
        self.constraints = list(model.component_data_objects(pyo.Constraint, active=True, descend_into=True))
        self.columns = {id(variable): column for column, variable in enumerate(self.variables)}
        self.rows = {id(constraint): row for row, constraint in enumerate(self.constraints)}
        self._model = model

    def extend(self, block: pyo.Block) -> Sequence[Untyped]:
        """Append the constraints of a block, and return them as `read_rows` does."""
        constraints = list(block.component_data_objects(pyo.Constraint, active=True, descend_into=True))
        self.rows.update({id(constraint): len(self.constraints) + n for n, constraint in enumerate(constraints)})
        self.constraints += constraints
        return self._rows(constraints)

    def program(self) -> Untyped:
        """Return the model as a `highspy.HighsLp`, made anew."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.variables), len(self.constraints)
        (objective,) = self._model.component_data_objects(pyo.Objective, active=True)
        costs = np.zeros(lp.num_col_)
        lp.offset_, pairs = self._linear(objective.expr)
        for column, value in pairs:
            costs[column] += value
        lp.sense_ = highspy.ObjSense.kMinimize if objective.is_minimizing() else highspy.ObjSense.kMaximize
        lp.col_cost_ = costs
        lp.col_lower_ = np.array([-math.inf if variable.lb is None else variable.lb for variable in self.variables])
        lp.col_upper_ = np.array([math.inf if variable.ub is None else variable.ub for variable in self.variables])
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kContinuous if v.is_continuous() else kinds.kInteger for v in self.variables]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lower, upper, *matrix = self._rows(self.constraints)
        lp.row_lower_, lp.row_upper_ = lower, upper
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix
        return lp

    def _rows(self, constraints: Sequence[Untyped]) -> Sequence[Untyped]:
        """Return lower bounds, upper bounds, the start of each row and the end, columns, and the columns' values."""
        starts, indices, values, lower, upper = [0], [], [], [], []
        for constraint in constraints:
            constant, pairs = self._linear(constraint.body)
            indices += [column for column, _ in pairs]
            values += [value for _, value in pairs]
            starts.append(len(indices))
            lower.append(-math.inf if constraint.lb is None else constraint.lb - constant)
            upper.append(math.inf if constraint.ub is None else constraint.ub - constant)
        places = np.array(starts, np.int32), np.array(indices, np.int32)
        return np.array(lower), np.array(upper), *places, np.array(values, np.float64)

    def _linear(self, expression: Untyped) -> tuple[float, list[tuple[int, float]]]:
        """Return the expression's constant and its (column, coefficient) pairs."""
        repn = generate_standard_repn(expression, compute_values=True, quadratic=False)
        if not repn.is_linear():
            raise ValueError(f"not linear: {expression}")
        columns = [self.columns[id(variable)] for variable in repn.linear_vars]
        return float(repn.constant), list(zip(columns, repn.linear_coefs, strict=True))


log = logging.getLogger(__name__)

OptionValue = bool | int | float | str

_OPTIONS: dict[str, OptionValue] = {
    "threads": 1,
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
    STOPPED = "stopped"
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


def set_option(solver: Untyped, name: str, value: OptionValue) -> None:
    """Set an option of a `highspy.Highs`.

    Raises:
        ValueError: HiGHS knows no such option, or wants another type or range.
    """
    if solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
        raise ValueError(f"HiGHS refuses {value!r} for option '{name}'")


def _run_watched(solver: Untyped, deadline_s: float) -> None:
    """Run in a thread, so that a phase that forgets the time cannot hold up the caller for ever."""
    solver.HandleUserInterrupt = True
    worker = threading.Thread(target=solver.run, daemon=True, name="highs")
    worker.start()
    try:
        worker.join(deadline_s + _GRACE_S)
    except KeyboardInterrupt:
        solver.cancelSolve()
        worker.join(_GRACE_S)
        raise
    if worker.is_alive():
        log.warning("HiGHS overran its time limit by %g s; telling it to stop", _GRACE_S)
        solver.cancelSolve()
        worker.join(_GRACE_S)
    if worker.is_alive():
        log.warning("HiGHS did not stop; leaving it behind")
        raise _Hung


class Session:
    """One model, solved as a linear relaxation first and as an integer program then.

    Attributes:
        is_lost: a solve was left behind and still runs; nothing more can be asked.
        is_extended: it has more constraints than the model that it was made from.
    """

    def __init__(self, model: pyo.ConcreteModel, seed: int) -> None:
        self.is_lost = False
        self.is_extended = False
        self._matrix = Matrix(model)
        self._solver = highspy.Highs()
        self._set({**_OPTIONS, "random_seed": seed, "output_flag": False})
        if self._solver.passModel(self._matrix.program()) == highspy.HighsStatus.kError:
            raise ValueError("HiGHS refuses the model")

    def extend(self, block: pyo.Block) -> None:
        """Take over the constraints of a block that the model has got since."""
        self.is_extended = True
        lower, upper, starts, indices, values = self._matrix.extend(block)
        self._solver.addRows(len(lower), lower, upper, len(values), starts[:-1], indices, values)

    def relax(self, time_limit_s: float) -> Solved:
        """Solve without integrality, by simplex; once more from nothing where its last basis led nowhere."""
        options: dict[str, OptionValue] = {"solve_relaxation": True, "solver": "choose"}
        started = time.perf_counter()
        solved = self._run(options, time_limit_s)
        left_s = time_limit_s - (time.perf_counter() - started)
        if self.is_lost or self._solver.getModelStatus() != highspy.HighsModelStatus.kUnknown or left_s <= 0:
            return solved
        self._solver.clearSolver()
        return self._run(options, left_s)

    def relax_from_inside(self, time_limit_s: float) -> Solved:
        """Solve without integrality, by an interior point method and a crossover."""
        return self._run({"solve_relaxation": True, "solver": "ipm"}, time_limit_s)

    def search(self, time_limit_s: float, gap: float, *, warm: bool, enough: float = -highspy.kHighsInf) -> Solved:
        """Solve with integrality to a relative `gap`, or until a solution is worth `enough`.

        `warm` starts from the values in the model.
        """
        if warm:
            start = highspy.HighsSolution()
            start.col_value = [float(variable.value or 0.0) for variable in self._matrix.variables]
            self._solver.setSolution(start)
        else:
            self._solver.clearSolver()
        self._set({"solver": "choose", "mip_rel_gap": gap, "objective_target": enough})
        return self._run({"solve_relaxation": False}, time_limit_s)

    @contextmanager
    def held(self, variables: Collection[Untyped]) -> Iterator[None]:
        """Fix these variables, inside the `with` block, at the values that they have in the model, rounded."""
        columns = np.array([self._matrix.columns[id(variable)] for variable in variables], np.int32)
        values = np.array([round(variable.value or 0.0) for variable in variables], np.float64)
        self._solver.changeColsBounds(len(columns), columns, values, values)
        yield
        if not self.is_lost:
            self.take_bounds(variables)

    def reduced_costs(self, variables: Iterable[Untyped]) -> list[float]:
        """Return the reduced costs of the last relaxation, in objective units per unit of each variable."""
        costs = self._solver.getSolution().col_dual
        return [float(costs[self._matrix.columns[id(variable)]]) for variable in variables]

    def duals(self, constraints: Iterable[Untyped]) -> list[float]:
        """Return the duals of the last relaxation, in objective units per unit of each constraint's right-hand side."""
        duals = self._solver.getSolution().row_dual
        return [float(duals[self._matrix.rows[id(constraint)]]) for constraint in constraints]

    def take_bounds(self, variables: Iterable[Untyped]) -> None:
        """Tell HiGHS the bounds that these variables have in the model now."""
        for variable in variables:
            lower, upper = variable.bounds
            self._solver.changeColBounds(self._matrix.columns[id(variable)], lower, upper)

    def _set(self, options: Mapping[str, OptionValue]) -> None:
        for name, value in options.items():
            set_option(self._solver, name, value)

    def _run(self, options: Mapping[str, OptionValue], time_limit_s: float) -> Solved:
        limit_s = max(float(time_limit_s), 1e-3)
        # A relaxation's time is counted from the first run of the instance, a search's from its own start.
        before_s = self._solver.getRunTime() if options["solve_relaxation"] else 0.0
        self._set({**options, "time_limit": before_s + limit_s})
        started = time.perf_counter()
        try:
            _run_watched(self._solver, limit_s)
        except _Hung:
            self.is_lost = True
            return Solved(Outcome.HUNG, None, None)
        status = self._solver.getModelStatus()
        log.debug("HiGHS: %s in %.2f s", status, time.perf_counter() - started)
        return self._read(status, is_relaxation=bool(options["solve_relaxation"]))

    def _read(self, status: Untyped, *, is_relaxation: bool) -> Solved:
        info = self._solver.getInfo()
        has_solution = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        if has_solution:
            values = self._solver.getSolution().col_value
            for variable, value in zip(self._matrix.variables, values, strict=True):
                variable.set_value(value, skip_validation=True)
        ended = outcome(status)
        objective = float(info.objective_function_value) if has_solution else None
        bound = float(info.mip_dual_bound)
        if is_relaxation:
            return Solved(ended, objective, objective if ended is Outcome.CONVERGED else None)
        return Solved(ended, objective, bound if math.isfinite(bound) else None)


def mps_of(matrix: Matrix, lp: Untyped) -> bytes:
    """Return a matrix's program with its names as free MPS."""
    lp.col_names_ = [variable.name for variable in matrix.variables]
    lp.row_names_ = [constraint.name for constraint in matrix.constraints]
    solver = highspy.Highs()
    set_option(solver, "output_flag", False)
    solver.passModel(lp)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.mps"
        solver.writeModel(str(file))
        return file.read_bytes()


def outcome(status: Untyped) -> Outcome:
    """Return the outcome of a solve by HiGHS's status; no other place maps them."""
    statuses: Untyped = highspy.HighsModelStatus
    if status in {statuses.kOptimal, statuses.kObjectiveTarget}:
        return Outcome.CONVERGED
    stopped = {
        statuses.kTimeLimit,
        statuses.kIterationLimit,
        statuses.kSolutionLimit,
        statuses.kMemoryLimit,
        statuses.kObjectiveBound,
        statuses.kInterrupt,
        statuses.kHighsInterrupt,
        statuses.kUnknown,
    }
    if status in stopped:
        return Outcome.STOPPED
    if status in {statuses.kInfeasible, statuses.kUnboundedOrInfeasible}:
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
