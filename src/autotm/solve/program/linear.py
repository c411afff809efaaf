"""Linear expressions for Pyomo without the cost of summing them one by one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeAlias

from pyomo.core.expr import LinearExpression

Variable: TypeAlias = Any
"""A Pyomo variable; Pyomo carries no types."""


class Terms:
    """A linear expression under construction; a variable may be added several times, None is always zero."""

    def __init__(self) -> None:
        self._coefficients: dict[int, float] = defaultdict(float)
        self._variables: dict[int, Variable] = {}

    def add(self, variable: Variable, coefficient: float) -> None:
        """Add a multiple of a variable."""
        if variable is not None and coefficient:
            self._coefficients[id(variable)] += coefficient
            self._variables[id(variable)] = variable

    def pairs(self) -> list[tuple[Variable, float]]:
        """Each variable once, with its coefficient."""
        return [(self._variables[key], value) for key, value in self._coefficients.items() if value]


def linear(pairs: list[tuple[Variable, float]], constant: float = 0.0) -> LinearExpression:
    """A Pyomo expression."""
    return LinearExpression(
        constant=constant,
        linear_coefs=[coefficient for _, coefficient in pairs],
        linear_vars=[variable for variable, _ in pairs],
    )


def lookup(variables: Variable, *index: Any) -> Variable:
    """The variable with that index; None where there is none, which means zero."""
    return variables[index] if index in variables else None  # noqa: SIM401 - no dict, has no get
