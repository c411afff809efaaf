"""Which optimizers can run on which slow memory, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotm.model.errors import BadInputError
from autotm.model.machine import SWITCHES, DaxTier, EmulatedTier, Machine, NumaTier, cannot_run, require_runnable
from autotm.model.system import SystemMemory

EMULATED = Machine("m", 1, (0,), "host", EmulatedTier(kind="emulated", device="optane-dcpmm"), "hash")
NUMA = replace(EMULATED, slow_tier=NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(1,)))
DAX = replace(EMULATED, slow_tier=DaxTier(kind="dax", path="/mnt"))
POLICIES = ("linux-preferred", "linux-interleave", "linux-weighted-interleave", "linux-balancing")


@pytest.fixture
def system(tmp_path: Path) -> SystemMemory:
    """A kernel that has all that policies take."""
    (tmp_path / "sys/kernel/mm/mempolicy/weighted_interleave").mkdir(parents=True)
    for name in SWITCHES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("0\n")
    return SystemMemory(tmp_path)


def test_all_run_where_slow_memory_is_emulated() -> None:
    assert not any(cannot_run(EMULATED, name) for name in (*POLICIES, "memory-mode", "static"))


@pytest.mark.parametrize("machine", [NUMA, DAX])
def test_real_slow_memory_has_no_cache(machine: Machine) -> None:
    assert cannot_run(machine, "synchronous") is None
    with pytest.raises(BadInputError, match=r"memory-mode cannot run on config/machines/m\.yaml: .* no cache .* kind"):
        require_runnable(machine, "memory-mode")


@pytest.mark.parametrize("name", POLICIES)
def test_linux_places_pages_on_nodes_only(name: str, system: SystemMemory) -> None:
    assert cannot_run(NUMA, name, system) is None
    assert "no pages in memory behind DAX" in (cannot_run(DAX, name, system) or "")
    one = NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(0,), stand_in=True)
    assert "nothing to choose" in (cannot_run(replace(NUMA, slow_tier=one), name, system) or "")
    reserved = NUMA.slow_tier.model_copy(update={"huge_pages": "reserved"})
    assert "huge_pages: transparent or none" in (cannot_run(replace(NUMA, slow_tier=reserved), name, system) or "")


def test_a_kernel_without_weights(tmp_path: Path) -> None:
    assert "Linux 6.9" in (cannot_run(NUMA, "linux-weighted-interleave", SystemMemory(tmp_path)) or "")


def test_balancing_needs_both_switches_on_or_a_process_that_may_set_them(
    system: SystemMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemMemory, "may_set", lambda *_: False)
    for name, text in zip(SWITCHES, ("3", "true"), strict=True):
        assert f"/{name} is 0, it needs {SWITCHES[name]}" in (cannot_run(NUMA, "linux-balancing", system) or "")
        (tmp_path / name).write_text(text)
    assert cannot_run(NUMA, "linux-balancing", system) is None, "both are on"
    (tmp_path / next(iter(SWITCHES))).unlink()
    assert "Linux 6.1 or later" in (cannot_run(NUMA, "linux-balancing", system) or "")


ZONES = """\
Node 0, zone    DMA32
  pages free     489
        high     60
  pagesets
    cpu: 0
              count: 3
              high:  14
    cpu: 1
              high:  14
Node 0, zone   Normal
  pages free     5000
        high     400
  pagesets
    cpu: 0
              high:  378
              batch: 63
    cpu: 1
              high:  200
Node 1, zone   Normal
  pages free     5000
  pagesets
    cpu: 0
              high:  0
              high_max: 48300
"""


def test_what_lists_of_free_pages_hold_is_told_by_node(tmp_path: Path) -> None:
    assert SystemMemory(tmp_path).listed_bytes(0) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "zoneinfo").write_text(ZONES, encoding="ascii")
    assert [SystemMemory(tmp_path).listed_bytes(node) // 4096 for node in (0, 1, 2)] == [392, 48300, 0]
