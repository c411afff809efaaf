"""What is found on machines: this one, and others whose /sys and /proc are written here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from autotm.cli.main import main
from autotm.model.machine import load_machine
from autotm.model.system import SystemMemory
from autotm.study import doctor
from autotm.study.doctor import Finding, Use, findings

CONFIG = Path(__file__).parents[3] / "config"


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def meminfo(node: int, total_kb: int, free_kb: int) -> str:
    return f"Node {node} MemTotal: {total_kb} kB\nNode {node} MemFree: {free_kb} kB\n"


NODE = "sys/devices/system/node/node"
CXL = {
    f"{NODE}0/meminfo": meminfo(0, 1_000_000, 600_000),
    f"{NODE}0/cpulist": "0-3\n",
    f"{NODE}0/distance": "10 28\n",
    f"{NODE}1/meminfo": meminfo(1, 4_000_000, 4_000_000),
    f"{NODE}1/cpulist": "\n",
    f"{NODE}1/distance": "28 10\n",
    f"{NODE}2/meminfo": meminfo(2, 0, 0),
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


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {one.what: one for one in found}


def test_a_second_memory_is_told_with_what_stands_in_its_way(tmp_path: Path) -> None:
    root = written(tmp_path, CXL)
    (root / "sys/bus/dax/devices/dax0.0").mkdir(parents=True)
    found = by_name(findings(tmp_path, root))
    assert found["memory node 0"].found == "1.024 GB, 0.6144 GB free, beside cores"
    assert found["memory node 1"].use is Use.UNUSED
    assert "distance 28 from node 0" in found["memory node 1"].found
    assert "demotion_enabled" in found["memory node 1"].why
    assert "memory node 2" not in found, "a node without memory is no memory"
    assert found["folder /mnt/pmem"].use is Use.UNUSED, "the fast pool would not stay where it is"
    assert "folder /" not in found
    assert "DAX device dax0.0" in found
    assert "GPU" in found
    cared = {name for name, one in found.items() if one.use is Use.CARE}
    assert cared >= {"NUMA balancing", "page demotion", "clock governor", "CPU quota", "memory limit"}
    assert found["transparent huge pages"].found == "madvise"
    assert found["reserved huge pages"].found == "12"


def test_a_system_that_tells_nothing_has_one_memory(tmp_path: Path) -> None:
    root = written(tmp_path, {"proc/meminfo": "MemTotal: 8000 kB\nMemAvailable: 5000 kB\n"})
    assert [(node.total_bytes, node.free_bytes, node.cpus) for node in SystemMemory(root).nodes] == [
        (8_192_000, 5_120_000, "all")
    ]
    assert SystemMemory(root).limit_bytes is None
    assert not SystemMemory(root).balances
    assert not SystemMemory(root).demotes


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (16_000 << 10, 9_000 << 10)),
        ({f"{NODE}1/meminfo": meminfo(1, 4_000, 4_000)}, (6_000 << 10, 2_000 << 10)),
    ],
    ids=["one node", "two"],
)
def test_of_one_node_the_whole_system_is_believed_where_it_has_more(
    tmp_path: Path, more: dict[str, str], expected: tuple[int, int]
) -> None:
    told = {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable: 9000 kB\n", f"{NODE}0/meminfo": meminfo(0, 6_000, 2_000)}
    found = SystemMemory(written(tmp_path, told | more)).nodes[0]
    assert (found.total_bytes, found.free_bytes) == expected


def test_this_machine_can_run_a_study(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--results", str(tmp_path / "new" / "results"), "--json"]) == 0
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["cores"]["use"] == found["C compiler"]["use"] == found["TVM"]["use"] == "used"
    assert found[f"folder {tmp_path / 'new' / 'results'}"]["found"].endswith("GB free")
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
    file = tmp_path / "machines" / "mine.yaml"
    assert load_machine(file).name == "mine"
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["slow_tier"]["kind"] == "emulated"
    assert main(arguments) == 1
    assert "there is such a machine" in caplog.text
    assert main(["doctor", "--write", "../mine"]) == 2


def test_a_tool_that_hangs_or_is_not_there_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_PATIENCE_S", 0.05)
    assert doctor._output("sleep", "5") == ""
    assert doctor._output("no-such-program") == ""
    file = tmp_path / "file"
    file.touch()
    assert doctor.room_for_files(file / "results") == f"{file} is no folder"
