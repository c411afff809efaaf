"""Calibration: links measured through emulated copies, and the stretch that goes with them."""

import functools
import os
import time
from pathlib import Path

import numpy as np
import pytest

from autotm.memory import calibration
from autotm.memory.async_copy import CHUNK_BYTES, CopyEngine
from autotm.memory.calibration import calibrate_links
from autotm.memory.contention import call_us, contention
from autotm.memory.tiers import Tiers
from autotm.model.files.errors import BadInputError
from autotm.model.machine.cores import Watch
from autotm.model.machine.machine import EmulatedTier, Machine
from autotm.model.step.tier import Tier


def work() -> None:
    """A few milliseconds of arithmetic that leaves the interpreter to others."""
    np.dot(MATRIX, MATRIX)


MATRIX = np.ones((500, 500), np.float32)
WATCH = Watch(sorted(os.sched_getaffinity(0)), 1.0)
SIZES = (4096, 65536, 4 << 20)


def test_links_hold_measured_times_no_shorter_than_the_device(machine: Machine, devices_dir: Path) -> None:
    links = calibrate_links(machine, devices_dir, 1e12, [work], WATCH, sizes_bytes=SIZES, repeats=3)
    assert links.emulation_stretch == 2
    assert links.contraction_flop_per_s == 1e12
    for link, bytes_per_s in ((links.to_fast, 1e9), (links.to_slow, 0.5e9)):
        assert tuple(size for size, _ in link.points) == SIZES
        for size, elapsed_ns in link.points:
            assert elapsed_ns >= round(2 * size / bytes_per_s * 1e9)
    assert (links.to_fast.destination, links.to_slow.destination) == (Tier.DRAM, Tier.PMEM)
    assert links.copy_us(Tier.PMEM, SIZES[-1]) > links.copy_us(Tier.DRAM, SIZES[-1])


def test_large_copies_are_repeated_less(machine: Machine, devices_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    copy = calibration._timed_copy_ns

    def counted(tiers: Tiers, offset: int, size_bytes: int, destination: Tier) -> int:
        seen.append(size_bytes)
        return copy(tiers, offset, size_bytes, destination)

    monkeypatch.setattr(calibration, "_timed_copy_ns", counted)
    watch = Watch(machine.cpus, 0.0)
    links = calibrate_links(machine, devices_dir, 1e12, [work], watch, sizes_bytes=(4096, 16 << 20), repeats=9)
    assert seen.count(16 << 20) < seen.count(4096)
    assert seen.count(4096) >= 2 * (1 + 9), "both directions, one to warm up"
    assert seen.count(16 << 20) >= 2 * (1 + 5)
    assert links.copy_us(Tier.DRAM, 16 << 20) > links.copy_us(Tier.DRAM, 4096)


@pytest.mark.wall_clock
def test_asynchronous_links_are_measured_at_their_own_bandwidth(machine: Machine, devices_dir: Path) -> None:
    links = calibrate_links(machine, devices_dir, 1e12, [work], WATCH, sizes_bytes=SIZES, repeats=3)
    measured = links.asynchronous
    assert measured is not None
    for link, bytes_per_s in ((measured.to_fast, 0.25e9), (measured.to_slow, 0.125e9)):
        for size, elapsed_ns in link.points:
            assert elapsed_ns >= round(2 * size / bytes_per_s * 1e9)
    size = SIZES[-1]
    assert 0 <= measured.contention_to_slow < 1
    assert links.beside_us(Tier.PMEM, size) < links.transfer_us(Tier.PMEM, size)
    assert 0 < measured.call_us < 10_000


@pytest.mark.wall_clock
def test_contention_is_what_a_copy_takes_from_its_co_runners() -> None:
    """One co-runner takes twice as long beside a copy, another does not care."""
    engine = CopyEngine("test", os.sched_getaffinity(0), lambda _: 4_000_000)
    async_copy = engine.prepare(np.zeros(10 * CHUNK_BYTES, np.uint8), np.ones(10 * CHUNK_BYTES, np.uint8), 0)

    def disturbed() -> None:
        time.sleep(0.004 if not async_copy.is_done else 0.002)

    try:
        assert contention(async_copy, [disturbed], 5, WATCH) == pytest.approx(0.5, abs=0.15)
        assert contention(async_copy, [disturbed, functools.partial(time.sleep, 0.003)], 5, WATCH) == pytest.approx(
            0.25, abs=0.1
        )
        assert 0 < call_us(async_copy, 3, WATCH) < 10_000
    finally:
        engine.close()


def test_nothing_to_run_beside_is_refused(machine: Machine, devices_dir: Path) -> None:
    with pytest.raises(BadInputError, match="co-runners"):
        calibrate_links(machine, devices_dir, 1e12, [], WATCH)


def test_whole_device_is_not_stretched(machine: Machine, devices_dir: Path) -> None:
    tier = EmulatedTier(kind="emulated", device="plain", share="whole")
    whole = Machine("test", machine.threads, machine.cpus, "host", tier, "0" * 16)
    links = calibrate_links(whole, devices_dir, 1e10, [work], WATCH, sizes_bytes=SIZES, repeats=1)
    assert links.emulation_stretch == 1


def test_caller_keeps_its_cores(machine: Machine, devices_dir: Path) -> None:
    before = os.sched_getaffinity(0)
    calibrate_links(machine, devices_dir, 1e13, [work], WATCH, sizes_bytes=(64, 128), repeats=1)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("sizes", "repeats", "named"),
    [((4096,), 3, "sizes"), ((8192, 4096), 3, "sizes"), ((4096, 4100), 3, "sizes"), ((4096, 8192), 0, "repeats")],
)
def test_what_measures_nothing_is_refused(
    machine: Machine, devices_dir: Path, sizes: tuple[int, ...], repeats: int, named: str
) -> None:
    with pytest.raises(BadInputError, match=named):
        calibrate_links(machine, devices_dir, 1e12, [work], WATCH, sizes_bytes=sizes, repeats=repeats)
