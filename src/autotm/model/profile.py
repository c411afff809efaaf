"""Kernel times by configuration, as measured and in their additive reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotm.model.errors import AutotmError
from autotm.model.graph import Graph, Kernel
from autotm.model.tier import Configuration, all_fast, configuration


@dataclass(frozen=True, slots=True)
class Timing:
    """Repeated runs of one kernel in one configuration, in nanoseconds, after a warm-up."""

    min_ns: int
    median_ns: int
    lower_quartile_ns: int
    upper_quartile_ns: int
    repeats: int


TimingKey = tuple[str, str, Configuration]
"""(kernel identity, implementation, configuration)."""


@dataclass(frozen=True)
class Profile:
    """Times of every distinct kernel of a graph on one machine with one thread count.

    Predictions read medians. A configuration that was not measured is predicted additively: the all-fast time plus,
    for each slow tensor, what that tensor alone added when it alone was slow.
    """

    graph_hash: str
    timings: Mapping[TimingKey, Timing]
    provenance: Mapping[str, Any]

    def timing(self, kernel: Kernel, config: Configuration) -> Timing | None:
        """The measured timing, if that configuration was measured."""
        return self.timings.get((kernel.identity, kernel.implementation, config))

    def base_us(self, kernel: Kernel) -> float:
        """Time with every operand fast.

        Raises:
            AutotmError: the profile lacks the kernel.
        """
        timing = self.timing(kernel, all_fast(kernel))
        if timing is None:
            raise AutotmError(
                f"profile has no time for kernel '{kernel.name}' ({kernel.identity}); rerun kernel_profile"
            )
        return timing.median_ns / 1e3

    def least_us(self, kernel: Kernel) -> float:
        """Time with every operand fast, by the fastest of the kernel's implementations.

        Raises:
            AutotmError: the profile lacks one of them.
        """
        return min(self.base_us(kernel.computed_by(name)) for name in kernel.implementations)

    def extra_us(self, graph: Graph, kernel: Kernel, tensor: str) -> float:
        """What `tensor` alone in slow memory adds to the kernel; noise below zero counts as zero.

        Raises:
            AutotmError: the profile lacks the configuration.
        """
        timing = self.timing(kernel, configuration(graph, kernel, {tensor}))
        if timing is None:
            raise AutotmError(
                f"profile of kernel '{kernel.name}' lacks '{tensor}' in slow memory; rerun kernel_profile"
            )
        return max(0.0, timing.median_ns / 1e3 - self.base_us(kernel))

    def additive_us(self, graph: Graph, kernel: Kernel, slow: frozenset[str]) -> float:
        """All-fast time plus the extra of each slow tensor of the kernel."""
        tensors = [tensor for tensor in graph.slots_of(kernel) if tensor in slow]
        return self.base_us(kernel) + sum(self.extra_us(graph, kernel, tensor) for tensor in tensors)

    def time_us(self, graph: Graph, kernel: Kernel, slow: frozenset[str]) -> float:
        """The measured time with exactly the tensors in `slow` in slow memory; additive where it was not measured."""
        timing = self.timing(kernel, configuration(graph, kernel, slow))
        return self.additive_us(graph, kernel, slow) if timing is None else timing.median_ns / 1e3
