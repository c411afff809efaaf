"""Calibration: links measured through emulated copies, and the stretch that goes with them."""

import functools
import itertools
import os
import time
from pathlib import Path

import numpy as np
import pytest

from autotm.memory.async_copy import CHUNK_BYTES, CopyEngine
from autotm.memory.calibration.contention import call_us, contention
from autotm.memory.calibration.copy_curves import ways_to_measure
from autotm.memory.calibration.links import calibrate_links
from autotm.memory.calibration.sampling import Effort
from autotm.memory.native import PLAIN
from autotm.model.files.errors import BadInputError
from autotm.model.machine import EmulatedTier, Machine
from autotm.model.machine.cores import Watch
from autotm.model.step.graph import OpClass
from autotm.model.step.tier import Tier


def work() -> None:
    """A few milliseconds of arithmetic that leaves the interpreter to others."""
    np.dot(MATRIX, MATRIX)


MATRIX = np.ones((500, 500), np.float32)
WATCH = Watch(sorted(os.sched_getaffinity(0)), 1.0)
ALL = dict.fromkeys(OpClass, work)
SIZES = (4096, 65536, 4 << 20)
ONCE, THRICE, FIVE = Effort(1, 1), Effort(3, 3), Effort(5, 5)


def test_links_hold_measured_times_no_shorter_than_the_device(machine: Machine, devices_dir: Path) -> None:
    links = calibrate_links(machine, devices_dir, 1e12, ALL, WATCH, sizes_bytes=SIZES, effort=THRICE)
    assert links.emulation_stretch == 2
    assert links.contraction_flop_per_s == 1e12
    for link, bytes_per_s in ((links.to_fast, 1e9), (links.to_slow, 0.5e9)):
        assert tuple(size for size, _ in link.points) == SIZES
        for size, elapsed_ns in link.points:
            assert elapsed_ns >= round(2 * size / bytes_per_s * 1e9)
    assert (links.to_fast.destination, links.to_slow.destination) == (Tier.DRAM, Tier.PMEM)
    for tier, link in ((Tier.DRAM, links.to_fast), (Tier.PMEM, links.to_slow)):
        assert links.copy_us(tier, SIZES[-1]) == pytest.approx(link.points[-1][1] / 1e3)


def test_sizes_that_would_take_too_long_are_left_out(machine: Machine, devices_dir: Path) -> None:
    """A copy of 4 MiB takes 8 ms to fast and 16 ms to slow memory, and eight times as long beside kernels."""
    effort = Effort(1, 1, point_s=0.001)
    links = calibrate_links(
        machine, devices_dir, 1e12, ALL, WATCH, sizes_bytes=(4096, 4 << 20, 16 << 20), effort=effort
    )
    assert [size for size, _ in links.to_slow.points] == [4096, 4 << 20]
    assert links.copy_us(Tier.PMEM, 16 << 20) == pytest.approx(4 * links.copy_us(Tier.PMEM, 4 << 20))
    assert links.asynchronous is not None
    assert [size for size, _ in links.asynchronous.to_slow.points] == [4096, 4 << 20]


@pytest.mark.wall_clock
def test_copies_are_measured_by_threads_and_stores(machine: Machine, devices_dir: Path) -> None:
    links = calibrate_links(machine, devices_dir, 1e12, ALL, WATCH, sizes_bytes=SIZES, effort=ONCE)
    assert {(one.destination, one.threads, one.streams, one.ahead_bytes) for one in links.curves} == {
        (tier, way.threads, way.stores != PLAIN, way.stores.ahead_bytes)
        for tier, way in itertools.product(Tier, ways_to_measure(machine.threads))
    }
    for curve in links.curves:
        assert tuple(size for size, _ in curve.points) == SIZES
        assert all(0 < elapsed_ns < 1e9 for _, elapsed_ns in curve.points)
        assert curve.points[-1][1] < links.to_slow.points[-1][1], "without the emulated wait"


@pytest.mark.wall_clock
def test_asynchronous_links_are_measured_at_their_own_bandwidth(machine: Machine, devices_dir: Path) -> None:
    links = calibrate_links(machine, devices_dir, 1e12, ALL, WATCH, sizes_bytes=SIZES, effort=THRICE)
    measured = links.asynchronous
    assert measured is not None
    for link, bytes_per_s in ((measured.to_fast, 0.25e9), (measured.to_slow, 0.125e9)):
        for size, elapsed_ns in link.points:
            assert elapsed_ns >= round(2 * size / bytes_per_s * 1e9)
    assert measured.beside_to_fast.keys() == measured.beside_to_slow.keys() == set(OpClass)
    assert any(each.to_kernels < 1 for each in measured.beside_to_slow.values())
    assert 0 < measured.call_us < 10_000


@pytest.mark.wall_clock
def test_what_a_co_runner_takes_from_a_copy_is_seen() -> None:
    """Chunks take three times as long while it runs."""
    slow: list[int] = []
    engine = CopyEngine("test", os.sched_getaffinity(0), lambda _: 3_000_000 if slow else 1_000_000)
    async_copy = engine.prepare(np.zeros(10 * CHUNK_BYTES, np.uint8), np.ones(10 * CHUNK_BYTES, np.uint8), 0)

    def hogging() -> None:
        slow.append(1)
        time.sleep(0.002)
        if async_copy.is_done:
            slow.clear()

    try:
        found = contention(async_copy, {OpClass.ELEMENTWISE: hogging}, FIVE, WATCH)
        assert 1 < found[OpClass.ELEMENTWISE].to_copy < 3
    finally:
        engine.close()


@pytest.mark.wall_clock
def test_contention_is_what_a_copy_takes_from_its_co_runners() -> None:
    """One co-runner takes twice as long beside a copy, another does not care."""
    engine = CopyEngine("test", os.sched_getaffinity(0), lambda _: 4_000_000)
    async_copy = engine.prepare(np.zeros(10 * CHUNK_BYTES, np.uint8), np.ones(10 * CHUNK_BYTES, np.uint8), 0)

    def disturbed() -> None:
        time.sleep(0.004 if not async_copy.is_done else 0.002)

    co_runners = {OpClass.MATMUL: disturbed, OpClass.WINDOW: functools.partial(time.sleep, 0.003)}
    try:
        found = contention(async_copy, co_runners, FIVE, WATCH)
        assert found[OpClass.MATMUL].to_kernels == pytest.approx(0.5, abs=0.15)
        assert found[OpClass.WINDOW].to_kernels == pytest.approx(0, abs=0.1)
        assert all(each.to_copy < 0.2 for each in found.values()), "a paced copy catches up"
        assert 0 < call_us(async_copy, THRICE, WATCH) < 10_000
    finally:
        engine.close()


def test_nothing_to_run_beside_is_refused(machine: Machine, devices_dir: Path) -> None:
    with pytest.raises(BadInputError, match=r"co-runners.*conv_forward"):
        calibrate_links(machine, devices_dir, 1e12, {}, WATCH)


def test_whole_device_is_not_stretched(machine: Machine, devices_dir: Path) -> None:
    tier = EmulatedTier(kind="emulated", device="plain", share="whole")
    whole = Machine("test", machine.threads, machine.cpus, "host", tier, "0" * 16)
    links = calibrate_links(whole, devices_dir, 1e10, ALL, WATCH, sizes_bytes=SIZES, effort=ONCE)
    assert links.emulation_stretch == 1


def test_caller_keeps_its_cores(machine: Machine, devices_dir: Path) -> None:
    before = os.sched_getaffinity(0)
    calibrate_links(machine, devices_dir, 1e13, ALL, WATCH, sizes_bytes=(64, 128), effort=ONCE)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("sizes", "most", "named"),
    [((4096,), 3, "sizes"), ((8192, 4096), 3, "sizes"), ((4096, 4100), 3, "sizes"), ((4096, 8192), 0, "effort")],
)
def test_what_measures_nothing_is_refused(
    machine: Machine, devices_dir: Path, sizes: tuple[int, ...], most: int, named: str
) -> None:
    with pytest.raises(BadInputError, match=named):
        calibrate_links(machine, devices_dir, 1e12, ALL, WATCH, sizes_bytes=sizes, effort=Effort(0, most))
