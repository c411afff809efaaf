"""Everything in slow memory: the other end of every curve."""

from __future__ import annotations

from typing import ClassVar

from autotm.model.errors import BadInputError
from autotm.model.tier import Tier
from autotm.solve.choices import Choices
from autotm.solve.flow import flows_in
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
        if problem.options.fast_operands_only:
            raise BadInputError("optimizer 'all-slow': kernels here need fast operands; use 'synchronous'")
        for tensor, tier in problem.options.fixed.items():
            if tier is Tier.DRAM:
                raise BadInputError(f"optimizer 'all-slow': tensor '{tensor}' is fixed in fast memory; use 'static'")
        return Choices(flows_in(problem, Tier.PMEM))
