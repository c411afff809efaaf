"""What `autotm doctor` finds on machines written into a folder, and on this one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from recorded_nvml import NVMLError_LibraryNotFound, Recorded, facts_of

from autotm.cli.main import main
from autotm.memory.gpu.opening import GpuFacts
from autotm.model.errors import AutotmError
from autotm.model.machine import DaxTier, MachineFile, NumaTier, load_machine
from autotm.model.provenance import slow_memory_facts, slow_memory_text
from autotm.model.system import SystemMemory
from autotm.study import doctor
from autotm.study.doctor import Finding, Use, findings, gpu_findings, probe_here, slow_memories, write_machine_file

CONFIG = Path(__file__).parents[2] / "config"


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


NODE = "sys/devices/system/node/node"


def meminfo(node: int, total_kb: int, free_kb: int) -> dict[str, str]:
    return {f"{NODE}{node}/meminfo": f"Node {node} MemTotal: {total_kb} kB\nNode {node} MemFree: {free_kb} kB\n"}


def node(number: int, total_kb: int, cpus: str, distances: str) -> dict[str, str]:
    of_node = {f"{NODE}{number}/cpulist": f"{cpus}\n", f"{NODE}{number}/distance": f"{distances}\n"}
    return of_node | meminfo(number, total_kb, total_kb)


CXL = {
    **node(0, 1_000_000, "0-3", "10 28"),
    **meminfo(0, 1_000_000, 600_000),
    **node(1, 4_000_000, "", "28 10"),
    **meminfo(2, 0, 0),
    f"{NODE}2/cpulist": "4-7\n",
    "proc/sys/kernel/numa_balancing": "2\n",
    "sys/kernel/mm/numa/demotion_enabled": "true\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "proc/meminfo": "MemTotal: 5000000 kB\nHugePages_Total:      12\n",
    "proc/mounts": "/dev/pmem0 /mnt/pmem xfs rw,dax=always,attr2 0 0\n/dev/sda1 / ext4 rw,dax=never 0 0\n"
    "none /sys/fs/cgroup cgroup2 rw 0 0\n",
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/memory.max": "2000000000\n",
    "sys/fs/cgroup/cpu.max": "50000 100000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: a GPU\n",
}


def by_name(entries: list[Any]) -> dict[str, Any]:
    return {one.what: one for one in entries}


def test_a_second_memory_is_told_with_what_stands_in_its_way(tmp_path: Path) -> None:
    root = written(tmp_path, CXL)
    (root / "sys/bus/dax/devices/dax0.0").mkdir(parents=True)
    report = by_name(findings(tmp_path, root))
    assert report["memory node 0"].found == "1.024 GB, 0.6144 GB free, beside cores"
    assert report["memory node 1"].use is Use.UNUSED
    assert "distance 28 from node 0" in report["memory node 1"].found
    assert "demotion_enabled" in report["memory node 1"].why
    assert "memory node 2" not in report, "a node without memory is no memory"
    assert report["folder /mnt/pmem"].use is Use.UNUSED, "the fast pool would not stay where it is"
    assert "folder /" not in report
    assert "DAX device dax0.0" in report
    assert "GPU" in report
    cared = {name for name, one in report.items() if one.use is Use.CARE}
    assert cared >= {"NUMA balancing", "page demotion", "clock governor", "CPU quota", "memory limit"}
    assert report["transparent huge pages"].found == "madvise"
    assert report["reserved huge pages"].found == "12"


WHOLE = (16_000 << 10, 9_000 << 10)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [({}, WHOLE), (meminfo(0, 6_000, 2_000), WHOLE),
     (meminfo(0, 6_000, 2_000) | meminfo(1, 4_000, 4_000), (6_000 << 10, 2_000 << 10))],
    ids=["no node", "one", "two"],
)  # fmt: skip
def test_of_at_most_one_node_the_whole_system_is_believed_where_it_has_more(
    tmp_path: Path, nodes: dict[str, str], expected: tuple[int, int]
) -> None:
    system = SystemMemory(written(tmp_path, {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable: 9000 kB\n"} | nodes))
    assert (system.nodes[0].total_bytes, system.nodes[0].free_bytes) == expected
    assert (system.memory_limit, system.numa_balancing, system.demotes) == (None, "", False)


def test_this_machine_can_run_a_study(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--results", str(tmp_path / "new" / "results"), "--json"]) == 0
    report = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    assert report["cores"]["use"] == report["C compiler"]["use"] == report["TVM"]["use"] == "used"
    assert report[f"folder {tmp_path / 'new' / 'results'}"]["found"].endswith("GB free")
    assert not (tmp_path / "new").exists()


def test_what_nothing_works_without_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert main(["doctor"]) == 1
    assert "C compiler" in capsys.readouterr().out
    assert "C compiler: none: kernels are linked with one: sudo apt-get install g++" in caplog.text


def test_a_first_machine_file_is_one_that_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(CONFIG / "devices", tmp_path / "devices")
    arguments = ("doctor", "--write", "mine", "--folder", str(tmp_path / "machines"))
    assert main(arguments) == 0
    assert load_machine(tmp_path / "machines" / "mine.yaml").slow_tier.kind == "emulated"
    assert main(arguments) == 1
    assert "there is such a machine" in caplog.text
    assert main(["doctor", "--write", "../mine"]) == 2


def test_a_tool_that_hangs_or_is_not_there_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_PATIENCE_S", 0.05)
    assert doctor._output("sleep", "5") == ""
    assert doctor._output("no-such-program") == ""
    file = tmp_path / "file"
    file.touch()
    folder = by_name(findings(file / "results"))[f"folder {file / 'results'}"]
    assert (folder.found, folder.use) == (f"{file} is no folder", Use.MISSING)


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


def usable(_: NumaTier | DaxTier) -> None:
    """As on a machine where nothing stands in the way."""


def test_a_laptop_has_no_second_memory(tmp_path: Path) -> None:
    report = by_name(findings(tmp_path, written(tmp_path, LAPTOP), usable))
    assert report["second memory"].use is Use.UNUSED
    assert "slow memory is emulated" in report["second memory"].why
    assert report["memory node 0"].use is Use.USED


def test_a_guest_of_three_nodes_can_use_two_of_them_and_a_folder(tmp_path: Path) -> None:
    root = written(tmp_path, GUEST)
    candidates = by_name(slow_memories(root, usable))
    assert list(candidates) == ["memory node 1", "memory node 2", "folder /mnt/pmem"]
    assert candidates["memory node 1"].line == "slow_tier: {kind: numa, fast_nodes: [0], slow_nodes: [1]}"
    assert "distance 28 from node 0, HMAT 20480 MB/s read 300 ns read" in candidates["memory node 1"].found
    assert candidates["folder /mnt/pmem"].line == "slow_tier: {kind: dax, path: /mnt/pmem, fast_nodes: [0]}"
    report = by_name(findings(tmp_path, root, usable))
    assert report["memory node 2"].use is Use.USABLE
    assert candidates["memory node 2"].line in report["memory node 2"].why
    for one in candidates.values():
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
    lines = {name: one.line.removeprefix("slow_tier: ") for name, one in by_name(slow_memories(root, usable)).items()}
    assert lines == {
        "memory node 0": "{kind: numa, fast_nodes: [1], slow_nodes: [0]}",
        "memory node 1": "{kind: numa, fast_nodes: [0], slow_nodes: [1]}",
        "memory node 2": "{kind: numa, fast_nodes: [1], slow_nodes: [2]}, or fast_nodes: [0]",
    }, "of two nodes with cores, the nearer one first"
    uses = [(one.what, one.use) for one in findings(tmp_path, root, usable) if "fast memory" in one.why]
    assert uses == [("memory node 0", Use.USED), ("memory node 1", Use.USABLE)]
    monkeypatch.setattr("autotm.study.doctor.usable_cpus", lambda: (0,))
    barred = [one.why for one in findings(tmp_path, root, usable) if one.what == "memory node 1"]
    assert "may not use its cores 1 (cpuset, taskset)" in barred[0]


def test_what_the_system_does_to_pages_stands_in_the_way(tmp_path: Path) -> None:
    root = written(tmp_path, GUEST | {"sys/kernel/mm/numa/demotion_enabled": "true\n"})
    assert all("demotion_enabled" in one.why_not and not one.line for one in slow_memories(root, usable))
    written(root, {"sys/kernel/mm/numa/demotion_enabled": "false\n", "proc/self/status": "Mems_allowed_list:\t0-1\n"})
    candidates = by_name(slow_memories(root, usable))
    assert "cpuset.mems" in candidates["memory node 2"].why_not
    assert candidates["memory node 1"].line


def test_a_container_without_permission_is_told_so_and_offered_persistent_memory_without_nodes(tmp_path: Path) -> None:
    root = written(tmp_path, GUEST)
    candidates = slow_memories(root, lambda _: EPERM)
    assert {one.why_not for one in candidates} == {EPERM}
    report = by_name(findings(tmp_path, root, lambda _: EPERM))
    assert report["memory node 1"].use is Use.UNUSED
    assert report["memory node 1"].why == f"not as slow memory: {EPERM}"
    candidates = by_name(slow_memories(root, lambda tier: EPERM if tier.fast_nodes else None))
    folder = candidates["folder /mnt/pmem"]
    assert folder.line == "slow_tier: {kind: dax, path: /mnt/pmem}"
    assert folder.found.endswith(f"beside memory that cannot be bound: {EPERM}")
    assert candidates["memory node 1"].why_not == EPERM


def test_persistent_memory_that_is_not_set_up_is_told_how(tmp_path: Path) -> None:
    root = written(tmp_path, SERVER)
    candidates = by_name(slow_memories(root, usable))
    assert "mounted without dax" in candidates["folder /data one"].why_not
    assert "folder /" not in candidates
    assert "not mounted: make a file system if it holds no data" in candidates["persistent memory pmem1"].why_not
    assert candidates["persistent memory pmem1"].found == "1 GB"
    assert "persistent memory pmem0" not in candidates, "a part of it is mounted"
    assert candidates["DAX device dax0.0"].line == "slow_tier: {kind: dax, path: /dev/dax0.0, fast_nodes: [0]}"
    assert candidates["DAX device dax0.0"].caution == "runs overwrite its contents"
    assert "/dev/dax1.0 is not there" in candidates["DAX device dax1.0"].why_not
    (root / "sys/bus/dax/devices/dax0.0/driver").symlink_to("../../drivers/kmem")
    assert "DAX device dax0.0" not in by_name(slow_memories(root, usable)), "it is a memory node now"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_device_of_others_is_told(tmp_path: Path) -> None:
    root = written(tmp_path, SERVER)
    (root / "dev/dax0.0").chmod(0)
    assert "may not write to /dev/dax0.0" in by_name(slow_memories(root, usable))["DAX device dax0.0"].why_not


def test_a_machine_file_names_the_first_that_is_usable_and_no_device(tmp_path: Path) -> None:
    for name, tree, kind in (("guest", GUEST, "numa"), ("server", SERVER, "emulated"), ("laptop", LAPTOP, "emulated")):
        file = tmp_path / f"{name}.yaml"
        write_machine_file(file, slow_memories(written(tmp_path / name, tree), usable))
        assert yaml.safe_load(file.read_text(encoding="utf-8"))["slow_tier"]["kind"] == kind


def test_facts_and_captions_name_the_memory(tmp_path: Path) -> None:
    system = SystemMemory(written(tmp_path, GUEST | {"proc/sys/kernel/numa_balancing": "0\n"}))
    facts = slow_memory_facts(NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(1, 2)), system)
    assert facts["hmat"] == {"1": {"read_mb_per_s": 20480, "read_ns": 300}}
    assert (facts["numa_balancing"], facts["demotion"]) == ("0", False)
    of_dax = slow_memory_facts(DaxTier(kind="dax", path="/mnt/pmem/sub"), system)
    assert [slow_memory_text(source) for source in ({"slow_memory": facts}, {"slow_memory": of_dax}, {})] == [
        "memory nodes 1, 2, distance 40, HMAT of node 1: 20480 MB/s read 300 ns read",
        "DAX at /mnt/pmem/sub (/dev/pmem0, xfs, rw,relatime,dax=always)",
        "",
    ]


def test_here_a_node_that_does_not_exist_and_a_folder_without_dax_are_refused(tmp_path: Path) -> None:
    assert probe_here(NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(999,))) is not None
    assert "do not have DAX" in (probe_here(DaxTier(kind="dax", path=str(tmp_path))) or "")


GpuFindings = Callable[..., list[Finding]]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GpuFindings:
    """What is found of GPUs, by what NVML says and what a context takes; the folder is that of /proc."""

    def find(nvml: Recorded, context_bytes: int | None = 500_000_000) -> list[Finding]:
        def measured(facts: GpuFacts) -> tuple[int, int]:
            if context_bytes is None:
                raise AutotmError(f"{facts.uuid} is busy")
            return 3, context_bytes

        monkeypatch.setattr(doctor, "gpu_facts", lambda: facts_of(nvml))
        monkeypatch.setattr(doctor, "measured_context", measured)
        return list(gpu_findings(tmp_path))

    return find


def test_a_gpu_is_usable_by_a_line_of_a_machine_file(gpus: GpuFindings) -> None:
    (finding,) = gpus(Recorded())
    assert finding.use is Use.USABLE
    assert "sm_90, 85.52 GB, 84.92 GB free, driver 580.65.06 (CUDA 13.0); a context takes 0.5 GB" in finding.found
    assert finding.why == "fast memory, in a machine file: slow_tier: {kind: cuda, device_index: 3}"
    memory = SimpleNamespace(total=8_000_000_000, reserved=0, used=0, free=8_000_000_000)
    (small,) = gpus(Recorded(memory=memory, capability=(8, 6)))
    assert "less than the 10.2 GB" in small.why, "what the paper's plans were made for"


@pytest.mark.parametrize(
    ("nvml", "context_bytes", "said"),
    [
        (Recorded(cuda=12040), 0, "580 or later"),
        (Recorded(capability=(6, 1)), 0, "2018 or later"),
        (Recorded(), None, "it cannot be opened: GPU-0 is busy"),
        (Recorded(init=NVMLError_LibraryNotFound("")), 0, "no NVIDIA driver"),
    ],
)
def test_one_that_cannot_be_used(nvml: Recorded, context_bytes: int | None, said: str, gpus: GpuFindings) -> None:
    (finding,) = gpus(nvml, context_bytes)
    assert finding.use is Use.UNUSED
    assert said in finding.why


def test_others_on_it(gpus: GpuFindings) -> None:
    processes = (SimpleNamespace(pid=7, usedGpuMemory=1),)
    first, _, second, shared = gpus(Recorded(names=("one", "other"), processes=processes))
    assert (first.what, second.what) == ("GPU 0", "GPU 1")
    assert (shared.what, shared.found, shared.use) == ("GPU 1's processes", "7", Use.CARE)


def test_one_whose_driver_is_missing_is_named(gpus: GpuFindings, tmp_path: Path) -> None:
    missing = Recorded(init=NVMLError_LibraryNotFound(""))
    assert gpus(missing)[0].found == "none"
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert gpus(missing)[0].found == "0000:01:00.0"
