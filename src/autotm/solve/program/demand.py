"""Demand rows (A8): what windows within a span of kernels ask of their engine takes no longer than the span.

Where this holds for every span, the moves can be made, the one that must be complete first being served first (Baruah,
Rosier and Howell, 1990). There are as many spans as pairs of kernels; a model gets those that its values break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyomo.core as pyo

from autotm.solve.bounds import EnginePrices, SpanPrices
from autotm.solve.problem import Floats, Ints, Span
from autotm.solve.program.async_moves import AsyncMoves, Choice, Gap
from autotm.solve.program.linear import linear

_BROKEN, _LEAST_NS = 1e-7, 0.5
"""Part of a span, and time, by which work exceeds it if it does so by more than rounding."""
_ALIKE = 0.9
"""Spans that share so much of what they cover together get one row at a time."""

Duals = Callable[[Iterable[pyo.Constraint]], Sequence[float]]
"""The duals of constraints in the last relaxation."""


class Demand:
    """The demand rows of a model.

    Attributes:
        out, back: those of the engines towards slow and towards fast memory.
    """

    def __init__(self, async_moves: AsyncMoves, kernel_ns: Sequence[int]) -> None:
        until_ns: Ints = np.concatenate(([0], np.cumsum(np.array(kernel_ns, np.int64))))
        self._model = async_moves.model
        self._blocks = 0
        self.out = _EngineRows(async_moves.writes, until_ns)
        self.back = _EngineRows(async_moves.reads, until_ns)

    def add_broken(self) -> pyo.Block | None:
        """Give the model rows that its variables' values break; None where there is none."""
        found = [(rows, span) for rows in (self.out, self.back) for span in rows.broken()]
        if not found:
            return None
        block = pyo.Block(concrete=True)
        self._model.add_component(f"demand_{self._blocks}", block)
        self._blocks += 1
        bodies = [linear(rows.terms(span)) for rows, span in found]
        block.demand = pyo.Constraint(range(len(found)), rule=lambda _, n: (None, bodies[n], 1.0))
        for n, (rows, span) in enumerate(found):
            rows.constraints[span] = block.demand[n]
        return block

    def prices(self, duals: Duals, us_per_unit: float) -> EnginePrices:
        """What the last relaxation charges: minus the duals of the rows."""
        return EnginePrices(self.out.prices(duals, us_per_unit), self.back.prices(duals, us_per_unit))


class _EngineRows:
    """The demand rows of one engine; `constraints` by span."""

    def __init__(self, moves: Mapping[Gap, Choice], until_ns: Ints) -> None:
        flat = [pair for choice in moves.values() for pair in choice]
        self._variables = [variable for variable, _ in flat]
        self._starts = np.array([window.start for _, window in flat], np.int64)
        self._ends = np.array([window.end for _, window in flat], np.int64)
        self._work_ns = np.array([window.work_ns for _, window in flat], np.int64)
        self._until_ns = until_ns
        self.constraints: dict[Span, pyo.Constraint] = {}

    def broken(self) -> list[Span]:
        """Spans whose work exceeds them, of those that start with the same kernel the worst; none twice."""
        values = np.array([float(variable.value or 0.0) for variable in self._variables])
        used = values.nonzero()[0]
        starts, row = np.unique(self._starts[used], return_inverse=True)
        ends, column = np.unique(self._ends[used], return_inverse=True)
        if not len(used):
            return []
        work_ns = np.zeros((len(starts), len(ends)))
        np.add.at(work_ns, (row, column), values[used] * self._work_ns[used])
        work_ns = work_ns[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
        lasts_ns = self._until_ns[ends][None, :] - self._until_ns[starts][:, None]
        excess_ns = np.where(lasts_ns > 0, work_ns - lasts_ns * (1 + _BROKEN), 0.0)
        worst = excess_ns.argmax(axis=1)
        return self._apart(starts, ends[worst], excess_ns[np.arange(len(starts)), worst])

    def _apart(self, starts: Ints, ends: Ints, excess_ns: Floats) -> list[Span]:
        """The spans that are unlike worse ones, the worst first."""
        found: list[Span] = []
        for n in np.argsort(-excess_ns, kind="stable").tolist():
            span = int(starts[n]), int(ends[n])
            if excess_ns[n] <= _LEAST_NS:
                break
            if span not in self.constraints and not any(_alike(span, other) for other in found):
                found.append(span)
        return found

    def terms(self, span: Span) -> list[tuple[pyo.Var, float]]:
        """Work within a span as parts of it."""
        within = ((self._starts >= span[0]) & (self._ends <= span[1])).nonzero()[0]
        shares = self._work_ns[within] / self._lasts_ns(span)
        return [(self._variables[n], share) for n, share in zip(within.tolist(), shares.tolist(), strict=True)]

    def prices(self, duals: Duals, us_per_unit: float) -> SpanPrices:
        """Minus the duals, per nanosecond."""
        values = duals(self.constraints.values()) if self.constraints else []
        paid = [(span, -dual * us_per_unit) for span, dual in zip(self.constraints, values, strict=True) if dual < 0]
        lasts_ns = np.array([self._lasts_ns(span) for span, _ in paid], np.int64)
        price_us = np.array([price for _, price in paid]) / lasts_ns if paid else np.zeros(0)
        starts, ends = np.array([span for span, _ in paid], np.int64).reshape(-1, 2).T
        return SpanPrices(starts, ends, lasts_ns, price_us)

    def _lasts_ns(self, span: Span) -> int:
        return int(self._until_ns[span[1]] - self._until_ns[span[0]])


def _alike(one: Span, other: Span) -> bool:
    shared = min(one[1], other[1]) - max(one[0], other[0])
    return shared > _ALIKE * (max(one[1], other[1]) - min(one[0], other[0]))
