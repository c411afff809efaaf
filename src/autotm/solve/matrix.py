"""A Pyomo model as the arrays that a solver takes in one piece; constraint by constraint takes a solver hours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyomo.environ as pyo
from pyomo.repn import generate_standard_repn

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

Untyped: TypeAlias = Any
"""An object of Pyomo, which carries no types."""


@dataclass(frozen=True)
class Matrix:
    """minimise cost x + offset where row_lower <= A x <= row_upper and lower <= x <= upper.

    Attributes:
        variables: the model's, in column order.
        cost, lower, upper: per column; infinite where there is no bound.
        integral: columns that have to be whole numbers.
        offset: constant part of the objective.
        rows: the constraints of the model, in row order.
        row_lower, row_upper: per row.
        starts, columns, values: row r of A has `values[starts[r]:starts[r + 1]]` in `columns[...]`.
    """

    variables: tuple[Untyped, ...]
    cost: Floats
    lower: Floats
    upper: Floats
    integral: npt.NDArray[np.bool_]
    offset: float
    rows: tuple[Untyped, ...]
    row_lower: Floats
    row_upper: Floats
    starts: Ints
    columns: Ints
    values: Floats


def matrix_of(model: pyo.ConcreteModel) -> Matrix:
    """The arrays of a linear model with one objective, to be minimised.

    Raises:
        ValueError: something in it is not linear.
    """
    variables = tuple(model.component_data_objects(pyo.Var, descend_into=True))
    column = {id(variable): index for index, variable in enumerate(variables)}
    rows = tuple(model.component_data_objects(pyo.Constraint, active=True, descend_into=True))
    lower, upper, starts, columns, values = [], [], [0], [], []
    for row in rows:
        least, body, most = row.to_bounded_expression(evaluate_bounds=True)
        found, coefficients, constant = _linear(body, column)
        columns += found
        values += coefficients
        starts.append(len(columns))
        lower.append(-np.inf if least is None else least - constant)
        upper.append(np.inf if most is None else most - constant)
    (objective,) = model.component_data_objects(pyo.Objective, active=True, descend_into=True)
    found, coefficients, offset = _linear(objective.expr, column)
    cost = np.zeros(len(variables))
    np.add.at(cost, found, coefficients)
    bounds = [variable.bounds for variable in variables]
    return Matrix(
        variables=variables,
        cost=cost,
        lower=np.array([-np.inf if least is None else least for least, _ in bounds]),
        upper=np.array([np.inf if most is None else most for _, most in bounds]),
        integral=np.array([not variable.is_continuous() for variable in variables], bool),
        offset=offset,
        rows=rows,
        row_lower=np.array(lower),
        row_upper=np.array(upper),
        starts=np.array(starts, np.int32),
        columns=np.array(columns, np.int32),
        values=np.array(values, np.float64),
    )


def _linear(expression: Untyped, column: dict[int, int]) -> tuple[list[int], list[float], float]:
    """Columns, their coefficients, and the constant."""
    found = generate_standard_repn(expression, compute_values=True, quadratic=False)
    if not found.is_linear():
        raise ValueError(f"'{expression}' is not linear")
    return [column[id(variable)] for variable in found.linear_vars], list(found.linear_coefs), float(found.constant)
