"""Calibration: links measured through emulated copies, and the stretch that goes with them."""

import os
from pathlib import Path

import pytest

from autotm.memory.calibration import calibrate_links
from autotm.model.errors import BadInputError
from autotm.model.machine import EmulatedTier, Machine
from autotm.model.tier import Tier

SIZES = (4096, 65536, 4 << 20)


def test_links_hold_measured_times_no_shorter_than_the_device(machine: Machine, devices_dir: Path) -> None:
    links = calibrate_links(machine, devices_dir, 1e12, sizes_bytes=SIZES, repeats=3)
    assert links.emulation_stretch == 2
    assert links.contraction_flop_per_s == 1e12
    for link, bytes_per_s in ((links.to_fast, 1e9), (links.to_slow, 0.5e9)):
        assert tuple(size for size, _ in link.points) == SIZES
        for size, elapsed_ns in link.points:
            assert elapsed_ns >= round(2 * size / bytes_per_s * 1e9)
    assert (links.to_fast.destination, links.to_slow.destination) == (Tier.DRAM, Tier.PMEM)
    assert links.copy_us(Tier.PMEM, SIZES[-1]) > links.copy_us(Tier.DRAM, SIZES[-1])


def test_whole_device_is_not_stretched(machine: Machine, devices_dir: Path) -> None:
    tier = EmulatedTier(kind="emulated", device="plain", share="whole")
    whole = Machine("test", machine.threads, machine.cpus, "host", tier, "0" * 16)
    links = calibrate_links(whole, devices_dir, 1e10, sizes_bytes=SIZES, repeats=1)
    assert links.emulation_stretch == 1


def test_caller_keeps_its_cores(machine: Machine, devices_dir: Path) -> None:
    before = os.sched_getaffinity(0)
    calibrate_links(machine, devices_dir, 1e13, sizes_bytes=(64, 128), repeats=1)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("sizes", "repeats", "named"),
    [((4096,), 3, "sizes"), ((8192, 4096), 3, "sizes"), ((4096, 4100), 3, "sizes"), ((4096, 8192), 0, "repeats")],
)
def test_what_measures_nothing_is_refused(
    machine: Machine, devices_dir: Path, sizes: tuple[int, ...], repeats: int, named: str
) -> None:
    with pytest.raises(BadInputError, match=named):
        calibrate_links(machine, devices_dir, 1e12, sizes_bytes=sizes, repeats=repeats)
