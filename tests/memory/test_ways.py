"""Ways of copies: the fastest that was measured, and what caches suggest before."""

import itertools

import pytest

from autotm.memory.native.library import PLAIN, Stores, streamed_bytes, widest_store
from autotm.memory.native.ways import CopyMethod, measured_ways, usual_ways
from autotm.model.graph import Tier
from autotm.model.links import CopyCurve

SMALL, LARGE = streamed_bytes() // 16, streamed_bytes() * 16
STREAMING = Stores(widest_store())
pytestmark = pytest.mark.skipif(not widest_store(), reason="this processor has no streaming stores")


def curve(threads: int, stores: Stores, small_ns: int, large_ns: int, to: Tier = Tier.FAST) -> CopyCurve:
    return CopyCurve(to, threads, stores != PLAIN, stores.ahead_bytes, ((SMALL, small_ns), (LARGE, large_ns)))


def test_caches_say_when_a_copy_streams() -> None:
    ways = usual_ways(4)
    assert ways.way(streamed_bytes() - 1).stores == PLAIN
    assert ways.way(streamed_bytes()).stores == ways.stores_alone(streamed_bytes()) == STREAMING
    assert (ways.way(0).threads, ways.way(1 << 30).threads) == (1, 4)
    assert 4096 <= streamed_bytes() <= 1 << 26


def test_the_fastest_way_is_taken_at_each_size() -> None:
    curves = [
        curve(1, PLAIN, 100, 2000),
        curve(1, STREAMING, 200, 1500),
        curve(1, Stores(widest_store(), 1024), 200, 1200),
        curve(2, PLAIN, 400, 1000),
        curve(2, Stores(widest_store(), 1024), 400, 700),
    ]
    ways = measured_ways(curves, Tier.FAST, 2)
    assert ways.way(SMALL) == CopyMethod(1, PLAIN)
    assert ways.way(LARGE) == ways.way(1 << 40) == CopyMethod(2, Stores(widest_store(), 1024))
    assert ways.stores_alone(LARGE) == Stores(widest_store(), 1024)
    assert measured_ways(curves, Tier.FAST, 1).way(LARGE) == CopyMethod(1, Stores(widest_store(), 1024)), (
        "only so many threads"
    )


def test_between_sizes_the_nearer_decides() -> None:
    curves = [curve(1, PLAIN, 100, 2000), curve(2, PLAIN, 400, 1000)]
    ways = measured_ways(curves, Tier.FAST, 2)
    halfway = streamed_bytes()
    assert [ways.way(halfway + more).threads for more in (-64, 64)] == [1, 2]


def test_of_ways_as_fast_most_threads_copy_and_leave_caches_alone() -> None:
    stores = (PLAIN, STREAMING, Stores(widest_store(), 1024))
    times = itertools.count(1000, -1)
    curves = [curve(threads, each, 100, next(times)) for threads in (1, 2, 4) for each in stores]
    assert measured_ways(curves, Tier.FAST, 4).way(LARGE) == CopyMethod(4, STREAMING)
    assert measured_ways(curves, Tier.FAST, 4).way(SMALL) == CopyMethod(1, PLAIN)


def test_one_disturbed_size_does_not_choose_the_prefetch() -> None:
    early, sizes = Stores(widest_store(), 4096), [LARGE << power for power in range(4)]
    undisturbed = [1000 << power for power in range(4)]
    disturbed = [2 * undisturbed[0], *undisturbed[1:]]
    curves = [
        CopyCurve(Tier.FAST, 1, stores != PLAIN, stores.ahead_bytes, tuple(zip(sizes, times, strict=True)))
        for stores, times in (
            (PLAIN, [3 * ns for ns in undisturbed]),
            (STREAMING, disturbed),
            (early, [ns * 5 // 4 for ns in undisturbed]),
        )
    ]
    ways = measured_ways(curves, Tier.FAST, 1)
    assert {ways.stores_alone(size) for size in sizes} == {STREAMING}


def test_what_stays_in_the_caches_is_not_streamed_past_them() -> None:
    curves = [curve(1, PLAIN, 100, 1000), curve(1, STREAMING, 50, 1000)]
    assert measured_ways(curves, Tier.FAST, 1).way(SMALL) == CopyMethod(1, PLAIN)


def test_directions_have_ways_of_their_own() -> None:
    curves = [
        *(curve(1, PLAIN, 100, 1000), curve(1, STREAMING, 100, 500)),
        *(curve(1, PLAIN, 100, 500, Tier.SLOW), curve(1, STREAMING, 100, 1000, Tier.SLOW)),
    ]
    assert measured_ways(curves, Tier.FAST, 1).way(LARGE).stores == STREAMING
    assert measured_ways(curves, Tier.SLOW, 1).way(LARGE).stores == PLAIN


def test_without_curves_caches_decide() -> None:
    assert measured_ways([], Tier.FAST, 3) == usual_ways(3)
