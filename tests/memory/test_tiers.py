"""Opened tiers: pools of both sizes, copies that take the device's time, delays that pass through."""

import dataclasses
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from stand_in_clock import StandInClock

from autotm.memory.tiers import open_tiers, tier_kinds
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass, Tier
from autotm.model.machine import EmulatedTier, Machine


def test_pools_have_their_sizes_and_tiers(machine: Machine, devices_dir: Path) -> None:
    with open_tiers(machine, None, 4096, 8192, devices_dir, stretch=1) as tiers:
        assert (tiers.fast.size_bytes, tiers.slow.size_bytes) == (4096, 8192)
        assert tiers.pool(Tier.FAST) is tiers.fast
        assert tiers.pool(Tier.SLOW) is tiers.slow


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
    leaving_one = dataclasses.replace(machine, spare_cpus=spare)
    with open_tiers(leaving_one, None, 64, 64, devices_dir, stretch=0.01) as tiers:
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
        stand_in = StandInClock(tick_ns=10).put_into(monkeypatch, "memory.clock", "memory.kinds.emulated")
        copied = tiers._copied
        monkeypatch.setattr(tiers, "_copied", lambda *views: (copied(*views), stand_in.advance(500_000)))
        tiers.copy(views[destination], views[source], destination)
    assert 0 <= stand_in.now_ns - stand_in.read_at_ns[0] - expected_ns < 10


def test_kernel_delays_are_the_emulated_ones(machine: Machine, devices_dir: Path) -> None:
    with open_tiers(machine, None, 0, 0, devices_dir, stretch=3) as tiers:
        assert tiers.kernel_delay_ns(OpClass.ELEMENTWISE, (1000,), (1000,)) == 7500


def test_balanced_tier_needs_calibration(machine: Machine, devices_dir: Path) -> None:
    with pytest.raises(BadInputError, match=r"needs links\.json"):
        open_tiers(machine, None, 4096, 4096, devices_dir)


def test_unknown_kind_names_the_known_ones(machine: Machine, devices_dir: Path) -> None:
    tier = EmulatedTier.model_construct(kind="emulatd", device="plain", share="whole")
    wrong = Machine("test", machine.threads, machine.cpus, "host", tier, "0" * 16)
    with pytest.raises(BadInputError, match="did you mean 'emulated'"):
        open_tiers(wrong, None, 4096, 4096, devices_dir)


def test_kinds_are_the_modules_of_the_package() -> None:
    assert "emulated" in tier_kinds()
