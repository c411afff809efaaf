"""The guest's memories, by Linux's own account; kind `dax` on persistent memory: mapped with MAP_SYNC, nothing left."""

from __future__ import annotations

import errno
import mmap
import os
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forks import Holder, forked

from autotm.memory.opening import open_tiers
from autotm.memory.tiers import Tiers
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
    filesystem = os.statvfs(folder)
    return filesystem.f_bfree * filesystem.f_frsize


def synchronous_bytes() -> int:
    """How much of this process's memory is mapped with MAP_SYNC, as /proc tells."""
    mappings = re.findall(r"Size:\s+(\d+) kB(?:(?!VmFlags)[\s\S])*VmFlags:(.*)", Path("/proc/self/smaps").read_text())
    return sum(int(size) << 10 for size, flags in mappings if " sf" in flags)


def test_pools_are_mapped_with_map_sync(dax: Machine, device: Machine) -> None:
    for machine in dax, device:
        with opened(machine) as tiers:
            assert synchronous_bytes() == SLOW_BYTES
            tiers.check()
        assert synchronous_bytes() == 0


def test_the_pool_is_in_the_folder_and_no_file_has_a_name(dax: Machine, dax_folder: Path) -> None:
    (dax_folder / "mine").write_text("somebody's")
    before, free = sorted(dax_folder.iterdir()), free_bytes(dax_folder)
    with opened(dax):
        assert sorted(dax_folder.iterdir()) == before
        assert free - free_bytes(dax_folder) >= SLOW_BYTES
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


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/dev/shm", r"do not have DAX \(tmpfs at /dev/shm"),
        ("/mnt/nothing", "does not exist"),
        ("/etc/passwd", "neither a folder nor a DAX device"),
    ],
)
def test_what_is_no_folder_on_dax(dax: Machine, path: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
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


NODES = Path("/sys/devices/system/node")
MAP_SHARED_VALIDATE, MAP_SYNC = 0x03, 0x80000


def test_three_nodes_of_which_one_has_cores() -> None:
    assert (NODES / "has_memory").read_text().strip() == "0-2"
    assert (NODES / "has_cpu").read_text().strip() == "0"
    assert [(NODES / f"node{n}" / "distance").read_text().split() for n in range(3)] == [
        ["10", "28", "40"],
        ["28", "10", "40"],
        ["40", "40", "10"],
    ]


def test_the_firmware_tells_latency_and_bandwidth() -> None:
    initiators = NODES / "node1" / "access0" / "initiators"
    assert int((initiators / "read_latency").read_text()) == 300
    assert int((initiators / "read_bandwidth").read_text()) == 20480


def test_persistent_memory_is_in_a_lower_tier() -> None:
    tiers = sorted(
        Path("/sys/devices/virtual/memory_tiering").glob("memory_tier*"),
        key=lambda tier: int(tier.name.removeprefix("memory_tier")),
    )
    assert [(tier / "nodelist").read_text().strip() for tier in tiers] == ["0-1", "2"]


@pytest.mark.parametrize("node", [0, 1, 2])
def test_memory_can_be_bound_to_each_node(node: int) -> None:
    bound = ["/usr/bin/numactl", f"--membind={node}", "/bin/grep", "heap", "/proc/self/numa_maps"]
    said = subprocess.run(bound, capture_output=True, text=True, check=True).stdout
    assert f"bind:{node}" in said
    assert f" N{node}=" in said


def test_files_elsewhere_are_no_memory() -> None:
    file = os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE)
    os.ftruncate(file, 4 * MIB)
    with pytest.raises(OSError, match="not supported") as refused:
        mmap.mmap(file, 4 * MIB, flags=MAP_SHARED_VALIDATE | MAP_SYNC)
    os.close(file)
    assert refused.value.errno == errno.EOPNOTSUPP


def test_the_guest_has_no_network() -> None:
    assert [path.name for path in Path("/sys/class/net").iterdir()] == ["lo"]
