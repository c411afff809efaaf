"""Calibration: medians known well enough, links through emulated copies, what copies and kernels cost each other."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from stand_in_clock import StandInClock

from autotm.memory.calibration import (
    Effort,
    calibrate_links,
    call_us,
    contention,
    copy_bytes_per_s,
    half_interval,
    medians_ns,
    methods_to_measure,
    sizes_in_time,
)
from autotm.memory.copies import PLAIN
from autotm.model.cores import Watch
from autotm.model.graph import OpClass, Tier
from autotm.model.links import Contention
from autotm.model.machine import Machine

WATCH = Watch(sorted(os.sched_getaffinity(0)), 1.0)


@pytest.mark.parametrize(
    ("times_ns", "samples"),
    [
        ({"still": [1000, 1001], "loud": [500, 1000, 1500]}, {"still": 5, "loud": 12}),
        ({"long": [1_000_000_000], "longer": [2_000_000_000]}, {"long": 1, "longer": 1}),
        ({"half a second": [400_000_000, 600_000_000]}, {"half a second": 2}),
    ],
)
def test_points_are_timed_as_often_as_their_scatter_and_length_ask(
    times_ns: dict[str, list[int]], samples: dict[str, int]
) -> None:
    taken: dict[str, list[int]] = {name: [] for name in times_ns}

    def sample(name: str) -> int:
        taken[name].append(times_ns[name][len(taken[name]) % len(times_ns[name])])
        return taken[name][-1]

    effort = Effort(least=5, most=12, point_s=1.0)
    medians = medians_ns({name: partial(sample, name) for name in times_ns}, effort, WATCH, "made-up times")
    assert {name: len(times) for name, times in taken.items()} == samples
    assert medians == {name: np.median(times) for name, times in taken.items()}


def test_an_interval_is_judged_by_what_it_is_a_share_of() -> None:
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
    assert asked == list(sizes[:3]), "nothing larger is tried"
    assert sizes_in_time(sizes, ns, point_s=1e-9) == sizes[:2]


SIZES = (4096, 65536, 4 << 20)
READINGS = 20
"""Nanoseconds: as many readings of the stand-in clock as a copy may take."""
THRICE = Effort(3, 3)
Work = dict[OpClass, Callable[[], None]]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandInClock:
    """A clock by which memory takes no time: only what is emulated does, and what co-runners say that they take."""
    modules = ("memory.emulation", "memory.copies", "memory.kinds.emulated", "memory.calibration")
    return StandInClock(tick_ns=1, call_ns=5000).put_into(monkeypatch, *modules)


@pytest.fixture
def co_runners(stand_in: StandInClock) -> Work:
    """A kernel of each op class that takes a millisecond."""
    return dict.fromkeys(OpClass, lambda: (stand_in.advance(1e6), time.sleep(0)))


def test_links_hold_what_the_device_takes_and_curves_what_memory_does(
    machine: Machine, devices_dir: Path, co_runners: Work
) -> None:
    cores = os.sched_getaffinity(0)
    links = calibrate_links(machine, devices_dir, 1e12, co_runners, WATCH, sizes_bytes=SIZES, effort=THRICE)
    assert os.sched_getaffinity(0) == cores
    assert links.emulation_stretch == 2
    assert links.contraction_flop_per_s == 1e12
    asynchronous = links.asynchronous
    assert asynchronous is not None
    for link, destination, bytes_per_s in (
        (links.to_fast, Tier.FAST, 1e9),
        (links.to_slow, Tier.SLOW, 0.5e9),
        (asynchronous.to_fast, Tier.FAST, 0.25e9),
        (asynchronous.to_slow, Tier.SLOW, 0.125e9),
    ):
        assert link.destination is destination
        assert dict(link.points) == pytest.approx({size: 2 * size / bytes_per_s * 1e9 for size in SIZES}, abs=READINGS)
    assert asynchronous.beside_to_fast.keys() == asynchronous.beside_to_slow.keys() == set(OpClass)
    assert {(one.destination, one.threads, one.streams, one.ahead_bytes) for one in links.curves} == {
        (tier, method.threads, method.stores != PLAIN, method.stores.ahead_bytes)
        for tier, method in itertools.product(Tier, methods_to_measure(machine.threads))
    }
    for curve in links.curves:
        assert dict(curve.points) == pytest.approx(dict.fromkeys(SIZES, 0), abs=READINGS), "without the emulated wait"


def test_sizes_that_would_take_too_long_are_left_out(machine: Machine, devices_dir: Path, co_runners: Work) -> None:
    """A copy of 4 MiB takes 8 ms to fast and 16 ms to slow memory, and four times as long beside kernels."""
    effort, sizes = Effort(1, 1, point_s=0.001), (4096, 4 << 20, 16 << 20)
    links = calibrate_links(machine, devices_dir, 1e12, co_runners, WATCH, sizes_bytes=sizes, effort=effort)
    assert [size for size, _ in links.to_slow.points] == [4096, 4 << 20]
    assert links.copy_us(Tier.SLOW, 16 << 20) == pytest.approx(4 * links.copy_us(Tier.SLOW, 4 << 20))
    assert links.asynchronous is not None
    assert [size for size, _ in links.asynchronous.to_slow.points] == [4096, 4 << 20]


class PlayedCopy:
    """A copy of 10 ms on a stand-in clock; what runs beside it may hold it up."""

    def __init__(self, stand_in: StandInClock) -> None:
        self._clock = stand_in
        self.call_ns = 0
        self.started_ns = self.ended_ns = 0

    def start(self) -> None:
        self.started_ns = self._clock.now_ns
        self.ended_ns = self.started_ns + 10_000_000
        self._clock.advance(self.call_ns)

    def wait(self) -> None:
        self._clock.now_ns = max(self._clock.now_ns, self.ended_ns)
        self._clock.advance(self.call_ns)

    @property
    def is_done(self) -> bool:
        return self._clock.now_ns >= self.ended_ns


def test_contention_is_what_a_copy_and_its_co_runners_take_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One takes twice as long beside a copy, another does not care, a third holds up the copy for half of its time."""
    stand_in = StandInClock().put_into(monkeypatch, "memory.calibration")
    copy = PlayedCopy(stand_in)

    def disturbed() -> None:
        stand_in.advance(2e6 if copy.is_done else 4e6)

    def hogging() -> None:
        copy.ended_ns += 0 if copy.is_done else 1_000_000
        stand_in.advance(2e6)

    co_runners = {OpClass.MATMUL: disturbed, OpClass.WINDOW: lambda: stand_in.advance(3e6), OpClass.REDUCTION: hogging}
    assert contention(copy, co_runners, Effort(5, 5), WATCH) == {
        OpClass.MATMUL: Contention(to_kernels=(12 - 6) / 10, to_copy=0),
        OpClass.WINDOW: Contention(to_kernels=0, to_copy=0),
        OpClass.REDUCTION: Contention(to_kernels=0, to_copy=1),
    }


def test_calls_of_a_copy_are_timed_without_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandInClock().put_into(monkeypatch, "memory.calibration")
    monkeypatch.setattr(stand_in, "sleep", lambda _: stand_in.advance(1e6))
    copy = PlayedCopy(stand_in)
    copy.call_ns = 3000
    assert call_us(copy, THRICE, WATCH) == 6


def test_the_rate_is_one_of_a_memory(machine: Machine) -> None:
    assert 1e7 < copy_bytes_per_s(machine, Watch(machine.cpus, 0.0), 8 << 20) < 1e13
