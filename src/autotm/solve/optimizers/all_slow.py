"""Everything in slow memory: the other end of every curve."""

from __future__ import annotations

from typing import ClassVar

from autotm.solve.choices import Choices
from autotm.solve.problem import Problem
from autotm.solve.single_tier import SingleTier


class AllSlow(SingleTier):
    """No fast memory for intermediates."""

    name: ClassVar[str] = "all-slow"

    def choices(self, problem: Problem) -> Choices:
        """Slow for life.

        Raises:
            BadInputError: kernels need fast operands, or a tensor is fixed in fast memory.
        """
        return self._slow_for_life(problem)
