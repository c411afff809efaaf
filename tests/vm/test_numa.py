"""Kind `numa` on real nodes: every page where it was promised, and an error, never a kill, where that cannot be."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from forks import forked

from autotm.memory.opening import open_tiers
from autotm.memory.tiers import Tiers
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.machine import Machine, NumaTier

MIB = 1 << 20
FAST_BYTES, SLOW_BYTES = 32 * MIB, 64 * MIB
DEMOTION = Path("/sys/kernel/mm/numa/demotion_enabled")
NODES = Path("/sys/devices/system/node")
CGROUPS = Path("/sys/fs/cgroup")
DEVICES = Path("config/devices")
CLONE_NEWCGROUP, CLONE_NEWNS = 0x02000000, 0x00020000


def opened(machine: Machine, slow_bytes: int = SLOW_BYTES) -> Tiers:
    return open_tiers(machine, None, FAST_BYTES, slow_bytes, DEVICES)


def bound_pages() -> dict[str, Counter[str]]:
    """Pages of this process by the node that they are bound to and the node that they are on, as /proc tells."""
    by_bound_node: dict[str, Counter[str]] = {}
    for line in Path("/proc/self/numa_maps").read_text(encoding="ascii").splitlines():
        if bound := re.search(r" bind:(\S+)", line):
            size = int(re.search(r"kernelpagesize_kB=(\d+)", line)[1]) // 4  # type: ignore[index]
            pages = {node: int(count) * size for node, count in re.findall(r" N(\d+)=(\d+)", line)}
            by_bound_node.setdefault(bound[1], Counter()).update(pages)
    return by_bound_node


@contextlib.contextmanager
def setting(path: Path, text: str) -> Iterator[None]:
    before = path.read_text(encoding="ascii").strip()
    path.write_text(text, encoding="ascii")
    try:
        yield
    finally:
        path.write_text(before, encoding="ascii")


def with_tier(machine: Machine, **changes: object) -> Machine:
    return replace(machine, slow_tier=NumaTier.model_validate(machine.slow_tier.model_dump() | changes))


@pytest.mark.parametrize("slow", [1, 2])
@pytest.mark.parametrize("huge_pages", ["none", "transparent", "reserved"])
def test_every_page_is_on_its_node(
    numa: Machine, slow: int, huge_pages: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.ExitStack() as stack:
        for node, count in (0, 16), (slow, 32):
            if huge_pages == "reserved":
                set_aside = NODES / f"node{node}" / "hugepages" / "hugepages-2048kB" / "nr_hugepages"
                stack.enter_context(setting(set_aside, str(count)))
        tiers = stack.enter_context(opened(with_tier(numa, slow_nodes=(slow,), huge_pages=huge_pages)))
        own = tiers.slow.pages_by_node()
        linux = bound_pages()
    assert not bound_pages(), "all memory is given back"
    assert own == {str(slow): SLOW_BYTES // 4096}
    assert linux == {"0": Counter({"0": FAST_BYTES // 4096}), str(slow): Counter(own)}
    with capsys.disabled():
        print(f" node {slow}, huge pages {huge_pages}: {own[str(slow)]} of {SLOW_BYTES // 4096} pages")


def test_more_than_the_node_has_is_an_error(numa: Machine) -> None:
    assert "node 1 has room for" in forked(lambda: opened(numa, 600 * MIB))


def test_more_than_is_free_is_an_error(numa: Machine) -> None:
    hog = subprocess.Popen(
        ["/usr/bin/numactl", "--membind=1", "/usr/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=300M", "count=1000000"]
    )
    try:
        meminfo = NODES / "node1" / "meminfo"
        deadline = time.monotonic() + 60
        while int(re.search(r"MemFree:\s*(\d+)", meminfo.read_text())[1]) > 180 << 10:  # type: ignore[index]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "node 1 has room for" in forked(lambda: opened(numa, 250 * MIB))
    finally:
        hog.kill()
        hog.wait()


def test_the_last_of_a_node_can_be_had(numa: Machine) -> None:
    free = int(re.search(r"MemFree:\s*(\d+)", (NODES / "node1" / "meminfo").read_text())[1]) << 10  # type: ignore[index]
    with opened(numa, free - 64 * MIB) as tiers:
        assert set(tiers.slow.pages_by_node()) == {"1"}


def test_nodes_that_do_not_exist_and_capacity_beyond_a_node(numa: Machine) -> None:
    for field in ("fast_nodes", "slow_nodes"):
        with pytest.raises(BadInputError, match=rf"{field}: node 7 does not exist .*nodes with memory: 0, 1, 2"):
            opened(with_tier(numa, **{field: (7,)}))
    with pytest.raises(BadInputError, match="is more than there is"):
        opened(with_tier(numa, capacity="64GB"))
    with pytest.raises(AutotmError, match=r"allows 1MB \(slow_tier.capacity\)"):
        opened(with_tier(numa, capacity="1MB"))


def test_demotion_is_refused(numa: Machine) -> None:
    with setting(DEMOTION, "1"), pytest.raises(BadInputError, match="demotion_enabled"):
        opened(numa)
    opened(numa).close()


def test_pages_that_leave_their_node_are_seen(numa: Machine) -> None:
    with opened(numa) as tiers:
        tiers.check()
        subprocess.run(["/usr/bin/migratepages", str(os.getpid()), "1", "0"], check=True)
        with pytest.raises(AutotmError, match=r"pages are not on node 1 \(\d+ on node 0\)"):
            tiers.check()


def test_a_process_that_may_not_use_the_node(numa: Machine) -> None:
    with cgroup("nodes", **{"cpuset.mems": "0"}) as group:

        def restricted() -> None:
            join(group)
            opened(numa)

        assert "may take memory of node 0 only" in forked(restricted)


def test_a_container_with_too_little_memory(numa: Machine) -> None:
    with cgroup("memory", **{"memory.max": str(60 * MIB), "memory.swap.max": "0"}) as group:

        def restricted() -> None:
            join(group)
            enter_a_container()
            opened(numa)

        assert "this container's limit has room for" in forked(restricted)
        assert "oom_kill 0" in (group / "memory.events").read_text(encoding="ascii")


@contextlib.contextmanager
def cgroup(name: str, **limits: str) -> Iterator[Path]:
    (CGROUPS / "cgroup.subtree_control").write_text("+memory +cpuset", encoding="ascii")
    group = CGROUPS / name
    group.mkdir()
    try:
        for file, text in limits.items():
            with contextlib.suppress(FileNotFoundError):  # memory.swap.max: without swap
                (group / file).write_text(text, encoding="ascii")
        yield group
    finally:
        group.rmdir()


def join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def enter_a_container() -> None:
    """Show this process its own cgroup as the whole, as containers do."""
    assert ctypes.CDLL(None).unshare(CLONE_NEWCGROUP | CLONE_NEWNS) == 0
    subprocess.run(["/bin/mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["/bin/umount", str(CGROUPS)], check=True)
    subprocess.run(["/bin/mount", "-t", "cgroup2", "none", str(CGROUPS)], check=True)


@contextlib.contextmanager
def offline(node: int) -> Iterator[None]:
    """Take all memory of a node away, as a hot-plugged CXL card that is pulled: its pages go elsewhere."""
    blocks = [block.resolve() for block in sorted((NODES / f"node{node}").glob("memory[0-9]*"))]
    try:
        for block in blocks:
            (block / "state").write_text("offline", encoding="ascii")
        yield
    finally:
        for block in blocks:
            if (block / "state").read_text(encoding="ascii").strip() == "offline":
                (block / "state").write_text("online_movable", encoding="ascii")


def test_a_node_that_is_taken_away_during_a_run(numa: Machine) -> None:
    far = with_tier(numa, slow_nodes=(2,))
    with opened(far) as tiers:
        tiers.check()
        with offline(2):
            with pytest.raises(AutotmError, match=r"pages are not on node 2 .*memory that was taken offline"):
                tiers.check()
            with pytest.raises(BadInputError, match=r"node 2 (has no memory|does not exist) on this machine"):
                opened(far)
    with opened(far) as tiers:
        tiers.check()
