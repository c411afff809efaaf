"""Kind `dax` on real persistent memory: mapped with MAP_SYNC, nothing left behind, whatever is wrong said at once."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forked import forked
from holder import Holder

from autotm.memory.tiers import Tiers, open_tiers
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.machine import DaxTier, Machine

MIB = 1 << 20
FAST_BYTES, SLOW_BYTES = 16 * MIB, 64 * MIB
DEVICES = Path("config/devices")
NOBODY = 65534


def opened(machine: Machine, slow_bytes: int = SLOW_BYTES) -> Tiers:
    return open_tiers(machine, None, FAST_BYTES, slow_bytes, DEVICES)


def with_tier(machine: Machine, **changes: object) -> Machine:
    return replace(machine, slow_tier=DaxTier.model_validate(machine.slow_tier.model_dump() | changes))


def free_bytes(folder: Path) -> int:
    told = os.statvfs(folder)
    return told.f_bfree * told.f_frsize


def synchronous_bytes() -> int:
    """How much of this process's memory is mapped with MAP_SYNC, as /proc tells."""
    found = re.findall(r"Size:\s+(\d+) kB(?:(?!VmFlags)[\s\S])*VmFlags:(.*)", Path("/proc/self/smaps").read_text())
    return sum(int(size) << 10 for size, flags in found if " sf" in flags)


def test_the_pool_is_mapped_with_map_sync(dax: Machine, dax_folder: Path) -> None:
    free = free_bytes(dax_folder)
    with opened(dax) as tiers:
        assert synchronous_bytes() == SLOW_BYTES
        assert free - free_bytes(dax_folder) >= SLOW_BYTES
        tiers.check()
    assert synchronous_bytes() == 0


def test_the_pool_of_a_device_is_mapped_with_map_sync(device: Machine) -> None:
    with opened(device) as tiers:
        assert synchronous_bytes() == SLOW_BYTES
        tiers.check()
    assert synchronous_bytes() == 0


def test_no_file_has_a_name(dax: Machine, dax_folder: Path) -> None:
    (dax_folder / "mine").write_text("somebody's")
    before = sorted(dax_folder.iterdir())
    with opened(dax):
        assert sorted(dax_folder.iterdir()) == before
    assert (dax_folder / "mine").read_text() == "somebody's"
    (dax_folder / "mine").unlink()


def test_bytes_survive_in_pools(dax: Machine, device: Machine) -> None:
    for machine in dax, device:
        with opened(machine) as tiers:
            views = [pool.view(0, (FAST_BYTES // 4,), "int32") for pool in (tiers.fast, tiers.slow)]
            views[0][:] = np.arange(views[0].size)
            tiers.copy(views[1], views[0], tiers.slow.tier)
            views[0][:] = 0
            tiers.copy(views[0], views[1], tiers.fast.tier)
            assert (views[0][1:] - views[0][:-1] == 1).all()
            del views


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_nothing(dax: Machine, dax_folder: Path, number: signal.Signals) -> None:
    free, names = free_bytes(dax_folder), sorted(dax_folder.iterdir())
    holder = Holder(lambda: opened(dax))
    assert free - free_bytes(dax_folder) >= SLOW_BYTES
    holder.end(number)
    assert (free_bytes(dax_folder), sorted(dax_folder.iterdir())) == (free, names)
    opened(dax).close()


@pytest.mark.parametrize("kind", ["dax", "device"])
def test_two_runs_in_one_place(kind: str, request: pytest.FixtureRequest) -> None:
    machine = request.getfixturevalue(kind)
    holder = Holder(lambda: opened(machine))
    try:
        with pytest.raises(BadInputError, match=rf"in use by another run \(process {holder.process}\)"):
            opened(machine)
    finally:
        holder.end(signal.SIGKILL)
    opened(machine).close()


def test_a_folder_that_is_not_on_dax(dax: Machine) -> None:
    with pytest.raises(BadInputError, match=r"do not have DAX \(tmpfs at /dev/shm"):
        opened(with_tier(dax, path="/dev/shm"))


@pytest.mark.parametrize("path", ["/mnt/nothing", "/etc/passwd"])
def test_what_is_no_folder(dax: Machine, path: str) -> None:
    with pytest.raises(BadInputError, match=r"does not exist|neither a folder nor a DAX device"):
        opened(with_tier(dax, path=path))


@pytest.mark.parametrize("kind", ["dax", "device"])
def test_without_permission(kind: str, request: pytest.FixtureRequest) -> None:
    machine = request.getfixturevalue(kind)
    opened(machine).close()  # Afterwards nothing is imported from this checkout, which nobody else may have to read.

    def unprivileged() -> None:
        os.setuid(NOBODY)
        opened(machine)

    assert re.search("may not write|Permission denied", forked(unprivileged))


@pytest.mark.parametrize("kind", ["dax", "device"])
def test_more_than_there_is_an_error(kind: str, request: pytest.FixtureRequest) -> None:
    machine = request.getfixturevalue(kind)
    assert re.search("GB are free in|GB left", forked(lambda: opened(machine, 700 * MIB)))
    with pytest.raises(BadInputError, match="is more than there is"):
        opened(with_tier(machine, capacity="64GB"))


def test_a_full_file_system_is_an_error(dax: Machine, dax_folder: Path) -> None:
    hog = os.open(dax_folder, os.O_TMPFILE | os.O_RDWR)
    try:
        os.posix_fallocate(hog, 0, free_bytes(dax_folder) - 100 * MIB)
        with pytest.raises(AutotmError, match="GB are free in"):
            opened(dax, 200 * MIB)
    finally:
        os.close(hog)
