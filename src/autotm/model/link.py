"""The copy path between two tiers, as measured."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from autotm.model.tier import Tier

_LEAST_POINTS = 2


@dataclass(frozen=True)
class Link:
    """Copy time by size in one direction: (bytes, median nanoseconds), ascending in bytes, at least two points."""

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
class Links:
    """What `rule calibrate` measured on one machine (`links.json`).

    Attributes:
        to_fast, to_slow: blocking copies between the tiers, as the executor performs them (emulated wait included).
        contraction_flop_per_s: rate of this process's convolutions.
        emulation_stretch: factor on the emulated device's delays (1 for real tiers and for `share: whole`).
    """

    to_fast: Link
    to_slow: Link
    contraction_flop_per_s: float
    emulation_stretch: float

    def copy_us(self, destination: Tier, size_bytes: int) -> float:
        """Predicted microseconds of a blocking move."""
        link = self.to_fast if destination is Tier.DRAM else self.to_slow
        return link.copy_us(size_bytes)
