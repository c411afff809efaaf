"""Configurations take turns, until a kernel is steady or has had its repeats."""

import functools
import time

import pytest

from autotm.memory.clock import wait_until
from autotm.profile.timing.options import ProfileOptions
from autotm.profile.timing.timing import paired, summary, time_interleaved


def busy(us: float) -> None:
    wait_until(time.perf_counter_ns() + round(us * 1000))


def test_each_round_runs_every_configuration_once_on_fresh_copies() -> None:
    seen: list[tuple[int, int]] = []
    calls = [[functools.partial(seen.append, (config, copy)) for copy in range(4)] for config in range(3)]
    time_interleaved(calls, [None, 0, 0], ProfileOptions(min_repeats=8, max_repeats=8))
    timed = seen[3:]
    assert [sorted(config for config, _ in timed[i : i + 3]) for i in range(0, 24, 3)] == [[0, 1, 2]] * 8
    assert [copy for _, copy in seen] == [turn % 4 for turn in range(len(seen))]
    assert {timed[i][0] for i in range(0, 24, 3)} == {0, 1, 2}, "no configuration is always the first"


@pytest.mark.wall_clock
def test_times_are_those_of_the_calls() -> None:
    options = ProfileOptions(min_repeats=20, max_repeats=40)
    calls = [[functools.partial(busy, 200)], [functools.partial(busy, 500)]]
    short, long = time_interleaved(calls, [None, 0], options)
    assert 200_000 <= short.min_ns < 260_000
    assert 500_000 <= long.min_ns < 560_000
    assert short.min_ns <= short.lower_quartile_ns <= short.median_ns <= short.upper_quartile_ns
    assert short.beyond_ns is None
    assert long.beyond_ns == pytest.approx(300_000, abs=60_000)


@pytest.mark.wall_clock
def test_a_steady_kernel_ends_early_and_a_long_one_after_its_repeats() -> None:
    steady = ProfileOptions(min_repeats=5, max_repeats=1000, kernel_s=10, spread=0.5)
    assert time_interleaved([[functools.partial(busy, 100)]], [None], steady)[0].repeats < 50
    costly = ProfileOptions(min_repeats=3, max_repeats=1000, kernel_s=0.001, spread=0.0)
    assert time_interleaved([[functools.partial(busy, 2000)]], [None], costly)[0].repeats == 3


def test_a_difference_is_taken_round_by_round() -> None:
    """A machine that slows down between rounds slows down both: what one adds stays as sharp as if it had not."""
    reference = [1000, 1500, 3000, 2000, 1200]
    timing = paired([one + 40 + two for one, two in zip(reference, (0, 10, -10, 20, -20), strict=True)], reference)
    assert timing.beyond_ns == 40
    assert timing.beyond_error_ns == 9, "1.2533 x 20 / 1.349 / sqrt(5), rounded up"
    assert timing.median_ns == 1550


def test_a_difference_may_be_below_zero() -> None:
    assert paired([90, 95, 100], [100, 100, 100]).beyond_ns == -5


def test_a_summary_is_min_median_and_quartiles() -> None:
    timing = summary([50, 10, 40, 20, 30])
    assert (timing.min_ns, timing.lower_quartile_ns, timing.median_ns, timing.upper_quartile_ns) == (10, 20, 30, 40)
    assert timing.repeats == 5
