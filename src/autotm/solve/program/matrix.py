"""A linear Pyomo model as the arrays that HiGHS takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import highspy
import numpy as np
import pyomo.core as pyo
from pyomo.repn import generate_standard_repn

Untyped: TypeAlias = Any
"""An object of highspy or Pyomo, which carry no types."""


class Matrix:
    """The model's columns and rows in order.

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

    def extend(self, block: pyo.Block) -> Untyped:
        """Append the continuous variables and the constraints of a block, and return them as a program of their own.

        Rows may refer to all columns.
        """
        variables = list(block.component_data_objects(pyo.Var, descend_into=True))
        constraints = list(block.component_data_objects(pyo.Constraint, active=True, descend_into=True))
        self.columns.update({id(variable): len(self.variables) + n for n, variable in enumerate(variables)})
        self.rows.update({id(constraint): len(self.constraints) + n for n, constraint in enumerate(constraints)})
        self.variables += variables
        self.constraints += constraints
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(variables), len(constraints)
        lp.col_lower_, lp.col_upper_ = _bounds(variables)
        self._add_rows(lp, constraints)
        return lp

    def program(self) -> Untyped:
        """The model as a `highspy.HighsLp`, made anew."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.variables), len(self.constraints)
        (objective,) = self._model.component_data_objects(pyo.Objective, active=True)
        costs = np.zeros(lp.num_col_)
        lp.offset_ = self._read(objective.expr, costs)
        lp.sense_ = highspy.ObjSense.kMinimize if objective.is_minimizing() else highspy.ObjSense.kMaximize
        lp.col_cost_ = costs
        lp.col_lower_, lp.col_upper_ = _bounds(self.variables)
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kContinuous if v.is_continuous() else kinds.kInteger for v in self.variables]
        self._add_rows(lp, self.constraints)
        return lp

    def _add_rows(self, lp: Untyped, constraints: Sequence[Untyped]) -> None:
        starts, indices, values, lower, upper = [0], [], [], [], []
        for constraint in constraints:
            constant, pairs = self._linear(constraint.body)
            indices += [column for column, _ in pairs]
            values += [value for _, value in pairs]
            starts.append(len(indices))
            lower.append(-math.inf if constraint.lb is None else constraint.lb - constant)
            upper.append(math.inf if constraint.ub is None else constraint.ub - constant)
        lp.row_lower_, lp.row_upper_ = np.array(lower), np.array(upper)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(starts, np.int32)
        lp.a_matrix_.index_ = np.array(indices, np.int32)
        lp.a_matrix_.value_ = np.array(values, np.float64)

    def _read(self, expression: Untyped, costs: Untyped) -> float:
        constant, pairs = self._linear(expression)
        for column, value in pairs:
            costs[column] += value
        return constant

    def _linear(self, expression: Untyped) -> tuple[float, list[tuple[int, float]]]:
        """The expression's constant and its (column, coefficient) pairs."""
        repn = generate_standard_repn(expression, compute_values=True, quadratic=False)
        if not repn.is_linear():
            raise ValueError(f"not linear: {expression}")
        columns = [self.columns[id(variable)] for variable in repn.linear_vars]
        return float(repn.constant), list(zip(columns, repn.linear_coefs, strict=True))


def _bounds(variables: Sequence[Untyped]) -> tuple[Untyped, Untyped]:
    lower = np.array([-math.inf if variable.lb is None else variable.lb for variable in variables])
    upper = np.array([math.inf if variable.ub is None else variable.ub for variable in variables])
    return lower, upper
