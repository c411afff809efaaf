"""Rounded capacity rows (F10): cuts for limits at which single tensors take a considerable share.

With a divisor d, whole tensors use floor(S/d) of the floor(L/d) whole portions of d bytes that the limit has. Where
the relaxation breaks such a row, it gets one, in a chain of its own beside (F6). Proofs: `docs/formulation.md` §5.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyomo.core as pyo

from autotm.solve.flow import Flow
from autotm.solve.formulation import Formulation, holdings
from autotm.solve.highs import Session
from autotm.solve.journey import fast_spans
from autotm.solve.linear import Terms, Variable, linear
from autotm.solve.table import Floats, Ints

_MOST_PORTIONS = 12
"""Largest floor(L/d) tried: with more, portions are so small that rounding gains little."""
_VIOLATED = 1e-3
"""Portions by which a row has to be broken to be worth adding."""


def divisors(limit_bytes: int) -> list[int]:
    """For each m the least d with floor(L/d) = m: of all such d the one that rounds the least away from tensors."""
    return sorted({limit_bytes // (portions + 1) + 1 for portions in range(1, _MOST_PORTIONS + 1)}, reverse=True)


@dataclass(frozen=True)
class Chain:
    """Rounded rows of one divisor.

    Attributes:
        divisor: its d.
        rows: kernels, ascending.
        used: the model's variables for the portions in use there.
        changes: per row, what enters and leaves since the row before, as (variable, portions).
    """

    divisor: int
    rows: tuple[int, ...]
    used: tuple[Variable, ...]
    changes: tuple[list[tuple[Variable, float]], ...]


class Roundings:
    """The rounded rows that a model has got at one limit."""

    def __init__(self, made: Formulation, limit_bytes: int, kernels: int) -> None:
        self._made = made
        self._limit_bytes = limit_bytes
        least = min(divisors(limit_bytes))
        self._held = [held for held in holdings(made) if held[2] >= least and held[0][0] < held[0][1]]
        self._spans = np.array([span for span, _, _ in self._held], np.int64).reshape(-1, 2)
        self._sizes = np.array([size for _, _, size in self._held], np.int64)
        self._decided = list(_decided(made, least))
        self._kernels = kernels
        self.chains: list[Chain] = []
        self._blocks: list[pyo.Block] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the rows out of the model."""
        for block in self._blocks:
            self._made.model.del_component(block)

    @property
    def count(self) -> int:
        """Rows added."""
        return sum(len(chain.rows) for chain in self.chains)

    def add_violated(self) -> pyo.Block | None:
        """Give the model the rows that its variables' values break; None where they break none."""
        values = np.array([float(variable.value or 0.0) for _, variable, _ in self._held])
        broken = []
        for divisor in divisors(self._limit_bytes):
            used = self._portions(divisor, values)
            excess = used - self._room(divisor)
            rows = [row for row in self._made.reduced.rows if excess[row] > _VIOLATED]
            if rows:
                broken.append((divisor, rows))
        return self._add(broken) if broken else None

    def prices_us(self, session: Session) -> dict[int, Floats]:
        """By divisor, the price of a portion during each kernel: minus the reduced costs of the chains' variables."""
        found: dict[int, Floats] = {}
        for chain in self.chains:
            costs = np.array(session.reduced_costs(chain.used))
            prices = found.setdefault(chain.divisor, np.zeros(self._kernels))
            prices[list(chain.rows)] += np.maximum(0.0, -costs) * self._made.us_per_unit
        return {divisor: prices for divisor, prices in found.items() if prices.any()}

    def start(self) -> None:
        """Set the chains' variables to what the other variables' values make of them."""
        for chain in self.chains:
            level = 0.0
            for used, changes in zip(chain.used, chain.changes, strict=True):
                level += sum(portions * variable.value for variable, portions in changes)
                used.set_value(level, skip_validation=True)

    def _portions(self, divisor: int, values: Floats) -> Floats:
        """Portions that the undecided tensors use during each kernel."""
        change = np.zeros(self._kernels + 1)
        taken = (self._sizes // divisor) * values
        np.add.at(change, self._spans[:, 0], taken)
        np.add.at(change, self._spans[:, 1], -taken)
        return np.cumsum(change)[:-1]

    def _room(self, divisor: int) -> Ints:
        """Portions that the decided tensors leave during each kernel."""
        room = np.full(self._kernels, self._limit_bytes // divisor, np.int64)
        for (start, end), size_bytes in self._decided:
            room[start:end] -= size_bytes // divisor
        return room

    def _add(self, broken: list[tuple[int, list[int]]]) -> pyo.Block:
        model = self._made.model
        block = pyo.Block(concrete=True)
        model.add_component(f"rounded_{len(self._blocks)}", block)
        self._blocks.append(block)
        rooms = {divisor: self._room(divisor) for divisor, _ in broken}
        keys = [(number, n) for number, (_, rows) in enumerate(broken) for n in range(len(rows))]

        def bounds(_: pyo.Block, number: int, n: int) -> tuple[float, float]:
            divisor, rows = broken[number]
            return 0.0, float(rooms[divisor][rows[n]])

        block.p = pyo.Var(keys, bounds=bounds)
        body = {}
        for number, (divisor, rows) in enumerate(broken):
            changes = self._changes(divisor, rows)
            used = tuple(block.p[number, n] for n in range(len(rows)))
            self.chains.append(Chain(divisor, tuple(rows), used, tuple(changes)))
            for n, change in enumerate(changes):
                chain = [(used[n], -1.0)] + ([(used[n - 1], 1.0)] if n else [])
                body[number, n] = linear(change + chain)
        block.rounded_chain = pyo.Constraint(keys, rule=lambda _, number, n: (0.0, body[number, n], 0.0))
        return block

    def _changes(self, divisor: int, rows: list[int]) -> list[list[tuple[Variable, float]]]:
        changes = [Terms() for _ in rows]
        for (start, end), variable, size_bytes in self._held:
            enter, leave = bisect_left(rows, start), bisect_left(rows, end)
            if enter < leave:
                changes[enter].add(variable, float(size_bytes // divisor))
                if leave < len(rows):
                    changes[leave].add(variable, -float(size_bytes // divisor))
        return [change.pairs() for change in changes]


def _decided(made: Formulation, least_bytes: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Spans and sizes of the decided tensors that use portions."""
    flows: tuple[Flow, ...] = made.reduced.choices.flows
    for index, journey in made.reduced.decided.items():
        if flows[index].size_bytes >= least_bytes:
            yield from ((span, flows[index].size_bytes) for span in fast_spans(flows[index], journey))
