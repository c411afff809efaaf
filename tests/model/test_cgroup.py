"""Limits of containers, services and jobs: the process's own group and those around it, of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotm.model.system import MemoryLimit, cpu_quota, memory_limit

GROUPS = "sys/fs/cgroup"
SECOND = {"proc/mounts": f"none /{GROUPS} cgroup2 rw 0 0\n", "proc/self/cgroup": "0::/user.slice/job.scope\n"}
FIRST = {
    "proc/mounts": f"m /{GROUPS}/memory cgroup rw,memory 0 0\nc /{GROUPS}/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n",
    "proc/self/cgroup": "9:memory:/slurm/job_7\n4:cpu,cpuacct:/slurm/job_7\n0::/\n",
}


def root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="ascii")
    return folder


def test_the_tightest_limit_around_a_process_holds(tmp_path: Path) -> None:
    inner, outer = f"{GROUPS}/user.slice/job.scope", f"{GROUPS}/user.slice"
    files = SECOND | {
        f"{inner}/memory.max": "max\n", f"{inner}/memory.current": "100\n", f"{inner}/cpu.max": "max 100000\n",
        f"{outer}/memory.max": "8000\n", f"{outer}/memory.current": "3000\n", f"{outer}/cpu.max": "150000 100000\n",
        f"{outer}/memory.stat": "anon 2000\ninactive_file 600\n",
        f"{GROUPS}/memory.max": "90000\n", f"{GROUPS}/memory.current": "89000\n",
    }  # fmt: skip
    here = root(tmp_path, files)
    assert memory_limit(here) == MemoryLimit(8000, 1000), "the outermost has least left"
    assert cpu_quota(here) == 1.5


def test_version_one_is_read_too(tmp_path: Path) -> None:
    inner = f"{GROUPS}/memory/slurm/job_7"
    files = FIRST | {
        f"{inner}/memory.limit_in_bytes": "5000\n", f"{inner}/memory.usage_in_bytes": "2000\n",
        f"{inner}/memory.stat": "total_inactive_file 500\n",
        f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{GROUPS}/cpu,cpuacct/slurm/job_7/cpu.cfs_quota_us": "50000\n",
        f"{GROUPS}/cpu,cpuacct/slurm/job_7/cpu.cfs_period_us": "100000\n",
        f"{GROUPS}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", f"{GROUPS}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }  # fmt: skip
    here = root(tmp_path, files)
    assert memory_limit(here) == MemoryLimit(5000, 3500)
    assert cpu_quota(here) == 0.5


def test_a_container_that_is_told_the_name_of_its_group_outside_it(tmp_path: Path) -> None:
    here = root(tmp_path, FIRST | {f"{GROUPS}/memory/memory.limit_in_bytes": "700\n"})
    assert memory_limit(here) == MemoryLimit(700, 700)


@pytest.mark.parametrize("files", [{}, SECOND, SECOND | {f"{GROUPS}/memory.max": "max\n"}])
def test_nothing_limits_where_nothing_says_so(tmp_path: Path, files: dict[str, str]) -> None:
    assert memory_limit(root(tmp_path, files)) is None
    assert cpu_quota(tmp_path) is None
