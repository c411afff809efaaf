"""What a step takes whose operands are partly slow: the times that pages are placed by, and plans are priced with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotm.model.measurement import Link
from autotm.model.step import Graph
from autotm.solve.problem import Problem


@dataclass(frozen=True)
class StepCosts:
    """Times of a step's kernels, and of copies of pages, microseconds.

    Attributes:
        base_us: by kernel, all fast.
        slow_us_per_byte: by kernel and movable tensor, what a slow byte of it adds: what the whole tensor adds alone,
            over its bytes.
        promote_us_per_byte, demote_us_per_byte: of pages that move to fast and to slow memory: as of the largest
            blocking copy that was measured.
    """

    base_us: tuple[float, ...]
    slow_us_per_byte: tuple[tuple[float, ...], ...]
    promote_us_per_byte: float
    demote_us_per_byte: float

    @classmethod
    def of(cls, problem: Problem, graph: Graph) -> StepCosts:
        """From profile and links, for `graph`, the step with the implementations that run.

        Raises:
            AutotmError: the profile lacks a kernel or a configuration.
        """
        profile, links = problem.profile, problem.links
        return cls(
            tuple(map(profile.base_us, graph.kernels)),
            tuple(
                tuple(
                    profile.extra_us(graph, kernel, name) / max(graph.by_name[name].size_bytes, 1)
                    for name in graph.slots_of(kernel)
                )
                for kernel in graph.kernels
            ),
            _us_per_byte(links.to_fast),
            _us_per_byte(links.to_slow),
        )

    def kernel_us(self, kernel: int, slow_bytes: Sequence[float], promoted: float = 0, demoted: float = 0) -> float:
        """Time of a kernel with so many bytes of each tensor slow, and of the pages that move meanwhile.

        Promotion is done by the thread that touches a page, demotion by a kernel thread, for which the step's threads
        leave no core: both are waited for. Faults, page tables and flushes of translations cost nothing here.
        """
        extra_us = sum(size * rate for size, rate in zip(slow_bytes, self.slow_us_per_byte[kernel], strict=True))
        moved_us = promoted * self.promote_us_per_byte + demoted * self.demote_us_per_byte
        return self.base_us[kernel] + extra_us + moved_us


def _us_per_byte(link: Link) -> float:
    size, nanoseconds = link.points[-1]
    return nanoseconds / size / 1e3
