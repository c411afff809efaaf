"""Timing one kernel: its configurations take turns, so that a disturbance hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from autotm.model.profile import Timing
from autotm.profile.options import ProfileOptions

Call = Callable[[], None]

_WARM_UP_ROUNDS = 1
NORMAL_QUARTILES = 1.349
"""Interquartile range of a normal distribution in standard deviations."""
_MEDIAN_EFFICIENCY = 1.2533
"""Standard error of a median in units of that of a mean, sqrt(pi / 2)."""


def time_interleaved(calls: Sequence[Sequence[Call]], options: ProfileOptions) -> list[Timing]:
    """Time `calls[configuration][copy]` in rounds: each round runs every configuration once, on the next copies.

    A call is the kernel with its emulated wait. Rounds go on until every configuration has `min_repeats` and either
    `kernel_s` are over or all medians are settled, at most `max_repeats`.
    """
    copies = len(calls[0])
    turn = 0
    for _ in range(_WARM_UP_ROUNDS):
        for choices in calls:
            choices[turn % copies]()
            turn += 1
    samples: list[list[int]] = [[] for _ in calls]
    order = list(range(len(calls)))
    deadline = time.perf_counter_ns() + round(options.kernel_s * 1e9)
    for round_number in range(1, options.max_repeats + 1):
        for config in order:
            call = calls[config][turn % copies]
            start = time.perf_counter_ns()
            call()
            samples[config].append(time.perf_counter_ns() - start)
            turn += 1
        order.append(order.pop(0))
        if round_number >= options.min_repeats and (
            time.perf_counter_ns() > deadline or _is_settled(samples, round_number, options.spread)
        ):
            break
    return [summary(series) for series in samples]


def summary(samples_ns: Sequence[int]) -> Timing:
    """Minimum, median and quartiles of `samples_ns`, rounded to whole nanoseconds."""
    low, median, high = np.percentile(samples_ns, (25, 50, 75))
    return Timing(min(samples_ns), round(median), round(low), round(high), len(samples_ns))


def _is_settled(samples: Sequence[Sequence[int]], rounds: int, spread: float) -> bool:
    low, median, high = np.percentile(samples, (25, 50, 75), axis=1)
    error = _MEDIAN_EFFICIENCY * (high - low) / NORMAL_QUARTILES / np.sqrt(rounds)
    return bool(np.all(error <= spread * median))
