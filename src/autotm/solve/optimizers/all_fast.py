"""Everything in fast memory: the baseline that slow-downs are relative to."""

from __future__ import annotations

from typing import ClassVar

from autotm.model.files import BadInputError
from autotm.model.step import Tier
from autotm.solve.bases import SingleTier
from autotm.solve.problem import Choices, Problem, flows_in


class AllFast(SingleTier):
    """No slow memory at all."""

    name: ClassVar[str] = "all-fast"

    def choices(self, problem: Problem) -> Choices:
        """Fast for life.

        Raises:
            BadInputError: a tensor is fixed in slow memory.
        """
        for tensor, tier in problem.options.fixed.items():
            if tier is Tier.PMEM:
                raise BadInputError(f"optimizer 'all-fast': tensor '{tensor}' is fixed in slow memory; use 'static'")
        return Choices(flows_in(problem, Tier.DRAM))
