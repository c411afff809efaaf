"""What the guest is, by Linux's own account: three nodes, HMAT, DAX with MAP_SYNC; else the rest proves nothing."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
from pathlib import Path

import pytest

NODES = Path("/sys/devices/system/node")
MAP_SHARED_VALIDATE, MAP_SYNC = 0x03, 0x80000
SIZE_BYTES = 4 << 20


def test_three_nodes_of_which_one_has_cores() -> None:
    assert (NODES / "has_memory").read_text().strip() == "0-2"
    assert (NODES / "has_cpu").read_text().strip() == "0"
    assert [(NODES / f"node{n}" / "distance").read_text().split() for n in range(3)] == [
        ["10", "28", "40"],
        ["28", "10", "40"],
        ["40", "40", "10"],
    ]


def test_the_firmware_tells_latency_and_bandwidth() -> None:
    told = NODES / "node1" / "access0" / "initiators"
    assert int((told / "read_latency").read_text()) == 300
    assert int((told / "read_bandwidth").read_text()) == 20480


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


def mapped(path: Path) -> mmap.mmap:
    """A file of four MiB as memory, with MAP_SYNC."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(file, SIZE_BYTES)
        return mmap.mmap(file, SIZE_BYTES, flags=MAP_SHARED_VALIDATE | MAP_SYNC)
    finally:
        os.close(file)
        path.unlink()


def test_files_on_dax_are_memory(dax_folder: Path) -> None:
    with mapped(dax_folder / "facts") as memory:
        memory[:4] = b"here"
        assert memory[:4] == b"here"


def test_files_elsewhere_are_not() -> None:
    with pytest.raises(OSError, match="not supported") as refused:
        mapped(Path("/dev/shm/facts"))
    assert refused.value.errno == errno.EOPNOTSUPP


def test_the_device_is_memory(dax_device: Path) -> None:
    file = os.open(dax_device, os.O_RDWR)
    with mmap.mmap(file, SIZE_BYTES, flags=MAP_SHARED_VALIDATE | MAP_SYNC) as memory:
        memory[:4] = b"here"
        assert memory[:4] == b"here"
    os.close(file)


def test_the_guest_has_no_network() -> None:
    assert [path.name for path in Path("/sys/class/net").iterdir()] == ["lo"]
