"""The copy path between two tiers, as measured."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from autotm.model.files import BadInputError
from autotm.model.measurement.machine_rates import MachineRates
from autotm.model.plan import Move
from autotm.model.step import Tier

_LEAST_POINTS = 2


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
        """Predicted microseconds to copy `size_bytes`: linear between points, the last bandwidth beyond them."""
        sizes = [size for size, _ in self.points]
        right = min(max(bisect.bisect_left(sizes, size_bytes), 1), len(sizes) - 1)
        (low, low_ns), (high, high_ns) = self.points[right - 1], self.points[right]
        if size_bytes < low:
            return low_ns / 1e3
        if size_bytes > high:
            return high_ns * (size_bytes / high) / 1e3
        return (low_ns + (high_ns - low_ns) * (size_bytes - low) / (high - low)) / 1e3


@dataclass(frozen=True)
class AsynchronousLinks:
    """Copies beside kernels, made by one engine per direction.

    Attributes:
        to_fast, to_slow: from the start of a copy to its end, with nothing else in the engine and no kernel beside it.
        contention_to_fast, contention_to_slow: what a microsecond of such a copy adds to the kernels beside it, in
            microseconds.
        call_us: what starting a copy and waiting for it when it is complete take from the step.
    """

    to_fast: Link
    to_slow: Link
    contention_to_fast: float
    contention_to_slow: float
    call_us: float

    def __post_init__(self) -> None:
        costs = (self.contention_to_fast, self.contention_to_slow, self.call_us)
        if min(costs) < 0:
            raise ValueError(f"asynchronous links: contention and call_us must not be negative, got {costs}")


@dataclass(frozen=True)
class Links:
    """What `rule calibrate` measured on one machine (`links.json`).

    Attributes:
        to_fast, to_slow: blocking copies between the tiers, as the executor performs them (emulated wait included).
        contraction_flop_per_s: rate of this process's convolutions.
        emulation_stretch: factor on the emulated device's delays (1 for real tiers and for `share: whole`).
        asynchronous: copies beside kernels; None in files from before they were measured.
        disturbed: what was measured while others held the cores, in words: it is too slow.
        rates: what the machine can do at best; None in files from before it was measured.
    """

    to_fast: Link
    to_slow: Link
    contraction_flop_per_s: float
    emulation_stretch: float
    asynchronous: AsynchronousLinks | None = None
    disturbed: tuple[str, ...] = ()
    rates: MachineRates | None = None

    def copy_us(self, destination: Tier, size_bytes: int) -> float:
        """Predicted microseconds of a blocking move."""
        link = self.to_fast if destination is Tier.DRAM else self.to_slow
        return link.copy_us(size_bytes)

    def transfer_us(self, destination: Tier, size_bytes: int) -> float:
        """Predicted microseconds from start to end of an asynchronous move that has its engine for itself.

        Raises:
            BadInputError: asynchronous copies were not measured.
        """
        links = self._measured_asynchronous()
        return (links.to_fast if destination is Tier.DRAM else links.to_slow).copy_us(size_bytes)

    def beside_us(self, destination: Tier, size_bytes: int) -> float:
        """Predicted microseconds that an asynchronous move adds to the step: contention with kernels, and the calls.

        Raises:
            BadInputError: asynchronous copies were not measured.
        """
        links = self._measured_asynchronous()
        contention = links.contention_to_fast if destination is Tier.DRAM else links.contention_to_slow
        return contention * self.transfer_us(destination, size_bytes) + links.call_us

    def move_us(self, move: Move, size_bytes: int) -> float:
        """Predicted microseconds that a move adds to the step.

        Raises:
            BadInputError: it is asynchronous, and asynchronous copies were not measured.
        """
        price = self.beside_us if move.is_asynchronous else self.copy_us
        return price(move.destination, size_bytes)

    def _measured_asynchronous(self) -> AsynchronousLinks:
        if self.asynchronous is None:
            raise BadInputError(
                "links: asynchronous copies were not measured; remove links.json and run the rule calibrate again"
            )
        return self.asynchronous
