"""Kernel times by configuration, as measured, and how predictions read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotm.model.files import AutotmError
from autotm.model.step import DEFAULT_IMPLEMENTATION, Configuration, Graph, Kernel, all_fast, configuration

SURE_ERRORS = 2.0
"""Standard errors by which an implementation must differ from the default before the difference counts."""
TIE_NS = 1
"""What equally fast implementations are behind the default, so that they are taken for their workspace alone."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Repeated runs of one kernel in one configuration, in nanoseconds, after a warm-up.

    Its *reference* is, with slow operands, the same implementation all fast; all fast by another implementation than
    the default, the default all fast. The default all fast has none.

    Attributes:
        min_ns, median_ns, lower_quartile_ns, upper_quartile_ns: over the runs.
        repeats: number of runs; 0 where nothing ran: the time is modelled, or, in emulated slow memory, all fast and
            a known wait.
        beyond_ns: what it took beyond its reference, the median over rounds in which both ran; None where it has no
            reference or did not take turns with it.
        beyond_error_ns: standard error of `beyond_ns`; 0 where that is known and not measured.
        default_identity: of the kernel's default implementation, where this is another one that took turns with it.
        disturbed: whether others held the cores meanwhile, so that it is too long.
    """

    min_ns: int
    median_ns: int
    lower_quartile_ns: int
    upper_quartile_ns: int
    repeats: int
    beyond_ns: int | None = None
    beyond_error_ns: int = 0
    default_identity: str | None = None
    disturbed: bool = False


TimingKey = tuple[str, str, Configuration]
"""(kernel identity, implementation, configuration)."""


COMPARED_WITH = "compared_with"
"""The key under which provenance says what the step was compared with before it was timed."""


@dataclass(frozen=True)
class Profile:
    """Times of every distinct kernel of a graph on one machine with one thread count.

    Predictions read all-fast medians, and what a configuration took beyond them in the same rounds, be it less than
    nothing: noise that counted only above zero would add up over a step. A configuration that was not measured is
    predicted additively: the all-fast time plus, for each slow tensor, what that tensor alone added when it alone was
    slow. Implementations whose all-fast times differ by less than their noise read as equally fast.
    """

    graph_hash: str
    timings: Mapping[TimingKey, Timing]
    provenance: Mapping[str, Any]

    @cached_property
    def is_disturbed(self) -> bool:
        """Whether others held the cores while some of it was timed."""
        return any(timing.disturbed for timing in self.timings.values())

    def timing(self, kernel: Kernel, config: Configuration) -> Timing | None:
        """The measured timing, if that configuration was measured."""
        return self.timings.get((kernel.identity, kernel.implementation, config))

    def base_us(self, kernel: Kernel) -> float:
        """Time with every operand fast.

        Raises:
            AutotmError: the profile lacks the kernel.
        """
        return self._base_ns(kernel) / 1e3

    def least_us(self, kernel: Kernel) -> float:
        """Time with every operand fast, by the fastest of the kernel's implementations.

        Raises:
            AutotmError: the profile lacks one of them.
        """
        return min(self.base_us(kernel.computed_by(name)) for name in kernel.implementations)

    def extra_us(self, graph: Graph, kernel: Kernel, tensor: str) -> float:
        """What `tensor` alone in slow memory adds to the kernel; by noise it may be less than nothing.

        Raises:
            AutotmError: the profile lacks the configuration.
        """
        extra_ns = self._beyond_ns(kernel, configuration(graph, kernel, {tensor}))
        if extra_ns is None:
            raise AutotmError(
                f"profile of kernel '{kernel.name}' lacks '{tensor}' in slow memory; rerun kernel_profile"
            )
        return extra_ns / 1e3

    def additive_us(self, graph: Graph, kernel: Kernel, slow: frozenset[str]) -> float:
        """All-fast time plus the extra of each slow tensor of the kernel."""
        tensors = [tensor for tensor in graph.slots_of(kernel) if tensor in slow]
        return self.base_us(kernel) + sum(self.extra_us(graph, kernel, tensor) for tensor in tensors)

    def time_us(self, graph: Graph, kernel: Kernel, slow: frozenset[str]) -> float:
        """The measured time with exactly the tensors in `slow` in slow memory; additive where it was not measured."""
        beyond_ns = self._beyond_ns(kernel, configuration(graph, kernel, slow))
        if beyond_ns is None:
            return self.additive_us(graph, kernel, slow)
        return (self._base_ns(kernel) + beyond_ns) / 1e3

    def _base_ns(self, kernel: Kernel) -> int:
        found = self._all_fast_ns.get((kernel.identity, kernel.implementation))
        if found is None:
            raise AutotmError(
                f"profile has no time for kernel '{kernel.name}' ({kernel.identity}); rerun kernel_profile"
            )
        return found

    @cached_property
    def _all_fast_ns(self) -> Mapping[tuple[str, str], int]:
        """All-fast time as it is read, by identity and implementation."""
        fast = {key[:2]: timing for key, timing in self.timings.items() if "P" not in key[2]}
        return {key: _read_ns(timing, fast) for key, timing in fast.items()}

    def _beyond_ns(self, kernel: Kernel, config: Configuration) -> int | None:
        """What a configuration adds to all fast; None if it was not measured."""
        timing, fast = self.timing(kernel, config), self.timing(kernel, all_fast(kernel))
        if timing is None or fast is None:
            return None
        if "P" not in config:
            return 0
        return timing.median_ns - fast.median_ns if timing.beyond_ns is None else timing.beyond_ns


def _read_ns(timing: Timing, fast: Mapping[tuple[str, str], Timing]) -> int:
    """All-fast time of an implementation; of one that took turns with the default, from that and their difference."""
    default = None if timing.default_identity is None else fast.get((timing.default_identity, DEFAULT_IMPLEMENTATION))
    if default is None or timing.beyond_ns is None:
        return timing.median_ns
    is_sure = abs(timing.beyond_ns) > SURE_ERRORS * timing.beyond_error_ns
    return default.median_ns + (timing.beyond_ns if is_sure else TIE_NS)
