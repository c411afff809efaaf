"""Real memories on this machine: bound pages, files without names, locks; killed processes leave nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autotm.memory.linux import system_calls
from autotm.memory.linux.pools import DaxPool, NodePool, check_nodes
from autotm.memory.opening import open_tiers
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import OpClass, Tier
from autotm.model.machine import DaxTier, Machine, NumaTier
from autotm.model.system import SystemMemory

SYSTEM = SystemMemory()


def binding_fails() -> str | None:
    """Why pages cannot be bound to node 0 here; None where they can."""
    try:
        NodePool(Tier.FAST, 4096, (0,), "none", SYSTEM)
    except AutotmError as error:
        return str(error)
    return None


REASON = binding_fails()
binds = pytest.mark.skipif(REASON is not None, reason=f"NOT TESTED: memory nodes: {REASON}")


def on(machine: Machine, tier: NumaTier | DaxTier) -> Machine:
    return dataclasses.replace(machine, slow_tier=tier)


def node_zero(**more: object) -> NumaTier:
    return NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(0,), stand_in=True, **more)


def folder(path: Path, **more: object) -> DaxTier:
    return DaxTier(kind="dax", path=str(path), stand_in=True, **more)


@binds
@pytest.mark.parametrize("huge_pages", ["transparent", "none"])
def test_every_page_is_where_it_is_bound(machine: Machine, devices_dir: Path, huge_pages: str) -> None:
    with open_tiers(on(machine, node_zero(huge_pages=huge_pages)), None, 3 * 4096, 5 * 4096, devices_dir) as tiers:
        assert tiers.slow.pages_by_node() == {"0": 5}
        assert tiers.fast.pages_by_node() == {"0": 3}
        assert tiers.outside(2 * 4096).pages_by_node() == {"0": 2}
        tiers.check()


@binds
def test_pages_that_left_are_counted_and_refused() -> None:
    pool = NodePool(Tier.SLOW, 4 * 4096, (0,), "none", SYSTEM)
    pool.nodes = (1,)
    with pytest.raises(AutotmError, match=r"pmem pool: 4 of 4 pages are not on node 1 \(4 on node 0\).*is refused"):
        pool.check()
    fresh = NodePool(Tier.SLOW, 4 * 4096, (0,), "none", SYSTEM)
    system_calls.give_back(fresh._whole.ctypes.data, 4096)
    with pytest.raises(AutotmError, match=r"1 of 4 pages are not on node 0 \(1 nowhere\)"):
        fresh.check()


@binds
def test_kernels_wait_for_nothing_and_copies_copy(machine: Machine, devices_dir: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, 5 << 20, dtype=np.uint8)
    with open_tiers(on(machine, node_zero()), None, values.size, values.size, devices_dir) as tiers:
        assert not tiers.waits_are_known
        assert tiers.kernel_delay_ns(OpClass.MATMUL, (1 << 30,), (1 << 30,)) == 0
        assert tiers.asynchronous_move_ns(Tier.FAST, 1 << 30) == 0
        views = {tier: tiers.pool(tier).view(0, values.shape, "uint8") for tier in Tier}
        views[Tier.FAST][:] = values
        tiers.copy(views[Tier.SLOW], views[Tier.FAST], Tier.SLOW)
        views[Tier.FAST][:] = 0
        back = tiers.async_copy(views[Tier.FAST], views[Tier.SLOW], Tier.FAST, 0)
        back.start()
        back.wait()
        assert np.array_equal(views[Tier.FAST], values)


def test_more_than_a_node_has_is_refused_before_it_is_touched(machine: Machine, devices_dir: Path) -> None:
    total = sum(node.total_bytes for node in SYSTEM.nodes)
    with pytest.raises(AutotmError, match=r"pmem pool: this machine cannot give .*node 0 has room for"):
        open_tiers(on(machine, node_zero()), None, 4096, total, devices_dir)
    with pytest.raises(BadInputError, match=r"slow_tier.capacity: 9999TB is more than there is"):
        open_tiers(on(machine, node_zero(capacity="9999TB")), None, 4096, 4096, devices_dir)
    with pytest.raises(AutotmError, match=r"0.001 GB of slow memory are needed, .* allows 1MB"):
        open_tiers(on(machine, node_zero(capacity="1MB")), None, 4096, 1 << 20, devices_dir)


@binds
def test_reserved_huge_pages_that_are_not_there_are_refused(machine: Machine, devices_dir: Path) -> None:
    free = SYSTEM.nodes[0].free_huge_pages
    there, size_bytes = on(machine, node_zero(huge_pages="reserved")), (free + 8) * SYSTEM.huge_page_bytes
    with pytest.raises(AutotmError, match=f"{free + 8} huge pages are needed, {free} are set aside and free on node 0"):
        open_tiers(there, None, size_bytes, 4096, devices_dir)


def test_a_system_that_refuses_binding_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls._libc, "syscall", lambda *_: -1)
    for name, number in {"EPERM": 1, "ENOSYS": 38}.items():
        monkeypatch.setattr(system_calls.ctypes, "get_errno", lambda number=number: number)
        with pytest.raises(AutotmError, match=f"mbind: .*{name}.*(cap-add SYS_NICE|only be emulated)"):
            NodePool(Tier.FAST, 4096, (0,), "none", SYSTEM)


def test_a_pool_in_a_folder_has_no_name_and_leaves_nothing(
    machine: Machine, devices_dir: Path, others_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_tiers(on(machine, folder(others_folder)), None, 4096, 1 << 20, devices_dir) as tiers:
        tiers.slow.view(0, (1 << 20,), "uint8")[:] = 7
        assert [one.name for one in others_folder.iterdir()] == ["of others"]
        tiers.check()
    assert "times say nothing about slow memory" in caplog.text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/folder", "does not exist; give a folder"),
        ("/etc/hostname", "is neither a folder nor a DAX device"),
        ("/dev/null", "/dev/null is no DAX device"),
        ("/proc", "has no files without a name"),
        ("", r"do not have DAX \(.*\).*dax=always.*stand_in: true"),
    ],
)
def test_what_is_no_folder_of_slow_memory_is_refused(
    machine: Machine, devices_dir: Path, tmp_path: Path, path: str, message: str
) -> None:
    tier = folder(Path(path)) if path else DaxTier(kind="dax", path=str(tmp_path))
    with pytest.raises(BadInputError, match=rf"slow_tier.path: .*{message}"):
        open_tiers(on(machine, tier), None, 0, 0, devices_dir, stretch=1.0)


def test_demotion_is_refused_where_fast_memory_is_bound_to_no_node(
    machine: Machine, devices_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = SYSTEM.nodes[:1] * 2
    monkeypatch.setattr(SystemMemory, "nodes", property(lambda _: two))
    monkeypatch.setattr(SystemMemory, "demotes", property(lambda _: True))
    with pytest.raises(BadInputError, match=r"test.yaml: slow_tier: Linux moves .*demotion_enabled"):
        open_tiers(on(machine, folder(tmp_path)), None, 0, 4096, devices_dir)


def test_a_folder_that_is_too_small_is_told(machine: Machine, devices_dir: Path, tmp_path: Path) -> None:
    there = os.statvfs(tmp_path)
    size = there.f_blocks * there.f_frsize
    with pytest.raises(AutotmError, match=r"pmem pool: .* GB are free in"):
        open_tiers(on(machine, folder(tmp_path)), None, 0, size, devices_dir)
    # After the refusal, the folder is free for others.
    DaxPool(tmp_path, 4096, stand_in=True, system=SYSTEM).close()


HOLDER = """
import sys
from pathlib import Path
from autotm.memory.linux.pools import DaxPool
from autotm.model.system import SystemMemory
pool = DaxPool(Path(sys.argv[1]), 1 << 20, stand_in=True, system=SystemMemory())
print("here", flush=True)
sys.stdin.read()
"""


def test_two_runs_in_one_folder_are_one_too_many(machine: Machine, devices_dir: Path, tmp_path: Path) -> None:
    here = on(machine, folder(tmp_path))
    with open_tiers(here, None, 0, 4096, devices_dir), open_tiers(here, None, 0, 8192, devices_dir):
        pass  # One process may have several pools there.
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        with pytest.raises(BadInputError, match=rf"in use by another run \(process {other.pid}\)"):
            open_tiers(here, None, 0, 0, devices_dir, stretch=1.0)
        other.kill()
    open_tiers(here, None, 0, 4096, devices_dir).close()


def test_a_pool_whose_file_shrank_is_refused(tmp_path: Path) -> None:
    pool = DaxPool(tmp_path, 8192, stand_in=True, system=SYSTEM)
    os.ftruncate(pool._file, 4096)
    with pytest.raises(AutotmError, match="changed while it was in use"):
        pool.check()
    pool.close()


NODE = "sys/devices/system/node/node"


def made_up(root: Path, files: dict[str, str]) -> SystemMemory:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return SystemMemory(root)


THREE_NODES = {
    f"{NODE}0/meminfo": "Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 700000 kB\n",
    f"{NODE}0/distance": "10 28 40\n",
    f"{NODE}1/meminfo": "Node 1 MemTotal: 524288 kB\nNode 1 MemFree: 500000 kB\n",
    f"{NODE}1/distance": "28 10 40\n",
    f"{NODE}2/meminfo": "Node 2 MemTotal: 0 kB\n",
    "proc/self/status": "Mems_allowed_list:\t0-1\n",
    "sys/kernel/mm/numa/demotion_enabled": "false\n",
}


def test_nodes_are_checked_before_anything_is_bound(tmp_path: Path) -> None:
    system = made_up(tmp_path, THREE_NODES)
    assert [node.number for node in check_nodes(system, "m: slow_nodes", (1,))] == [1]
    with pytest.raises(BadInputError, match=r"m: slow_nodes: node 7 does not exist .* nodes with memory: 0, 1"):
        check_nodes(system, "m: slow_nodes", (1, 7))
    with pytest.raises(BadInputError, match=r"node 2 has no memory"):
        check_nodes(system, "m: slow_nodes", (2,))
    made_up(tmp_path, {"proc/self/status": "Mems_allowed_list:\t0\n"})
    with pytest.raises(BadInputError, match=r"node 1: this process may take memory of node 0 only \(cpuset.mems"):
        check_nodes(system, "m: slow_nodes", (1,))
    demoting = {"proc/self/status": "Mems_allowed_list:\t0-1\n", "sys/kernel/mm/numa/demotion_enabled": "true\n"}
    made_up(tmp_path, demoting)
    with pytest.raises(BadInputError, match=r"node 1: .* even bound ones; .*echo false .*demotion_enabled"):
        check_nodes(system, "m: slow_nodes", (1,))
    only_one = made_up(tmp_path / "one", {f"{NODE}0/meminfo": THREE_NODES[f"{NODE}0/meminfo"]} | demoting)
    assert check_nodes(only_one, "m: fast_nodes", (0,)), "it has nowhere to demote to"


def test_the_last_pages_of_a_node_stay_free(tmp_path: Path) -> None:
    node = made_up(tmp_path, THREE_NODES).nodes[1]
    assert 0 < node.bindable_bytes < node.free_bytes - (32 << 20)


SETTINGS = (
    "/proc/sys/kernel/numa_balancing",
    "/sys/kernel/mm/numa/demotion_enabled",
    "/proc/sys/vm/nr_hugepages",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/zone_reclaim_mode",
)

KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
from autotm.memory.opening import open_tiers
from autotm.model.cores import usable_cpus
from autotm.model.machine import DaxTier, Machine
from autotm.model.graph import Tier
folder = Path(sys.argv[1])
tier = DaxTier(kind="dax", path=str(folder), stand_in=True)
machine = Machine("test", 1, usable_cpus()[:1], "host", tier, "hash")
def once():
    with open_tiers(machine, None, 1 << 20, 4 << 20, Path("none")) as tiers:
        fast, slow = (tiers.pool(tier).view(0, (1 << 20,), "uint8") for tier in Tier)
        fast[:] = 1
        tiers.copy(slow, fast, Tier.SLOW)
        back = tiers.async_copy(fast, slow, Tier.FAST, 0)
        back.start()
        back.wait()
        tiers.check()
chance, ends = random.Random(20), []
for moment in range(44):
    child = os.fork()  # Nothing was done yet: each child has threads of its own.
    while not child:
        once()
    time.sleep(chance.uniform(0, 0.05))
    how = (signal.SIGKILL, signal.SIGTERM)[moment % 2]
    os.kill(child, how)
    _, status = os.waitpid(child, 0)
    ends.append((os.WIFSIGNALED(status) and os.WTERMSIG(status) == how, sorted(os.listdir(folder))))
print(json.dumps(ends))
"""
"""Opens pools and copies again and again in a child, which is killed at some moment, and so with 44 children."""


def settings() -> dict[str, str]:
    return {path: Path(path).read_text(encoding="ascii") for path in SETTINGS if Path(path).exists()}


@pytest.fixture
def others_folder(tmp_path: Path) -> Iterator[Path]:
    """Holds a file of somebody else's; afterwards nothing else, and a pool may be opened there again."""
    place, before = tmp_path / "pools", settings()
    place.mkdir()
    (place / "of others").write_text("stays", encoding="ascii")
    yield place
    assert [(one.name, one.read_text(encoding="ascii")) for one in place.iterdir()] == [("of others", "stays")]
    DaxPool(place, 4096, stand_in=True, system=SystemMemory()).close()
    assert settings() == before


def test_pools_of_killed_processes_are_gone(others_folder: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(others_folder)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(ended.stdout) == [[True, ["of others"]]] * 44, "each was killed, and left nothing"
