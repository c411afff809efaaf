"""Optimizers without a choice: everything in one tier."""

from __future__ import annotations

import time

from autotm.model.files import BadInputError
from autotm.model.plan import Status
from autotm.model.step import Tier
from autotm.solve.bases.base import Optimizer, Placement
from autotm.solve.problem import Choices, Problem, Residency, all_slow, flows_in, stays_and_moves


class SingleTier(Optimizer):
    """The one plan that the flows allow, by default implementations: fast where they must be fast, slow elsewhere."""

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """State the plan; there is nothing to search."""
        del problem
        started = time.perf_counter()
        stays = []
        for flow in choices.flows:
            residency = Residency((True,), ()) if flow.must[0] else all_slow(flow)
            stays += stays_and_moves(flow, residency)[0]
        build_s = time.perf_counter() - started
        return Placement(stays, (), {}, None, None, Status.NOT_OPTIMIZED, build_s, 0.0)

    def _slow_for_life(self, problem: Problem, why: str = "") -> Choices:
        """Everything in slow memory; `why` ends the message to who asks for a fast tensor.

        Raises:
            BadInputError: kernels need fast operands, or a tensor is fixed in fast memory.
        """
        if problem.options.fast_operands_only:
            raise BadInputError(f"optimizer '{self.name}': kernels here need fast operands; use 'synchronous'")
        for tensor, tier in problem.options.fixed.items():
            if tier is Tier.DRAM:
                raise BadInputError(
                    f"optimizer '{self.name}': tensor '{tensor}' is fixed in fast memory{why}; use 'static'"
                )
        return Choices(flows_in(problem, Tier.PMEM))
