"""Everything in slow memory: the other end of every curve."""

from __future__ import annotations

from typing import ClassVar

from autotm.solve.bases import SingleTier
from autotm.solve.problem import Choices, Problem


class AllSlow(SingleTier):
    """No fast memory for intermediates."""

    name: ClassVar[str] = "all-slow"

    def choices(self, problem: Problem) -> Choices:
        """Slow for life.

        Raises:
            BadInputError: kernels need fast operands, or a tensor is fixed in fast memory.
        """
        return self._slow_for_life(problem)
