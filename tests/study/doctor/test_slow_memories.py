"""What could be slow memory on a laptop, a guest with three nodes, a server with persistent memory, in a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from autotm.model.errors import BadInputError
from autotm.model.machine import DaxTier, MachineFile, NumaTier
from autotm.model.provenance import slow_memory_facts, slow_memory_text
from autotm.model.system import SystemMemory
from autotm.study.doctor import SlowMemory, Use, findings, found_slow, probe_here, write_machine_file

NODE = "sys/devices/system/node/node"


def node(number: int, total_kb: int, cpus: str, distances: str) -> dict[str, str]:
    return {
        f"{NODE}{number}/meminfo": f"Node {number} MemTotal: {total_kb} kB\nNode {number} MemFree: {total_kb} kB\n",
        f"{NODE}{number}/cpulist": f"{cpus}\n",
        f"{NODE}{number}/distance": f"{distances}\n",
    }


LAPTOP = node(0, 16_000_000, "0-63", "10")
GUEST = (
    node(0, 1_000_000, "0-63", "10 28 40")
    | node(1, 500_000, "", "28 10 40")
    | node(2, 450_000, "", "40 40 10")
    | {
        f"{NODE}1/access0/initiators/read_bandwidth": "20480\n",
        f"{NODE}1/access0/initiators/read_latency": "300\n",
        f"{NODE}1/access0/initiators/write_latency": "0\n",
        "proc/mounts": "/dev/pmem0 /mnt/pmem xfs rw,relatime,dax=always 0 0\n",
        "sys/class/block/pmem0/size": "1000000\n",
        "proc/self/status": "Mems_allowed_list:\t0-2\n",
        "sys/kernel/mm/numa/demotion_enabled": "false\n",
    }
)
SERVER = LAPTOP | {
    "proc/mounts": "/dev/sda1 / ext4 rw 0 0\n/dev/pmem0p1 /data\\040one ext4 rw,relatime 0 0\n",
    "sys/class/block/pmem0/size": "2000000\n",
    "sys/class/block/pmem0p1/size": "2000000\n",
    "sys/class/block/pmem1/size": "1953125\n",
    "sys/bus/dax/devices/dax0.0/size": "2000000000\n",
    "sys/bus/dax/devices/dax1.0/size": "2000000000\n",
    "dev/dax0.0": "",
}
EPERM = "mbind: Operation not permitted (EPERM); containers forbid it by default: docker run --cap-add SYS_NICE"


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def usable(_: NumaTier | DaxTier) -> None:
    """As on a machine where nothing stands in the way."""


def by_name(found: list[SlowMemory]) -> dict[str, SlowMemory]:
    return {one.what: one for one in found}


def test_a_laptop_has_no_second_memory(tmp_path: Path) -> None:
    root = written(tmp_path, LAPTOP)
    assert found_slow(root, usable) == []
    told = {one.what: one for one in findings(tmp_path, root, usable)}
    assert told["second memory"].use is Use.UNUSED
    assert "slow memory is emulated" in told["second memory"].why
    assert told["memory node 0"].use is Use.USED


def test_a_guest_of_three_nodes_can_use_two_of_them_and_a_folder(tmp_path: Path) -> None:
    root = written(tmp_path, GUEST)
    found = by_name(found_slow(root, usable))
    assert list(found) == ["memory node 1", "memory node 2", "folder /mnt/pmem"]
    assert found["memory node 1"].line == "slow_tier: {kind: numa, fast_nodes: [0], slow_nodes: [1]}"
    assert "distance 28 from node 0, 20480 MB/s read (HMAT), 300 ns read (HMAT)" in found["memory node 1"].found
    assert found["folder /mnt/pmem"].line == "slow_tier: {kind: dax, path: /mnt/pmem, fast_nodes: [0]}"
    told = {one.what: one for one in findings(tmp_path, root, usable)}
    assert told["memory node 2"].use is Use.USABLE
    assert found["memory node 2"].line in told["memory node 2"].why
    for one in found.values():
        text = f"description: as told\n{one.line}\n"
        assert MachineFile.model_validate(yaml.safe_load(text)).slow_tier == one.tier


def cpu(number: int, node: int) -> dict[str, str]:
    """A core of its own next to a node, as /sys tells."""
    folder = f"sys/devices/system/cpu/cpu{number}"
    return {
        f"{folder}/topology/core_id": f"{number}\n",
        f"{folder}/topology/physical_package_id": f"{node}\n",
        f"{folder}/node{node}/here": "",
    }


def test_each_node_with_cores_can_be_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = node(0, 1_000_000, "0", "10 21 24") | node(1, 1_000_000, "1", "21 10 14") | node(2, 500_000, "", "24 14 10")
    root = written(tmp_path, tree | cpu(0, 0) | cpu(1, 1))
    monkeypatch.setattr("autotm.study.doctor.usable_cpus", lambda: (0, 1))
    found = by_name(found_slow(root, usable))
    lines = {name: one.line.removeprefix("slow_tier: ") for name, one in found.items()}
    assert lines == {
        "memory node 0": "{kind: numa, fast_nodes: [1], slow_nodes: [0]}",
        "memory node 1": "{kind: numa, fast_nodes: [0], slow_nodes: [1]}",
        "memory node 2": "{kind: numa, fast_nodes: [1], slow_nodes: [2]}, or fast_nodes: [0]",
    }, "of two nodes with cores, the nearer one first"
    told = [(one.what, one.use) for one in findings(tmp_path, root, usable) if "fast memory" in one.why]
    assert told == [("memory node 0", Use.USED), ("memory node 1", Use.USABLE)]
    monkeypatch.setattr("autotm.study.doctor.usable_cpus", lambda: (0,))
    barred = [one.why for one in findings(tmp_path, root, usable) if one.what == "memory node 1"]
    assert "may not use its cores 1 (cpuset, taskset)" in barred[0]


def test_what_the_system_does_to_pages_stands_in_the_way(tmp_path: Path) -> None:
    root = written(tmp_path, GUEST | {"sys/kernel/mm/numa/demotion_enabled": "true\n"})
    assert all("demotion_enabled" in one.why_not and not one.line for one in found_slow(root, usable))
    written(root, {"sys/kernel/mm/numa/demotion_enabled": "false\n", "proc/self/status": "Mems_allowed_list:\t0-1\n"})
    found = by_name(found_slow(root, usable))
    assert "cpuset.mems" in found["memory node 2"].why_not
    assert found["memory node 1"].line


def test_a_container_without_permission_is_told_so(tmp_path: Path) -> None:
    root = written(tmp_path, GUEST)
    found = found_slow(root, lambda _: EPERM)
    assert {one.why_not for one in found} == {EPERM}
    told = {one.what: one for one in findings(tmp_path, root, lambda _: EPERM)}
    assert told["memory node 1"].use is Use.UNUSED
    assert told["memory node 1"].why == f"not as slow memory: {EPERM}"


def test_persistent_memory_where_pages_cannot_be_bound_is_offered_without_nodes(tmp_path: Path) -> None:
    root = written(tmp_path, GUEST)
    found = by_name(found_slow(root, lambda tier: EPERM if tier.fast_nodes else None))
    folder = found["folder /mnt/pmem"]
    assert folder.line == "slow_tier: {kind: dax, path: /mnt/pmem}"
    assert folder.found.endswith(f"beside memory that cannot be bound: {EPERM}")
    assert found["memory node 1"].why_not == EPERM


def test_persistent_memory_that_is_not_set_up_is_told_how(tmp_path: Path) -> None:
    root = written(tmp_path, SERVER)
    found = by_name(found_slow(root, usable))
    assert "mounted without dax" in found["folder /data one"].why_not
    assert "folder /" not in found
    assert "not mounted: make a file system if it holds no data" in found["persistent memory pmem1"].why_not
    assert found["persistent memory pmem1"].found == "1 GB"
    assert "persistent memory pmem0" not in found, "a part of it is mounted"
    assert found["DAX device dax0.0"].line == "slow_tier: {kind: dax, path: /dev/dax0.0, fast_nodes: [0]}"
    assert found["DAX device dax0.0"].caution == "runs overwrite its contents"
    assert "/dev/dax1.0 is not there" in found["DAX device dax1.0"].why_not
    driver = root / "sys/bus/dax/devices/dax0.0/driver"
    driver.symlink_to("../../drivers/kmem")
    assert "DAX device dax0.0" not in by_name(found_slow(root, usable)), "it is a memory node now"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_device_of_others_is_told(tmp_path: Path) -> None:
    root = written(tmp_path, SERVER)
    (root / "dev/dax0.0").chmod(0)
    assert "may not write to /dev/dax0.0" in by_name(found_slow(root, usable))["DAX device dax0.0"].why_not


def test_a_machine_file_names_the_first_that_is_usable_and_no_device(tmp_path: Path) -> None:
    for name, tree, kind in (("guest", GUEST, "numa"), ("server", SERVER, "emulated"), ("laptop", LAPTOP, "emulated")):
        file = tmp_path / f"{name}.yaml"
        write_machine_file(file, found_slow(written(tmp_path / name, tree), usable))
        assert yaml.safe_load(file.read_text(encoding="utf-8"))["slow_tier"]["kind"] == kind
    with pytest.raises(BadInputError, match="there is such a machine"):
        write_machine_file(file, [])


def test_facts_and_captions_name_the_memory(tmp_path: Path) -> None:
    system = SystemMemory(written(tmp_path, GUEST | {"proc/sys/kernel/numa_balancing": "0\n"}))
    facts = slow_memory_facts(NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(1, 2)), system)
    assert (facts["distance"], facts["hmat"]) == (40, {"1": {"read_mb_per_s": 20480, "read_ns": 300}})
    assert (facts["numa_balancing"], facts["demotion"]) == ("0", False)
    assert slow_memory_text({"slow_memory": facts}) == (
        "memory nodes 1, 2, distance 40, HMAT of node 1: 20480 MB/s read 300 ns read"
    )
    facts = slow_memory_facts(DaxTier(kind="dax", path="/mnt/pmem/sub"), system)
    assert slow_memory_text({"slow_memory": facts}) == (
        "DAX at /mnt/pmem/sub (/dev/pmem0, xfs, rw,relatime,dax=always)"
    )
    assert slow_memory_text({}) == ""


def test_here_a_node_that_does_not_exist_and_a_folder_without_dax_are_refused(tmp_path: Path) -> None:
    assert probe_here(NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(999,))) is not None
    assert "do not have DAX" in (probe_here(DaxTier(kind="dax", path=str(tmp_path))) or "")
