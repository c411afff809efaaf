"""A knapsack inequality: weights of tensors, and what fits of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotm.solve.bounds.fitting import Fitting
from autotm.solve.problem import Ints


@dataclass(frozen=True, eq=False)
class Cut:
    """Weights of tensors: what is fast at one time weighs at most what fits the limit.

    Attributes:
        number: its place among the cuts of a search.
        weights: by tensor, those that have any.
        limit_bytes: the limit.
        fitting: what fits of them.
    """

    number: int
    weights: Mapping[str, int]
    limit_bytes: int
    fitting: Fitting

    @classmethod
    def of(cls, number: int, weights: Mapping[str, int], sizes_bytes: Mapping[str, int], limit_bytes: int) -> Cut:
        """With what fits, from the tensors' sizes."""
        fitting = Fitting(limit_bytes)
        for tensor, weight in weights.items():
            fitting.add(weight, sizes_bytes[tensor])
        return cls(number, weights, limit_bytes, fitting)

    @property
    def most(self) -> int:
        """What fits the limit."""
        return self.fitting.most(self.limit_bytes)

    def of_workspaces(self, fast_bytes: Ints) -> Ints:
        """What workspaces of so many bytes weigh: what no longer fits beside them."""
        found: Ints = self.most - self.fitting.most_in_each(self.limit_bytes - fast_bytes)
        return found
