"""Timing one kernel: its configurations and implementations take turns, so that a disturbance hits all alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.model.measurement import Timing
from autotm.profile.timing.options import ProfileOptions

Call = Callable[[], None]
Floats = npt.NDArray[Any]

_WARM_UP_ROUNDS = 1
NORMAL_QUARTILES = 1.349
"""Interquartile range of a normal distribution in standard deviations."""
_MEDIAN_EFFICIENCY = 1.2533
"""Standard error of a median in units of that of a mean, sqrt(pi / 2)."""


def time_interleaved(
    calls: Sequence[Sequence[Call]], references: Sequence[int | None], options: ProfileOptions
) -> list[Timing]:
    """Time `calls[way][copy]` in rounds: each round runs every way once, on the next copies.

    A call is the kernel with its emulated wait; `references[way]` is the way that it is compared with round by round,
    if any. Rounds go on until every way has `min_repeats` and either `kernel_s` are over or all medians are settled, at
    most `max_repeats`.
    """
    turn = 0
    for _ in range(_WARM_UP_ROUNDS):
        for choices in calls:
            choices[turn % len(choices)]()
            turn += 1
    samples: list[list[int]] = [[] for _ in calls]
    order = list(range(len(calls)))
    deadline = time.perf_counter_ns() + round(options.kernel_s * 1e9)
    for round_number in range(1, options.max_repeats + 1):
        for way in order:
            call = calls[way][turn % len(calls[way])]
            start = time.perf_counter_ns()
            call()
            samples[way].append(time.perf_counter_ns() - start)
            turn += 1
        order.append(order.pop(0))
        if round_number >= options.min_repeats and (
            time.perf_counter_ns() > deadline or _is_settled(samples, round_number, options.spread)
        ):
            break
    return [
        summary(series) if reference is None else paired(series, samples[reference])
        for series, reference in zip(samples, references, strict=True)
    ]


def summary(samples_ns: Sequence[int]) -> Timing:
    """Minimum, median and quartiles of `samples_ns`, rounded to whole nanoseconds."""
    low, median, high = np.percentile(samples_ns, (25, 50, 75))
    return Timing(min(samples_ns), round(median), round(low), round(high), len(samples_ns))


def paired(samples_ns: Sequence[int], reference_ns: Sequence[int]) -> Timing:
    """As `summary`, with the median difference from what the reference took in the same rounds."""
    low, median, high = np.percentile(np.subtract(samples_ns, reference_ns), (25, 50, 75))
    error_ns = _standard_error(low, high, len(samples_ns))
    return replace(summary(samples_ns), beyond_ns=round(median), beyond_error_ns=math.ceil(error_ns))


def after_a_wait(all_fast: Timing, wait_ns: int) -> Timing:
    """The same kernel followed by a wait of known length, which nothing ran for."""
    return Timing(
        all_fast.min_ns + wait_ns,
        all_fast.median_ns + wait_ns,
        all_fast.lower_quartile_ns + wait_ns,
        all_fast.upper_quartile_ns + wait_ns,
        repeats=0,
        beyond_ns=wait_ns,
        default_identity=all_fast.default_identity,
        disturbed=all_fast.disturbed,
    )


def _is_settled(samples: Sequence[Sequence[int]], rounds: int, spread: float) -> bool:
    low, median, high = np.percentile(samples, (25, 50, 75), axis=1)
    return bool(np.all(_standard_error(low, high, rounds) <= spread * median))


def _standard_error(lower_quartile: Floats, upper_quartile: Floats, repeats: int) -> Floats:
    """Of the median of normal numbers with these quartiles."""
    return _MEDIAN_EFFICIENCY * (upper_quartile - lower_quartile) / NORMAL_QUARTILES / np.sqrt(repeats)
