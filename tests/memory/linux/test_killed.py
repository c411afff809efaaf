"""Runs killed at random moments leave no file, no lock and no changed setting of the system."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotm.memory.linux.pools import DaxPool
from autotm.model.system import SystemMemory

SETTINGS = (
    "/proc/sys/kernel/numa_balancing",
    "/sys/kernel/mm/numa/demotion_enabled",
    "/proc/sys/vm/nr_hugepages",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/zone_reclaim_mode",
)

POOLS = """
from autotm.memory.tiers import open_tiers
from autotm.model.cores import usable_cpus
from autotm.model.machine import Machine
from autotm.model.graph import Tier
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
"""

RUNS = """
from dataclasses import replace
import small_step
from small_programs import Trip, plan, profile, program
from autotm.kernels.library import KernelLibrary
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
graph, library = small_step.graph(), KernelLibrary.load(Path({library!r}))
made = program(graph, frozenset({{"hidden"}}), {{"act2": Trip(5, 6)}})
machine = replace(small_step.machine(), slow_tier=tier)
options = RunOptions(patience_s=0.1, min_seconds=0.05)
def once():
    run(graph, library, made, plan(graph), machine, small_step.links(), profile(graph), options, small_step.DEVICES)
"""

KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
from autotm.model.machine import DaxTier
folder, moments, longest_s = Path({folder!r}), {moments}, {longest_s}
sys.path.insert(0, {helpers!r})
tier = DaxTier(kind="dax", path=str(folder), stand_in=True)
{done}
chance, ends = random.Random(20), []
for moment in range(moments):
    child = os.fork()  # Nothing was done yet: each child has threads of its own.
    while not child:
        once()
    time.sleep(chance.uniform(0, longest_s))
    how = (signal.SIGKILL, signal.SIGTERM)[moment % 2]
    os.kill(child, how)
    _, status = os.waitpid(child, 0)
    ends.append((os.WIFSIGNALED(status) and os.WTERMSIG(status) == how, sorted(os.listdir(folder))))
print(json.dumps(ends))
"""
"""Does something again and again in a child, which is killed at some moment, as often as there are moments."""


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


def ends_of_killed(folder: Path, done: str, moments: int, longest_s: float) -> list[object]:
    """Whether each was killed, and what it left."""
    helpers = str(Path(__file__).parents[2] / "helpers")
    program = KILLED.format(folder=str(folder), moments=moments, longest_s=longest_s, helpers=helpers, done=done)
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    found: list[object] = json.loads(ended.stdout)
    return found


def test_pools_of_killed_processes_are_gone(folder: Path) -> None:
    assert ends_of_killed(folder, POOLS, moments=44, longest_s=0.05) == [[True, ["of others"]]] * 44


def test_killed_runs_leave_nothing(folder: Path, library_path: Path) -> None:
    runs = RUNS.format(library=str(library_path))
    assert ends_of_killed(folder, runs, moments=6, longest_s=0.5) == [[True, ["of others"]]] * 6
