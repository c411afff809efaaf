"""What Linux tells of limits and pages, and which rounds of measuring others disturbed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from autotm.model import cores
from autotm.model.cores import DISTURBED, Watch, lost_ns
from autotm.model.system import MemoryLimit, SystemMemory

GROUPS = "sys/fs/cgroup"
VERSION_2 = {"proc/mounts": f"none /{GROUPS} cgroup2 rw 0 0\n", "proc/self/cgroup": "0::/user.slice/job.scope\n"}
VERSION_1 = {
    "proc/mounts": f"m /{GROUPS}/memory cgroup rw,memory 0 0\nc /{GROUPS}/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n",
    "proc/self/cgroup": "9:memory:/slurm/job_7\n4:cpu,cpuacct:/slurm/job_7\n0::/\n",
}


def system(folder: Path, files: dict[str, str]) -> SystemMemory:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="ascii")
    return SystemMemory(folder)


def test_the_tightest_limit_around_a_process_holds(tmp_path: Path) -> None:
    inner, outer = f"{GROUPS}/user.slice/job.scope", f"{GROUPS}/user.slice"
    files = VERSION_2 | {
        f"{inner}/memory.max": "max\n", f"{inner}/memory.current": "100\n", f"{inner}/cpu.max": "max 100000\n",
        f"{outer}/memory.max": "8000\n", f"{outer}/memory.current": "3000\n", f"{outer}/cpu.max": "150000 100000\n",
        f"{outer}/memory.stat": "anon 2000\ninactive_file 600\n",
        f"{GROUPS}/memory.max": "90000\n", f"{GROUPS}/memory.current": "89000\n",
    }  # fmt: skip
    here = system(tmp_path, files)
    assert here.memory_limit == MemoryLimit(8000, 1000), "the outermost has least left"
    assert here.cpu_quota == 1.5


def test_version_one_is_read_too(tmp_path: Path) -> None:
    inner = f"{GROUPS}/memory/slurm/job_7"
    files = VERSION_1 | {
        f"{inner}/memory.limit_in_bytes": "5000\n", f"{inner}/memory.usage_in_bytes": "2000\n",
        f"{inner}/memory.stat": "total_inactive_file 500\n",
        f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{GROUPS}/cpu,cpuacct/slurm/job_7/cpu.cfs_quota_us": "50000\n",
        f"{GROUPS}/cpu,cpuacct/slurm/job_7/cpu.cfs_period_us": "100000\n",
        f"{GROUPS}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", f"{GROUPS}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }  # fmt: skip
    here = system(tmp_path, files)
    assert (here.memory_limit, here.cpu_quota) == (MemoryLimit(5000, 3500), 0.5)


def test_a_container_that_is_told_the_name_of_its_group_outside_it(tmp_path: Path) -> None:
    here = system(tmp_path, VERSION_1 | {f"{GROUPS}/memory/memory.limit_in_bytes": "700\n"})
    assert here.memory_limit == MemoryLimit(700, 700)


@pytest.mark.parametrize("files", [{}, VERSION_2, VERSION_2 | {f"{GROUPS}/memory.max": "max\n"}])
def test_nothing_limits_where_nothing_says_so(tmp_path: Path, files: dict[str, str]) -> None:
    here = system(tmp_path, files)
    assert (here.memory_limit, here.cpu_quota) == (None, None)


ZONES = """\
Node 0, zone    DMA32
        high     60
  pagesets
    cpu: 0
              high:  14
Node 0, zone   Normal
        high     400
  pagesets
    cpu: 0
              high:  378
              batch: 63
    cpu: 1
              high:  200
Node 1, zone   Normal
  pagesets
    cpu: 0
              high:  0
              high_max: 48300
"""


def test_what_lists_of_free_pages_hold_is_told_by_node(tmp_path: Path) -> None:
    assert SystemMemory(tmp_path).listed_bytes(0) == 0
    memory = system(tmp_path, {"proc/zoneinfo": ZONES})
    assert [memory.listed_bytes(node) // 4096 for node in (0, 1, 2)] == [392, 48300, 0]


SECOND = 10**9


class SharedCores:
    """Cores that others hold in some rounds; a round takes a second of made-up time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, disturbed: list[bool]) -> None:
        self.now = self.lost = self.rounds = 0
        self.disturbed = disturbed
        monkeypatch.setattr(cores, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(cores, "lost_ns", lambda _: self.lost)

    def round(self) -> int:
        self.lost += SECOND if self.disturbed[self.rounds % len(self.disturbed)] else 0
        self.now += SECOND
        self.rounds += 1
        return self.rounds


def test_rounds_go_on_until_enough_are_good_or_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, watch = SharedCores(monkeypatch, [True, True, False]), Watch((0, 1), 30.0)
    assert watch.rounds(machine.round, 3, "copies") == [3, 6, 9]
    assert watch.disturbed == []
    machine, watch = SharedCores(monkeypatch, [True]), Watch((0, 1), 4.5)
    assert watch.rounds(machine.round, 3, "copies") == [1, 2, 3, 4, 5]
    assert watch.rounds(machine.round, 3, "kernels") == [6, 7, 8], "none is left for what comes after"
    assert watch.disturbed == ["copies", "kernels"]


def test_patience_lasts_three_times_as_long_as_the_good_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, watch = SharedCores(monkeypatch, [False] * 10 + [True] * 100), Watch((0, 1), 4.5)
    assert watch.rounds(machine.round, 10, "first") == list(range(1, 11))
    assert len(watch.rounds(machine.round, 1, "second")) == 30


def test_a_share_of_the_cores_may_be_lost() -> None:
    watch = Watch((0, 1), 30.0)
    assert watch.judge(round(2 * DISTURBED * SECOND), SECOND)
    assert not watch.judge(round(2 * DISTURBED * SECOND) + 1, SECOND)


def test_what_is_lost_is_what_threads_waited_and_what_the_hypervisor_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stolen = {"cpu": 99, "cpu0": 5, "cpu1": 7, "cpu10": 11}
    rows = "".join(f"{name} 1 1 1 1 1 1 1 {ticks} 0 0\n" for name, ticks in stolen.items())
    tasks = {"proc/self/task/7/schedstat": "900 40 3\n", "proc/self/task/8/schedstat": "800 2 1\n"}
    system(tmp_path, tasks | {"proc/stat": rows})
    (tmp_path / "proc/self/task/9").mkdir()  # a thread that has ended meanwhile
    monkeypatch.setattr(cores, "_PROC", str(tmp_path / "proc"))
    tick_ns = SECOND // os.sysconf("SC_CLK_TCK")
    assert lost_ns((0, 1)) == 42 + 12 * tick_ns
    assert lost_ns((10,)) == 42 + 11 * tick_ns
    (tmp_path / "proc/stat").unlink()
    assert lost_ns((0, 1)) == 42, "a kernel that does not count says nothing"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waiting")
def test_a_neighbour_on_the_same_core_is_seen() -> None:
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    neighbour = subprocess.Popen(["taskset", "-c", str(cpu), sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(0, {cpu})
    try:
        lost, times = lost_ns((cpu,)), resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        while resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw < times + 3:  # This thread had to leave its core.
            pass
        assert lost_ns((cpu,)) > lost
    finally:
        os.sched_setaffinity(0, before)
        neighbour.kill()
        neighbour.wait()
