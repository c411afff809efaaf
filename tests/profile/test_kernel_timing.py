"""Timing one kernel: ordinary operands, configurations that take turns; and sets that one run of the step can time."""

from __future__ import annotations

import functools
import itertools
from collections import Counter

import numpy as np
import pytest
import small_step
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import random_case
from stand_in_clock import StandInClock

from autotm.memory.opening import open_tiers
from autotm.model.graph import Initial, configuration
from autotm.profile.kernel_timing import (
    MAX_COPIES,
    Filler,
    ProfileOptions,
    paired,
    plan_operands,
    summary,
    time_interleaved,
)
from autotm.profile.profiler import cases
from autotm.profile.timing_study import rounds, wanted_configurations


def test_copies_fill_the_rotation_but_are_bounded() -> None:
    graph = small_step.graph()
    relu, update = graph.kernels[1], plan_operands(graph, graph.kernels[7], 1)
    assert plan_operands(graph, relu, 1).copies == 2
    assert plan_operands(graph, relu, 10 * plan_operands(graph, relu, 1).copy_bytes).copies == 10
    assert plan_operands(graph, relu, 10**12).copies == MAX_COPIES
    assert update.offsets[0] == update.offsets[2] != update.offsets[1], "a new parameter has the old one's memory"
    assert update.copy_bytes == 2 * 64 * 64 * 4


def test_views_lie_in_the_tier_of_their_letter_and_copies_do_not_overlap() -> None:
    graph = small_step.graph()
    plan = plan_operands(graph, graph.kernels[1], 1)
    with open_tiers(
        small_step.machine(), small_step.links(), plan.pool_bytes, plan.pool_bytes, small_step.DEVICES
    ) as tiers:
        source, target = plan.views(tiers, "DP", 1)
        source[...], target[...] = 1.0, 2.0
        assert (tiers.fast.view(plan.copy_bytes, (32, 64), "float32") == 1.0).all()
        assert (tiers.slow.view(plan.copy_bytes + plan.offsets[1], (32, 64), "float32") == 2.0).all()
        assert not tiers.fast.view(0, (plan.copy_bytes,), "uint8").any()
        del source, target


def test_operands_are_ordinary_numbers_and_indices_from_their_whole_range() -> None:
    filler, initial = Filler(seed=3), Initial("integers", 50)
    floats, whole = np.zeros((3, 1 << 20), np.float32), np.full(100, 7, np.int64)
    filler.fill(floats)
    filler.fill(whole)
    assert floats.min() >= 0.5
    assert floats.max() < 1.5001
    assert len(np.unique(floats)) > 1000
    assert set(whole) == {0, 1}
    first, second = np.zeros((20, 30), np.int32), np.zeros((20, 30), np.int32)
    filler.fill(first, initial)
    filler.fill(second, initial)
    assert set(np.unique(first)) == set(range(50))
    assert (first != second).mean() > 0.9, "they are drawn anew"


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
    assert time_interleaved([[lambda: stand_in.advance(1000 * next(took))]], [None], options)[0].repeats == rounds


def test_a_difference_is_taken_round_by_round() -> None:
    """A machine that slows down between rounds slows down both: what one adds stays as sharp as if it had not."""
    reference = [1000, 1500, 3000, 2000, 1200]
    timing = paired([one + 40 + two for one, two in zip(reference, (0, 10, -10, 20, -20), strict=True)], reference)
    assert timing.beyond_ns == 40
    assert timing.beyond_error_ns == 9, "1.2533 x 20 / 1.349 / sqrt(5), rounded up"
    assert timing.median_ns == 1550
    assert paired([90, 95, 100], [100, 100, 100]).beyond_ns == -5, "it may be below zero"


def test_a_summary_is_min_median_and_quartiles() -> None:
    timing = summary([50, 10, 40, 20, 30])
    assert (timing.min_ns, timing.lower_quartile_ns, timing.median_ns, timing.upper_quartile_ns) == (10, 20, 30, 40)
    assert timing.repeats == 5


@given(st.integers(0, 10_000))
def test_sets_are_complete_share_no_tensor_and_leave_out_nothing_that_fits(seed: int) -> None:
    """So every kernel of a set is configured as asked."""
    graph = random_case(seed).graph.computed_by(())
    wanted = wanted_configurations(graph)
    assert len(wanted) == sum(len(case.configurations) for case in cases(graph, "full"))
    sets = rounds(graph, wanted)
    assert Counter(one for chosen in sets for one in chosen) == Counter(wanted)
    for number, chosen in enumerate(sets):
        tensors = [tensor for one in chosen for tensor in graph.slots_of(graph.kernels[one.kernel])]
        assert len(tensors) == len(set(tensors))
        kernels = {one.kernel for one in chosen}
        assert len(kernels) == len(chosen)
        slow = frozenset[str]().union(*(one.slow for one in chosen))
        for one in chosen:
            assert configuration(graph, graph.kernels[one.kernel], slow) == one.configuration
        for one in (each for later in sets[number + 1 :] for each in later):
            assert one.kernel in kernels or set(tensors) & graph.slots_of(graph.kernels[one.kernel]).keys()
