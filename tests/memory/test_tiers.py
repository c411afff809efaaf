"""Pools and tiers: aligned views, bounds, poison; copies that take the device's time, delays that pass through."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from stand_in_clock import StandInClock

from autotm.memory.opening import open_tiers
from autotm.memory.pool import POISON_BYTE, Pool
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import OpClass, Tier
from autotm.model.links import Link, Links, MachineRates
from autotm.model.machine import Machine


def test_pools_start_zeroed_in_whole_pages_and_views_are_aligned_and_share_memory() -> None:
    pool = Pool(Tier.FAST, (1 << 16) + 64)
    whole = pool.view(0, ((1 << 14) + 16,), "float32")
    assert whole.ctypes.data % 4096 == 0
    assert not whole.any()
    for offset in range(0, 4096, 64):
        part = pool.view(offset, (4, 4), "float32")
        assert part.ctypes.data % 64 == 0
        part[...] = offset
        assert (whole[offset // 4 : offset // 4 + 16] == offset).all()
        assert part.flags.c_contiguous


@pytest.mark.parametrize(
    ("offset", "count", "message"),
    [
        *((*place, "leave its 4100 bytes") for place in ((0, 4101), (-64, 1), (4160, 1), (1 << 40, 1))),
        (4096, 5, r"bytes \[4096, 4101\)"),
        (32, 1, "offset 32 is not a multiple of 64"),
    ],
)
def test_views_beyond_the_pool_and_misaligned_ones_are_refused(offset: int, count: int, message: str) -> None:
    with pytest.raises(AutotmError, match=message):
        Pool(Tier.FAST, 4100).view(offset, (count,), "uint8")


def test_scalars_booleans_the_last_byte_and_empty_arrays() -> None:
    pool = Pool(Tier.FAST, 100)
    pool.view(64, (), "int64")[...] = 7
    assert pool.view(64, (1,), "int64")[0] == 7
    assert pool.view(0, (2, 3), "bool").dtype == np.bool_
    assert pool.view(64, (36,), "uint8").size == 36
    assert pool.view(64, (0, 5), "float32").shape == (0, 5)
    assert Pool(Tier.FAST, 0).view(0, (0,), "float32").size == 0


def test_poison_reads_as_nan_and_spares_its_neighbours() -> None:
    pool = Pool(Tier.FAST, 4096)
    values = pool.view(0, (1024,), "float32")
    values[...] = 1
    pool.poison(64, 128)
    assert np.isnan(values[16:48]).all()
    assert (values[:16] == 1).all()
    assert (values[48:] == 1).all()
    assert (pool.view(64, (128,), "uint8") == POISON_BYTE).all()
    with pytest.raises(AutotmError, match="leave its 4096 bytes"):
        pool.poison(4032, 65)


@pytest.mark.parametrize("size_bytes", [-1, psutil.virtual_memory().total + (1 << 30)])
def test_impossible_sizes_are_refused(size_bytes: int) -> None:
    with pytest.raises(AutotmError, match="pmem pool"):
        Pool(Tier.SLOW, size_bytes)


def test_memory_outlives_close_while_a_view_lives() -> None:
    pool = Pool(Tier.FAST, 4096)
    view = pool.view(0, (1024,), "float32")
    pool.close()
    view[...] = 3
    assert (view == 3).all()
    with pytest.raises(AutotmError, match="leave its 0 bytes"):
        pool.view(0, (1,), "uint8")


@pytest.mark.parametrize("size_bytes", [4096, (2 << 20) + 4096])
def test_moves_copy_in_both_directions(machine: Machine, devices_dir: Path, size_bytes: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, size_bytes, dtype=np.uint8)
    with open_tiers(machine, None, 2 * size_bytes, size_bytes, devices_dir, stretch=0.01) as tiers:
        first, second = (tiers.fast.view(offset, (size_bytes,), "uint8") for offset in (0, size_bytes))
        slow = tiers.slow.view(0, (size_bytes,), "uint8")
        first[...] = values
        tiers.copy(slow, first, Tier.SLOW)
        tiers.copy(second, slow, Tier.FAST)
        assert np.array_equal(second, values)


def test_copies_beside_kernels_run_where_no_kernel_does(machine: Machine, devices_dir: Path) -> None:
    spare = machine.cpus[-1:]
    with open_tiers(replace(machine, spare_cpus=spare), None, 64, 64, devices_dir, stretch=0.01) as tiers:
        fast, slow = (tiers.pool(tier).view(0, (64,), "uint8") for tier in Tier)
        async_copy = tiers.async_copy(slow, fast, Tier.SLOW, 0)
        async_copy.start()
        async_copy.wait()
        copying = next(thread for thread in threading.enumerate() if thread.name == f"autotm-to-{Tier.SLOW}")
        assert copying.native_id is not None
        assert os.sched_getaffinity(copying.native_id) == set(spare)


@pytest.mark.parametrize(("destination", "expected_ns"), [(Tier.FAST, 2_000_000), (Tier.SLOW, 4_000_000)])
def test_moves_take_the_devices_time(
    machine: Machine, devices_dir: Path, monkeypatch: pytest.MonkeyPatch, destination: Tier, expected_ns: int
) -> None:
    """The wait counts from the move's beginning: what the copy itself took is no longer waited for."""
    source = Tier.SLOW if destination is Tier.FAST else Tier.FAST
    with open_tiers(machine, None, 100_000, 100_000, devices_dir, stretch=20) as tiers:
        views = {tier: tiers.pool(tier).view(0, (100_000,), "uint8") for tier in Tier}
        stand_in = StandInClock(tick_ns=10).put_into(monkeypatch, "memory.emulation", "memory.kinds.emulated")
        copied = tiers._engine.copy
        monkeypatch.setattr(tiers._engine, "copy", lambda *views: (copied(*views), stand_in.advance(500_000)))
        tiers.copy(views[destination], views[source], destination)
    assert 0 <= stand_in.now_ns - stand_in.read_at_ns[0] - expected_ns < 10


def test_a_caches_own_traffic_takes_the_time_of_this_machines_fast_memory(machine: Machine, devices_dir: Path) -> None:
    """Only the slow operands' time is stretched."""
    links = Links(Link(Tier.FAST, ((1, 1), (2, 2))), Link(Tier.SLOW, ((1, 1), (2, 2))), 1e12, 2.5)
    for rates, own_ns in ((None, 0), (MachineRates(1.0, 2e9), 500)):
        with open_tiers(machine, replace(links, rates=rates), 0, 0, devices_dir) as tiers:
            assert tiers.kernel_delay_ns(OpClass.MATMUL, (1000,), (1000,)) == 6250
            assert tiers.cache_delay_ns(OpClass.MATMUL, 1000, 1000, 1000) == 6250 + own_ns


def test_balanced_tier_needs_calibration(machine: Machine, devices_dir: Path) -> None:
    with pytest.raises(BadInputError, match=r"needs links\.json"):
        open_tiers(machine, None, 4096, 4096, devices_dir)
