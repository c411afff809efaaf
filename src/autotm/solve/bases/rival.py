"""What others do on a GPU where a step exceeds its memory: rules that decide all, and ask for no limit's permission."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence

from autotm.model.files import BadInputError
from autotm.model.plan import Move, Status, Stay
from autotm.model.step import Graph
from autotm.solve.bases.base import Optimizer, Placement
from autotm.solve.problem import Choices, Problem


class Rival(Optimizer):
    """One plan, by a rule that knows nothing of the step to come; it may take more fast memory than the limit."""

    def choices(self, problem: Problem) -> Choices:
        """None: and so no limit is too small.

        Raises:
            BadInputError: kernels can use slow operands, so this is no GPU; or a tensor is fixed in one memory.
        """
        if not problem.options.fast_operands_only:
            raise BadInputError(f"optimizer '{self.name}': it is what others do on a GPU; use 'synchronous'")
        for tensor in problem.options.fixed:
            raise BadInputError(f"optimizer '{self.name}': tensor '{tensor}' is fixed in one memory; use 'static'")
        return Choices(())

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """State the plan; there is nothing to search."""
        del choices
        started = time.perf_counter()
        graph, stays, moves = self.made(problem)
        implementations = {index: kernel.implementation for index, kernel in enumerate(graph.kernels)}
        build_s = time.perf_counter() - started
        return Placement(stays, moves, implementations, None, None, Status.NOT_OPTIMIZED, build_s, 0.0)

    @abstractmethod
    def made(self, problem: Problem) -> tuple[Graph, Sequence[Stay], Sequence[Move]]:
        """The step by the implementations that run, and where its tensors are when."""
