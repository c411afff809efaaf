"""Configurations take turns, until a kernel is steady or has had its repeats."""

import functools
import itertools

import pytest
from stand_in_clock import StandInClock

from autotm.profile.kernel_timing import ProfileOptions, paired, summary, time_interleaved


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandInClock:
    return StandInClock().put_into(monkeypatch, "profile.kernel_timing")


def test_each_round_runs_every_configuration_once_on_fresh_copies() -> None:
    seen: list[tuple[int, int]] = []
    calls = [[functools.partial(seen.append, (config, copy)) for copy in range(4)] for config in range(3)]
    time_interleaved(calls, [None, 0, 0], ProfileOptions(min_repeats=8, max_repeats=8))
    timed = seen[3:]
    assert [sorted(config for config, _ in timed[i : i + 3]) for i in range(0, 24, 3)] == [[0, 1, 2]] * 8
    assert [copy for _, copy in seen] == [turn % 4 for turn in range(len(seen))]
    assert {timed[i][0] for i in range(0, 24, 3)} == {0, 1, 2}, "no configuration is always the first"


def test_times_are_those_of_the_calls(stand_in: StandInClock) -> None:
    options = ProfileOptions(min_repeats=20, max_repeats=40)
    took = itertools.cycle([200_000, 210_000, 220_000])
    calls = [[lambda: stand_in.advance(next(took))], [lambda: stand_in.advance(500_000)]]
    short, long = time_interleaved(calls, [None, 0], options)
    assert (short.min_ns, short.lower_quartile_ns, short.median_ns) == (200_000, 200_000, 210_000)
    assert short.beyond_ns is None
    assert (long.min_ns, long.median_ns, long.upper_quartile_ns) == (500_000, 500_000, 500_000)
    assert long.beyond_ns == 290_000


@pytest.mark.parametrize(
    ("times_us", "options", "rounds"),
    [
        ([100, 102], ProfileOptions(min_repeats=5, max_repeats=1000, kernel_s=10, spread=0.5), 5),
        ([100, 102], ProfileOptions(min_repeats=5, max_repeats=1000, kernel_s=10, spread=0.0), 1000),
        ([1000, 1020], ProfileOptions(min_repeats=3, max_repeats=1000, kernel_s=0.05, spread=0.0), 50),
        ([20_000], ProfileOptions(min_repeats=3, max_repeats=1000, kernel_s=0.001, spread=-1.0), 3),
    ],
    ids=["steady", "never steady", "its time is over", "its time is over before its least rounds"],
)
def test_a_kernel_is_timed_until_it_is_steady_or_its_time_is_over(
    stand_in: StandInClock, times_us: list[int], options: ProfileOptions, rounds: int
) -> None:
    took = itertools.cycle(times_us)
    timing = time_interleaved([[lambda: stand_in.advance(1000 * next(took))]], [None], options)[0]
    assert timing.repeats == rounds


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
