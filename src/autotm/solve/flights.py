"""Asynchronous moves in the model: a variable per window, and the engines that the windows share.

Per gap k of a flow and window j: `w[k, j]` the write uses it, `r[k, j]` the read; per direction and row n: `v[n]`, the
share of the engine in use. Numbers as in `docs/formulation.md` §9.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyomo.core as pyo
from pyomo.core.expr import LinearExpression

from autotm.model.engine import ENGINE_PARTS
from autotm.solve.flow import Flow
from autotm.solve.linear import Terms, Variable, linear, lookup
from autotm.solve.window import Window

Gap = tuple[int, int]
"""(index of the flow, gap)."""

Choice = tuple[tuple[Variable, Window], ...]
"""Variables and windows of one move."""

OUT, BACK = "out", "back"
"""Engines: copies to slow memory, copies to fast memory."""


@dataclass(frozen=True)
class Flights:
    """The asynchronous moves of the flows in a model.

    Attributes:
        model: the model.
        writes, reads: variables and windows by gap.
        rows: per engine the kernels at which a window begins, ascending: no kernel between two of them is busier.
    """

    model: pyo.ConcreteModel
    writes: dict[Gap, Choice]
    reads: dict[Gap, Choice]
    rows: dict[str, list[int]]

    @property
    def are_possible(self) -> bool:
        """Whether there are any."""
        return bool(self.writes or self.reads)

    @classmethod
    def of(cls, model: pyo.ConcreteModel, flows: Mapping[int, Flow]) -> Flights:
        """Make the variables."""
        out = {(index, k): windows for index, flow in flows.items() for k, windows in enumerate(flow.out) if windows}
        back = {(index, k): windows for index, flow in flows.items() for k, windows in enumerate(flow.back) if windows}
        model.w = pyo.Var([(*gap, j) for gap, windows in out.items() for j in range(len(windows))], domain=pyo.Binary)
        model.r = pyo.Var([(*gap, j) for gap, windows in back.items() for j in range(len(windows))], domain=pyo.Binary)
        rows = {
            engine: sorted({window.start for windows in moves.values() for window in windows})
            for engine, moves in ((OUT, out), (BACK, back))
        }
        model.v = pyo.Var([(engine, n) for engine in (OUT, BACK) for n in range(len(rows[engine]))], bounds=(0.0, 1.0))
        return cls(model, _paired(model.w, out), _paired(model.r, back), rows)

    def prices_us(self, flows: Mapping[int, Flow]) -> Iterator[tuple[Variable, float, float]]:
        """Each variable with the price of its move, and that of the blocking move which it replaces."""
        for (index, _), choice in self.writes.items():
            yield from ((variable, flows[index].beside_write_us, flows[index].write_us) for variable, _ in choice)
        for (index, _), choice in self.reads.items():
            yield from ((variable, flows[index].beside_read_us, flows[index].read_us) for variable, _ in choice)


def _paired(variables: Variable, moves: Mapping[Gap, tuple[Window, ...]]) -> dict[Gap, Choice]:
    return {
        gap: tuple((variables[(*gap, j)], window) for j, window in enumerate(windows)) for gap, windows in moves.items()
    }


def constrain(flights: Flights) -> None:
    """Add (A6) to (A8) to the model."""
    written_when_left(flights)
    read_when_back(flights)
    engine_chain(flights)


def written_when_left(flights: Flights) -> None:
    """(A6) sum of w[k,j] <= a[k] - a[k+1]."""
    a = flights.model.a
    body = {
        (index, k): _at_most(choice, lookup(a, index, k), lookup(a, index, k + 1))
        for (index, k), choice in flights.writes.items()
    }
    flights.model.written_when_left = _not_above_zero(body)


def read_when_back(flights: Flights) -> None:
    """(A7) sum of r[k,j] <= b[k+1] - s[k]."""
    b, s = flights.model.b, flights.model.s
    body = {
        (index, k): _at_most(choice, lookup(b, index, k + 1), lookup(s, index, k))
        for (index, k), choice in flights.reads.items()
    }
    flights.model.read_when_back = _not_above_zero(body)


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


def engine_chain(flights: Flights) -> None:
    """(A8) v[n] = v[n-1] + shares of windows beginning - ended between rows n-1 and n, 0 <= v[n] <= 1."""
    model = flights.model
    model.flights_into = {}
    for engine, moves in ((OUT, flights.writes), (BACK, flights.reads)):
        rows = flights.rows[engine]
        changes = [Terms() for _ in rows]
        for choice in moves.values():
            for variable, window in choice:
                enter, leave = bisect_left(rows, window.start), bisect_left(rows, window.end)
                changes[enter].add(variable, window.use / ENGINE_PARTS)
                if leave < len(rows):
                    changes[leave].add(variable, -window.use / ENGINE_PARTS)
        model.flights_into.update({(engine, n): change.pairs() for n, change in enumerate(changes)})

    def rule(model: pyo.ConcreteModel, engine: str, n: int) -> tuple[float, Any, float]:
        chain = [(model.v[engine, n], -1.0)] + ([(model.v[engine, n - 1], 1.0)] if n else [])
        return 0.0, linear(model.flights_into[engine, n] + chain), 0.0

    model.engine_chain = pyo.Constraint(list(model.v), rule=rule)
