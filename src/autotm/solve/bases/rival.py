"""What others do on a GPU where a step exceeds its memory: rules that decide all, and ask for no limit's permission."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotm.model.files import BadInputError
from autotm.model.plan import Move, Status, Stay
from autotm.model.step import Graph
from autotm.solve.bases.base import Optimizer, Placement
from autotm.solve.problem import Choices, Problem


@dataclass(frozen=True)
class Ruled:
    """What a rule decides.

    Attributes:
        graph: the step by the implementations that run.
        stays: where its tensors are when.
        moves: what is copied.
        calls: kernels in the order in which they are called, where some run again.
        offsets: addresses by stay, where the rule decides them too.
    """

    graph: Graph
    stays: Sequence[Stay]
    moves: Sequence[Move] = ()
    calls: tuple[int, ...] = ()
    offsets: Mapping[Stay, int] = field(default_factory=dict)


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
        made = self.made(problem)
        implementations = {index: kernel.implementation for index, kernel in enumerate(made.graph.kernels)}
        return Placement(
            made.stays,
            made.moves,
            implementations,
            bound_us=None,
            certificate=None,
            status=Status.NOT_OPTIMIZED,
            build_s=time.perf_counter() - started,
            solve_s=0.0,
            calls=made.calls,
            offsets=made.offsets,
        )

    @abstractmethod
    def made(self, problem: Problem) -> Ruled:
        """What the rule decides."""
