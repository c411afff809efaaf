"""What fits a limit of items with weights: the value function of a knapsack, by dynamic programming over weights."""

from __future__ import annotations

import numpy as np

from autotm.solve.problem import Ints


class Fitting:
    """The most that items weigh together which fit so many bytes; items are added one by one.

    Weights are whole numbers >= 1. Time and memory go with the most that fits the limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._least_bytes: Ints = np.zeros(1, np.int64)
        """By weight, the fewest bytes of items that weigh as much or more."""

    def add(self, weight: int, size_bytes: int) -> None:
        """One item more."""
        before = self._least_bytes
        with_it = np.concatenate((np.zeros(weight, np.int64), before)) + size_bytes
        with_it[0] = 0
        with_it[: len(before)] = np.minimum(with_it[: len(before)], before)
        self._least_bytes = with_it[: int(np.searchsorted(with_it, self._limit_bytes, side="right"))]

    def most(self, room_bytes: int) -> int:
        """The most that fits so many bytes, at most those of the limit."""
        return int(np.searchsorted(self._least_bytes, room_bytes, side="right")) - 1

    def most_in_each(self, rooms_bytes: Ints) -> Ints:
        """The same for many rooms; 0 where there is none."""
        found: Ints = np.searchsorted(self._least_bytes, np.maximum(rooms_bytes, 0), side="right") - 1
        return found
