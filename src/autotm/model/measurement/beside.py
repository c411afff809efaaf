"""What asynchronous moves and the kernels of one step take from each other.

Numbered as in `docs/formulation.md` §9. A copy is taken to be spread evenly over the time of the kernels in its window.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import accumulate

from autotm.model.measurement.link import Links
from autotm.model.measurement.profile import Profile
from autotm.model.plan import Move
from autotm.model.step import Graph, Tier


class BesideKernels:
    """The links of a machine beside the kernels of one step.

    Attributes:
        kernel_ns: (A1) whole nanoseconds of each kernel: every operand fast, its fastest implementation.
    """

    def __init__(self, graph: Graph, profile: Profile, links: Links) -> None:
        self.kernel_ns = tuple(round(1e3 * profile.least_us(kernel)) for kernel in graph.kernels)
        self._op_classes = tuple(kernel.op_class for kernel in graph.kernels)
        self._links = links

    @cached_property
    def until_ns(self) -> tuple[int, ...]:
        """(kernels + 1,) When each kernel begins, and the last one ends."""
        return (0, *accumulate(self.kernel_ns))

    def work_ns(self, destination: Tier, size_bytes: int, start: int, end: int) -> int:
        """(A2) Whole nanoseconds for which a move beside kernels [start, end) keeps its engine busy.

        Raises:
            BadInputError: asynchronous copies were not measured.
        """
        alone_ns = math.ceil(1e3 * self._links.transfer_us(destination, size_bytes))
        until = self._to_copy_until_ns[destination]
        return alone_ns + -(-alone_ns * (until[end] - until[start]) // self._lasts_ns(start, end))

    def added_us(self, destination: Tier, size_bytes: int, start: int, end: int) -> float:
        """(A5) Predicted microseconds that a move beside kernels [start, end) adds to them, and by its calls.

        Raises:
            BadInputError: asynchronous copies were not measured.
        """
        until = self._to_kernels_until_ns[destination]
        share = (until[end] - until[start]) / self._lasts_ns(start, end)
        return share * self._links.transfer_us(destination, size_bytes) + self._links.call_us

    def least_added_us(self, destination: Tier, size_bytes: int) -> float:
        """A bound from below of `added_us` over all windows: beside the kernels that a copy disturbs least.

        Raises:
            BadInputError: asynchronous copies were not measured.
        """
        least = min(each.to_kernels for each in self._links.contention(destination).values())
        return least * self._links.transfer_us(destination, size_bytes) + self._links.call_us

    def move_us(self, move: Move, size_bytes: int) -> float:
        """Predicted microseconds that a move adds to the step.

        Raises:
            BadInputError: it is asynchronous, and asynchronous copies were not measured.
        """
        if move.since is None:
            return self._links.copy_us(move.destination, size_bytes)
        return self.added_us(move.destination, size_bytes, move.since, move.before)

    def _lasts_ns(self, start: int, end: int) -> int:
        return max(self.until_ns[end] - self.until_ns[start], 1)

    @cached_property
    def _to_copy_until_ns(self) -> dict[Tier, tuple[int, ...]]:
        return {tier: (0, *accumulate(map(round, self._shares_ns(tier, of_copy=True)))) for tier in Tier}

    @cached_property
    def _to_kernels_until_ns(self) -> dict[Tier, tuple[float, ...]]:
        return {tier: (0.0, *accumulate(self._shares_ns(tier, of_copy=False))) for tier in Tier}

    def _shares_ns(self, tier: Tier, *, of_copy: bool) -> list[float]:
        """Each kernel's time, weighed with what it and a copy take from each other."""
        contention = self._links.contention(tier)
        weights = {name: each.to_copy if of_copy else each.to_kernels for name, each in contention.items()}
        return [weights[name] * time_ns for name, time_ns in zip(self._op_classes, self.kernel_ns, strict=True)]
