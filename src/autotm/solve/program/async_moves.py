"""Asynchronous moves in the model: a variable per window.

Per gap k of a flow and window j: `w[k, j]` the write uses it, `r[k, j]` the read. What the windows share stands in
`demand.py`. Numbers as in `docs/formulation.md` §9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyomo.core as pyo
from pyomo.core.expr import LinearExpression

from autotm.solve.problem import Flow, Window
from autotm.solve.program.linear import Terms, Variable, linear, lookup

Gap = tuple[int, int]
"""(index of the flow, gap)."""

Choice = tuple[tuple[Variable, Window], ...]
"""Variables and windows of one move."""


@dataclass(frozen=True)
class AsyncMoves:
    """The asynchronous moves of the flows in a model.

    Attributes:
        model: the model.
        writes, reads: variables and windows by gap.
    """

    model: pyo.ConcreteModel
    writes: dict[Gap, Choice]
    reads: dict[Gap, Choice]

    @property
    def are_possible(self) -> bool:
        """Whether there are any."""
        return bool(self.writes or self.reads)

    @classmethod
    def of(cls, model: pyo.ConcreteModel, flows: Mapping[int, Flow]) -> AsyncMoves:
        """Make the variables."""
        out = {(index, k): windows for index, flow in flows.items() for k, windows in enumerate(flow.out) if windows}
        back = {(index, k): windows for index, flow in flows.items() for k, windows in enumerate(flow.back) if windows}
        model.w = pyo.Var([(*gap, j) for gap, windows in out.items() for j in range(len(windows))], domain=pyo.Binary)
        model.r = pyo.Var([(*gap, j) for gap, windows in back.items() for j in range(len(windows))], domain=pyo.Binary)
        return cls(model, _paired(model.w, out), _paired(model.r, back))

    def prices_us(self, flows: Mapping[int, Flow]) -> Iterator[tuple[Variable, float, float]]:
        """Each variable with the price of its move, and that of the blocking move which it replaces."""
        for (index, _), choice in self.writes.items():
            yield from ((variable, window.added_us, flows[index].write_us) for variable, window in choice)
        for (index, _), choice in self.reads.items():
            yield from ((variable, window.added_us, flows[index].read_us) for variable, window in choice)


def _paired(variables: Variable, moves: Mapping[Gap, tuple[Window, ...]]) -> dict[Gap, Choice]:
    return {
        gap: tuple((variables[(*gap, j)], window) for j, window in enumerate(windows)) for gap, windows in moves.items()
    }


def constrain(async_moves: AsyncMoves) -> None:
    """Add (A6) and (A7) to the model."""
    written_when_left(async_moves)
    read_when_back(async_moves)


def written_when_left(async_moves: AsyncMoves) -> None:
    """(A6) sum of w[k,j] <= a[k] - a[k+1]."""
    a = async_moves.model.a
    body = {
        (index, k): _at_most(choice, lookup(a, index, k), lookup(a, index, k + 1))
        for (index, k), choice in async_moves.writes.items()
    }
    async_moves.model.written_when_left = _not_above_zero(body)


def read_when_back(async_moves: AsyncMoves) -> None:
    """(A7) sum of r[k,j] <= b[k+1] - s[k]."""
    b, s = async_moves.model.b, async_moves.model.s
    body = {
        (index, k): _at_most(choice, lookup(b, index, k + 1), lookup(s, index, k))
        for (index, k), choice in async_moves.reads.items()
    }
    async_moves.model.read_when_back = _not_above_zero(body)


def _at_most(choice: Choice, more: Variable, less: Variable) -> LinearExpression:
    """Sum of the choice's variables - more + less."""
    terms = Terms()
    for variable, _ in choice:
        terms.add(variable, 1.0)
    terms.add(more, -1.0)
    terms.add(less, 1.0)
    return linear(terms.pairs())


def _not_above_zero(body: Mapping[Gap, LinearExpression]) -> pyo.Constraint:
    return pyo.Constraint(list(body), rule=lambda _, index, k: (None, body[index, k], 0.0))
