"""Runs killed at random moments leave no file, no lock and no changed setting of the system."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotm.memory.linux import DaxPool
from autotm.model.machine import SystemMemory

ROOT = Path(__file__).parents[3]
MOMENTS_IN_A_POOL, MOMENTS_IN_A_RUN = 44, 6
SETTINGS = (
    "/proc/sys/kernel/numa_balancing",
    "/sys/kernel/mm/numa/demotion_enabled",
    "/proc/sys/vm/nr_hugepages",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/zone_reclaim_mode",
)

POOLS = """
import json, os, random, signal, sys, time
from pathlib import Path
import numpy as np
from autotm.memory import open_tiers
from autotm.model.machine import DaxTier, Machine, usable_cpus
from autotm.model.step import Tier
folder, moments, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
tier = DaxTier(kind="dax", path=str(folder), stand_in=True)
machine = Machine("test", 1, usable_cpus()[:1], "host", tier, "hash")
chance, ends = random.Random(seed), []
def open_and_copy():
    while True:
        with open_tiers(machine, None, 1 << 20, 4 << 20, Path("none")) as tiers:
            fast, slow = (tiers.pool(tier).view(0, (1 << 20,), "uint8") for tier in Tier)
            fast[:] = 1
            tiers.copy(slow, fast, Tier.PMEM)
            back = tiers.async_copy(fast, slow, Tier.DRAM, 0)
            back.start()
            back.wait()
            tiers.check()
for moment in range(moments):
    child = os.fork()
    if not child:
        open_and_copy()
    time.sleep(chance.uniform(0, 0.05))
    how = (signal.SIGKILL, signal.SIGTERM)[moment % 2]
    os.kill(child, how)
    _, status = os.waitpid(child, 0)
    ends.append((os.WIFSIGNALED(status) and os.WTERMSIG(status) == how, sorted(os.listdir(folder))))
print(json.dumps(ends))
"""

RUNS = """
import json, os, random, signal, sys, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import small_step
from small_programs import Trip, plan, profile, program
from autotm.kernels.library.library import KernelLibrary
from autotm.model.machine import DaxTier
from autotm.runtime import RunOptions, run
folder, moments = Path(sys.argv[1]), int(sys.argv[4])
graph, library = small_step.graph(), KernelLibrary.load(Path(sys.argv[3]))
made = program(graph, frozenset({"hidden"}), {"act2": Trip(5, 6)})
machine = replace(small_step.machine(), slow_tier=DaxTier(kind="dax", path=str(folder), stand_in=True))
options = RunOptions(patience_s=0.1, min_seconds=0.05)
def runs():
    while True:
        run(graph, library, made, plan(graph), machine, small_step.links(), profile(graph), options, small_step.DEVICES)
chance, ends = random.Random(17), []
for moment in range(moments):
    child = os.fork()  # no kernel has run yet: each child has threads of its own
    if not child:
        runs()
    time.sleep(chance.uniform(0, 0.5))
    how = (signal.SIGKILL, signal.SIGTERM)[moment % 2]
    os.kill(child, how)
    _, status = os.waitpid(child, 0)
    ends.append((os.WIFSIGNALED(status) and os.WTERMSIG(status) == how, sorted(os.listdir(folder))))
print(json.dumps(ends))
"""


def settings() -> dict[str, str]:
    return {path: Path(path).read_text(encoding="ascii") for path in SETTINGS if Path(path).exists()}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Holds a file of somebody else's; afterwards nothing else, and a pool may be opened there again."""
    place, before = tmp_path / "pools", settings()
    place.mkdir()
    (place / "of others").write_text("stays", encoding="ascii")
    yield place
    assert [(one.name, one.read_text(encoding="ascii")) for one in place.iterdir()] == [("of others", "stays")]
    DaxPool(place, 4096, stand_in=True, system=SystemMemory()).close()
    assert settings() == before


def test_pools_of_killed_processes_are_gone(folder: Path) -> None:
    command = [sys.executable, "-c", POOLS, str(folder), str(MOMENTS_IN_A_POOL), "20"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    ends = json.loads(done.stdout)
    assert ends == [[True, ["of others"]]] * MOMENTS_IN_A_POOL


def test_killed_runs_leave_nothing(folder: Path, library_path: Path) -> None:
    helpers = ROOT / "tests" / "helpers"
    command = [sys.executable, "-c", RUNS, str(folder), str(helpers), str(library_path), str(MOMENTS_IN_A_RUN)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout) == [[True, ["of others"]]] * MOMENTS_IN_A_RUN
