"""How often a time is taken until its median is known, and when that would take too long."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autotm.model.machine import Watch

Key = TypeVar("Key", bound=Hashable)

_NORMAL_95 = 1.96
_LEAST_SIZES = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """When a median of times is known well enough.

    Attributes:
        least: samples, before their scatter is judged.
        most: samples, however they scatter.
        share: done earlier when the median's confidence interval reaches at most that share of it to either side.
        point_s: seconds of samples after which a point is done, however few they are.
    """

    least: int = 5
    most: int = 15
    share: float = 0.02
    point_s: float = 1.0

    def is_enough(self, times_ns: Sequence[int]) -> bool:
        """Whether the median of these times is known."""
        return bool(times_ns) and self.is_known(times_ns, statistics.median(times_ns), sum(times_ns))

    def is_known(self, samples: Sequence[float], whole: float, spent_ns: int) -> bool:
        """Whether the median of `samples`, which took `spent_ns` to take, is known to a share of `whole`."""
        if len(samples) >= self.most or (samples and spent_ns >= self.point_s * 1e9):
            return True
        return len(samples) >= self.least and half_interval(samples) <= self.share * whole


def half_interval(samples: Sequence[float]) -> float:
    """Half the width of the median's 95 % confidence interval: between two order statistics, whatever the distribution.

    Their ranks are n/2 -+ 1.96 sqrt(n)/2 (Conover, Practical Nonparametric Statistics, section 3.2); of five samples it
    is the whole range, which holds the median with 94 %.
    """
    ordered, count = sorted(samples), len(samples)
    low = max(0, math.floor((count - _NORMAL_95 * math.sqrt(count)) / 2) - 1)
    return (ordered[count - 1 - low] - ordered[low]) / 2


def medians_ns(timed: Mapping[Key, Callable[[], int]], effort: Effort, watch: Watch, what: str) -> dict[Key, int]:
    """Median nanoseconds of each of `timed`, which take turns: a disturbance hits one sample of each, not all of one.

    A round is one sample of each that is not known yet; where `watch` says that others held the cores, it is repeated.
    """
    missing = list(timed)

    def one_round() -> dict[Key, int]:
        return {key: timed[key]() for key in missing}

    def is_enough(found: Sequence[Mapping[Key, int]]) -> bool:
        missing[:] = [key for key in timed if not effort.is_enough(samples_of(found, key))]
        return not missing

    rounds = watch.until(one_round, is_enough, what)
    return {key: round(statistics.median(samples_of(rounds, key))) for key in timed}


def samples_of(rounds: Iterable[Mapping[Key, int]], key: Key) -> list[int]:
    """What rounds have of one point."""
    return [found[key] for found in rounds if key in found]


def sizes_in_time(sizes_bytes: Sequence[int], longest_ns: Callable[[int], int], point_s: float) -> tuple[int, ...]:
    """The ascending sizes up to the first that takes longer than `point_s` seconds, and at least two.

    Links take larger copies to have the bandwidth of their last two sizes. `longest_ns` makes the copies of a size once
    and returns the longest time, so that they are warm afterwards.
    """
    for count, size_bytes in enumerate(sizes_bytes, 1):
        if longest_ns(size_bytes) > point_s * 1e9 and count >= _LEAST_SIZES:
            return tuple(sizes_bytes[:count])
    return tuple(sizes_bytes)
