"""Knapsack inequalities that a fractional solution breaks: weights of items of which only so much fits.

Items that are whole in the solution are held at first, those that are not in it left out. Of the others, one that does
not fit the room that is left gives a cover. On those that fit, the inequality that is broken most is found exactly, by
a linear program over weights whose rows, the sets that fit, are generated where they are broken (Kaparis and Letchford,
Mathematical Programming B 124, 2010). Then every item gets the weight that the others leave to it, one after the other
(sequential lifting: Padberg, Operations Research 23, 1975).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from autotm.solve.bounds import Fitting
from autotm.solve.problem import Floats, Ints
from autotm.solve.program.highs import set_option

WHOLE = 1e-6
"""Nearer than this to 0 or 1, a value counts as that."""
BROKEN = 1e-4
"""Part of what fits by which an inequality has to be broken to be worth a row."""
_MOST_ITEMS = 14
"""Fractional items over which inequalities are found exactly; further ones are lifted."""
_DENOMINATORS = 60
_FINEST = 240
"""Weights are multiples of 1/n for the least such n; else rounded down to multiples of the finest part."""


@dataclass(frozen=True)
class Weighed:
    """Items with weights.

    Attributes:
        weights: by item, those that have any.
        most: what fits of them.
        excess: what the solution has more, as a part of that.
    """

    weights: dict[int, int]
    most: int
    excess: float


class Separation:
    """Looks for inequalities that one solution breaks, at one row of the limit after the other."""

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[int, float], ...], int] = {}
        """Least room in which parts of items, each a size and a value, were found to break nothing."""

    def broken(self, values: Floats, sizes_bytes: Ints, limit_bytes: int) -> Iterator[Weighed]:
        """Inequalities that values between 0 and 1 of items break."""
        values_of, sizes = values.tolist(), sizes_bytes.tolist()
        by_size = np.argsort(-sizes_bytes, kind="stable").tolist()
        whole = [item for item in by_size if values_of[item] >= 1 - WHOLE]
        absent = [item for item in by_size if values_of[item] <= WHOLE]
        parts = [item for item in by_size if WHOLE < values_of[item] < 1 - WHOLE]
        room_bytes = limit_bytes - sum(sizes[item] for item in whole)
        if room_bytes < 0 or sum(sizes[item] for item in parts) <= room_bytes:
            return
        lifting = _Lifting(sizes, limit_bytes, whole)
        large = [item for item in parts if sizes[item] > room_bytes]
        small = [item for item in parts if sizes[item] <= room_bytes]
        seeds: list[tuple[dict[int, int], list[int]]] = []
        for item in large:
            others = sorted((other for other in parts if other != item), key=lambda other: -values_of[other])
            seeds.append(({item: 1}, others + absent))
        chosen = small[:_MOST_ITEMS]
        found = self._most_broken([sizes[item] for item in chosen], [values_of[item] for item in chosen], room_bytes)
        if found is not None:
            first = {item: weight for item, weight in zip(chosen, found, strict=True) if weight}
            seeds.append((first, large + small[_MOST_ITEMS:] + absent))
        for weights, order in seeds:
            lifted, most = lifting.lift(weights, room_bytes, order)
            excess = sum(weight * values_of[item] for item, weight in lifted.items()) - most
            if most > 0 and excess > BROKEN * most:
                yield Weighed(lifted, most, excess / most)

    def _most_broken(self, sizes: list[int], values: list[float], room_bytes: int) -> list[int] | None:
        """Weights of the inequality that is broken most; None where all fit, or did not break any in less room."""
        key = tuple(zip(sizes, values, strict=True))
        if sum(sizes) <= room_bytes or self._kept.get(key, room_bytes + 1) <= room_bytes:
            return None
        found = _most_broken(np.array(values), np.array(sizes), room_bytes)
        if found is None:
            self._kept[key] = room_bytes
        return found


class _Lifting:
    """Weights for all items from weights that hold while some are whole and the rest are absent."""

    def __init__(self, sizes: Sequence[int], limit_bytes: int, whole: Sequence[int]) -> None:
        self._sizes = sizes
        self._limit_bytes = limit_bytes
        self._whole = whole

    def lift(self, first: dict[int, int], room_bytes: int, absent: Sequence[int]) -> tuple[dict[int, int], int]:
        """Weights, and what fits of them; `first` holds in `room_bytes`, which the whole items leave."""
        sizes, weights, fitting = self._sizes, dict(first), Fitting(self._limit_bytes)
        for item, weight in first.items():
            fitting.add(weight, sizes[item])
        most = fitting.most(room_bytes)
        for item in self._whole:
            room_bytes += sizes[item]
            weight = fitting.most(room_bytes) - most
            most += weight
            if weight:
                weights[item] = weight
                fitting.add(weight, sizes[item])
        for item in absent:
            weight = most - (fitting.most(room_bytes - sizes[item]) if sizes[item] <= room_bytes else 0)
            if weight:
                weights[item] = weight
                fitting.add(weight, sizes[item])
        return weights, most


def _most_broken(values: Floats, sizes_bytes: Ints, room_bytes: int) -> list[int] | None:
    """Weights of the inequality over items, each of which fits, that is broken most; None where none is."""
    count = len(values)
    sets = (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(np.float64)
    sets = sets[sets @ sizes_bytes <= room_bytes]
    solver = highspy.Highs()
    set_option(solver, "output_flag", False)
    set_option(solver, "presolve", "off")
    solver.addVars(count, np.zeros(count), np.ones(count))
    solver.changeColsCost(count, np.arange(count, dtype=np.int32), -values)
    known: set[int] = set()
    while True:
        solver.run()
        weights = np.array(solver.getSolution().col_value)
        if weights @ values <= 1 + BROKEN:
            return None
        weighed = sets @ weights
        heaviest = int(weighed.argmax())
        if weighed[heaviest] <= 1 + WHOLE or heaviest in known:
            return _whole_numbers(weights)
        known.add(heaviest)
        inside = np.flatnonzero(sets[heaviest]).astype(np.int32)
        solver.addRow(-highspy.kHighsInf, 1.0, len(inside), inside, np.ones(len(inside)))


def _whole_numbers(weights: Floats) -> list[int]:
    for denominator in range(1, _DENOMINATORS + 1):
        scaled = weights * denominator
        if np.abs(scaled - np.rint(scaled)).max() < WHOLE * _DENOMINATORS:
            return [round(weight) for weight in scaled.tolist()]
    return [int(weight) for weight in np.floor(weights * _FINEST + WHOLE).tolist()]
