"""Measured copy rates between two tiers, and how much asynchronous copies and the kernels of a step slow each other."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from autotm.model.errors import BadInputError
from autotm.model.graph import Graph, OpClass, Tier
from autotm.model.plan import Move
from autotm.model.profile import Profile

_LEAST_POINTS = 2  # of a line


@dataclass(frozen=True)
class MachineRates:
    """Best measured rates of all of the machine's kernel threads together.

    Attributes:
        flop_per_s: multiply-adds in registers, two operations each.
        copy_bytes_per_s: copies within fast memory of buffers larger than caches: bytes read plus bytes written.
    """

    flop_per_s: float
    copy_bytes_per_s: float

    def __post_init__(self) -> None:
        if not min(self.flop_per_s, self.copy_bytes_per_s) > 0:
            raise ValueError(f"rates of a machine must be positive, got {self.flop_per_s}, {self.copy_bytes_per_s}")


@dataclass(frozen=True)
class Link:
    """Copy time by size in one direction.

    Attributes:
        destination: tier that is copied to.
        points: (bytes, median nanoseconds), ascending in bytes, at least two.
    """

    destination: Tier
    points: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if len(sizes) < _LEAST_POINTS or sizes != sorted(set(sizes)):
            raise ValueError(f"link to {self.destination} needs at least two points ascending in bytes, got {sizes}")

    def copy_us(self, size_bytes: int) -> float:
        """Predict the microseconds to copy `size_bytes`: linear between points, the last bandwidth beyond them."""
        us = self._us_by_bytes.get(size_bytes)
        if us is None:
            us = self._us_by_bytes[size_bytes] = self._interpolated_us(size_bytes)
        return us

    @cached_property
    def _us_by_bytes(self) -> dict[int, float]:
        return {}  # A step asks for the times of few sizes, many times each.

    def _interpolated_us(self, size_bytes: int) -> float:
        sizes = [size for size, _ in self.points]
        right = min(max(bisect.bisect_left(sizes, size_bytes), 1), len(sizes) - 1)
        (low, low_ns), (high, high_ns) = self.points[right - 1], self.points[right]
        if size_bytes < low:
            return low_ns / 1e3
        if size_bytes > high:
            return high_ns * (size_bytes / high) / 1e3
        return (low_ns + (high_ns - low_ns) * (size_bytes - low) / (high - low)) / 1e3


@dataclass(frozen=True)
class CopyCurve:
    """Copy time by size, for one number of threads and kind of store, as the memory gives it: without emulated waits.

    Attributes:
        destination: tier that is copied to.
        threads: how many copy together.
        streams: whether with streaming (non-temporal) stores.
        ahead_bytes: how early streaming stores ask for lines of the source; 0 leaves that to the processor.
        points: (bytes, median nanoseconds), ascending in bytes.
    """

    destination: Tier
    threads: int
    streams: bool
    ahead_bytes: int
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Contention:
    """Slowdown of a copy and of the kernels beside it, each as a share of the time that the copy takes alone.

    Attributes:
        to_kernels: time that the copy adds to the kernels.
        to_copy: time that the kernels add to the copy.
    """

    to_kernels: float
    to_copy: float

    def __post_init__(self) -> None:
        if min(self.to_kernels, self.to_copy) < 0:
            raise ValueError(f"contention must not be negative, got {self.to_kernels} and {self.to_copy}")


@dataclass(frozen=True)
class AsynchronousLinks:
    """Copies beside kernels, made by one engine per direction.

    Attributes:
        to_fast, to_slow: from the start of a copy to its end, with nothing else in the engine and no kernel beside it.
        beside_to_fast, beside_to_slow: by the op class of the kernels, what a copy to that tier and they take from each
            other.
        call_us: what starting a copy and waiting for it when it is complete take from the step.
    """

    to_fast: Link
    to_slow: Link
    beside_to_fast: dict[OpClass, Contention]
    beside_to_slow: dict[OpClass, Contention]
    call_us: float

    def __post_init__(self) -> None:
        for contention in (self.beside_to_fast, self.beside_to_slow):
            if missing := [op_class.value for op_class in OpClass if op_class not in contention]:
                raise ValueError(f"asynchronous links: contention with {', '.join(missing)} is missing")
        if self.call_us < 0:
            raise ValueError(f"asynchronous links: call_us must not be negative, got {self.call_us}")


@dataclass(frozen=True)
class Links:
    """Times of copies and rates of one machine, as `rule calibrate` measured them (`links.json`).

    Attributes:
        to_fast, to_slow: blocking copies between the tiers, as the executor performs them (emulated wait included).
        contraction_flop_per_s: rate of this process's convolutions.
        emulation_stretch: factor on the emulated device's delays (1 for real tiers and for `share: whole`).
        asynchronous: copies beside kernels; None where they were not measured.
        disturbed: what was measured while others held the cores, in words: it is too slow.
        rates: what the machine can do at best; None where it was not measured.
        curves: copies by direction, threads and kind of store; programs copy in the way that is fastest for a size.
    """

    to_fast: Link
    to_slow: Link
    contraction_flop_per_s: float
    emulation_stretch: float
    asynchronous: AsynchronousLinks | None = None
    disturbed: tuple[str, ...] = ()
    rates: MachineRates | None = None
    curves: tuple[CopyCurve, ...] = ()

    def fast_us(self, size_bytes: int) -> float:
        """Return the microseconds in which all threads read or write so much fast memory; 0 if not measured."""
        return 0.0 if self.rates is None else size_bytes / self.rates.copy_bytes_per_s * 1e6

    def copy_us(self, destination: Tier, size_bytes: int) -> float:
        """Return the predicted microseconds of a blocking move."""
        return (self.to_fast if destination is Tier.FAST else self.to_slow).copy_us(size_bytes)

    # The following raise BadInputError where asynchronous copies were not measured.

    def transfer_us(self, destination: Tier, size_bytes: int) -> float:
        """Predict the microseconds from start to end of an asynchronous move that has its engine for itself."""
        links = self._measured_asynchronous
        return (links.to_fast if destination is Tier.FAST else links.to_slow).copy_us(size_bytes)

    def contention(self, destination: Tier) -> dict[OpClass, Contention]:
        """Return the mutual slowdown of copies to that tier and the kernels beside them, by op class of the kernels."""
        links = self._measured_asynchronous
        return links.beside_to_fast if destination is Tier.FAST else links.beside_to_slow

    @property
    def call_us(self) -> float:
        """Predicted microseconds that the calls of an asynchronous move add to the step."""
        return self._measured_asynchronous.call_us

    def least_added_us(self, destination: Tier, size_bytes: int) -> float:
        """Return a bound from below of what an asynchronous move adds: beside kernels that a copy disturbs least."""
        least = min(each.to_kernels for each in self.contention(destination).values())
        return least * self.transfer_us(destination, size_bytes) + self.call_us

    @property
    def _measured_asynchronous(self) -> AsynchronousLinks:
        if self.asynchronous is None:
            raise BadInputError(
                "links: asynchronous copies were not measured; remove links.json and run the rule calibrate again"
            )
        return self.asynchronous


# What asynchronous moves and the kernels of one step take from each other.
#
# Numbered as in `docs/formulation.md` §9. A copy is taken to be spread evenly over the time of the kernels in its
# window.


class OverlapCosts:
    """Costs of moves that overlap kernels of one step.

    Methods raise BadInputError if copies beside kernels were not measured.

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
        """Return whole nanoseconds for which a move beside kernels [start, end) keeps its engine busy (A2)."""
        alone_ns = math.ceil(1e3 * self._links.transfer_us(destination, size_bytes))
        until = self._to_copy_until_ns[destination]
        return alone_ns + -(-alone_ns * (until[end] - until[start]) // self._lasts_ns(start, end))

    def added_us(self, destination: Tier, size_bytes: int, start: int, end: int) -> float:
        """Predict the microseconds that a move beside kernels [start, end) adds to them, and by its calls (A5)."""
        until = self._to_kernels_until_ns[destination]
        share = (until[end] - until[start]) / self._lasts_ns(start, end)
        return share * self._links.transfer_us(destination, size_bytes) + self._links.call_us

    def move_us(self, move: Move, size_bytes: int) -> float:
        """Return the predicted microseconds that a move adds to the step."""
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
        """Return each kernel's time, weighted with its contention: of the copy, or of the kernel."""
        contention = self._links.contention(tier)
        weights = {name: each.to_copy if of_copy else each.to_kernels for name, each in contention.items()}
        return [weights[name] * time_ns for name, time_ns in zip(self._op_classes, self.kernel_ns, strict=True)]
