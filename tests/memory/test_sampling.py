"""How often a time is taken: until its median is known, within bounds, and for too long never."""

import itertools
import math
import os
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from autotm.memory.calibration import Effort, half_interval, medians_ns, sizes_in_time
from autotm.model.cores import Watch

PATIENT = Watch(sorted(os.sched_getaffinity(0)), 1.0)


def drawn(times_ns: list[int]) -> Callable[[], int]:
    return itertools.cycle(times_ns).__next__


def test_what_does_not_scatter_is_timed_less_often() -> None:
    taken: dict[str, int] = {"still": 0, "loud": 0}

    def counted(name: str, times_ns: list[int]) -> Callable[[], int]:
        sample = drawn(times_ns)

        def once() -> int:
            taken[name] += 1
            return sample()

        return once

    timed = {"still": counted("still", [1000, 1001]), "loud": counted("loud", [500, 1000, 1500])}
    found = medians_ns(timed, Effort(least=5, most=12), PATIENT, "made-up times")
    assert taken == {"still": 5, "loud": 12}
    assert found == {"still": 1000, "loud": 1000}


def test_points_that_take_long_are_timed_once() -> None:
    """As on a machine that is a thousand times slower."""
    effort = Effort(least=5, most=15, point_s=1.0)
    assert not effort.is_enough([])
    assert not effort.is_enough([400_000_000, 500_000_000])
    taken: list[int] = []

    def sample(point: int) -> int:
        taken.append(point)
        return 1_000_000_000

    medians_ns({point: partial(sample, point) for point in range(5)}, effort, PATIENT, "long ones")
    assert taken == [0, 1, 2, 3, 4]


def test_an_interval_is_judged_by_what_it_is_a_share_of() -> None:
    """Differences around nothing: what counts is how large they are beside the copy."""
    differences = [-30.0, -10.0, 0.0, 10.0, 30.0]
    assert Effort(share=0.02).is_known(differences, 2000.0, 0)
    assert not Effort(share=0.02).is_known(differences, 1000.0, 0)


@pytest.mark.parametrize(("count", "least"), [(5, 0.92), (9, 0.93), (15, 0.93), (31, 0.93)])
def test_the_interval_holds_the_median(count: int, least: float) -> None:
    """Whatever the distribution: it lies below the k-th smallest of n draws as often as fewer than k fall below it."""
    rank = (count - 1 - round(2 * half_interval(range(count)))) // 2
    missed = 2 * sum(math.comb(count, below) for below in range(rank + 1)) / 2**count
    assert least <= 1 - missed < 0.999
    skewed = np.random.default_rng(0).lognormal(0.0, 1.0, count)
    ordered = np.sort(skewed)
    assert 2 * half_interval(list(skewed)) == pytest.approx(ordered[count - 1 - rank] - ordered[rank])


def test_sizes_end_where_they_take_too_long_but_two_remain() -> None:
    sizes = (64, 4096, 1 << 20, 4 << 20)
    asked: list[int] = []

    def ns(size: int) -> int:
        asked.append(size)
        return size * 1000

    assert sizes_in_time(sizes, ns, point_s=10.0) == sizes
    asked.clear()
    assert sizes_in_time(sizes, ns, point_s=0.5) == sizes[:3]
    assert asked == [*sizes[:3]], "nothing larger is tried"
    assert sizes_in_time(sizes, ns, point_s=1e-9) == sizes[:2]
