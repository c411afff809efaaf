"""Whole runs on memory that is not emulated, on this machine's one node and file system: stand-ins, and named so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import small_step
from small_programs import Trip, plan, profile, program

from autotm.kernels.library import KernelLibrary
from autotm.memory.linux.pools import NodePool
from autotm.model.errors import AutotmError
from autotm.model.graph import Tier
from autotm.model.machine import DaxTier, NumaTier
from autotm.model.record import Record
from autotm.model.system import SystemMemory
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions

GRAPH = small_step.graph()
NODE = NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(0,), stand_in=True)


@pytest.fixture(autouse=True)
def binding() -> None:
    """Tests of a node need a system that lets pages be bound."""
    try:
        NodePool(Tier.FAST, 0, (0,), "none", SystemMemory())
    except AutotmError as error:
        pytest.skip(f"NOT TESTED: memory nodes: {error}")


def run_on(tier: NumaTier | DaxTier, library: KernelLibrary) -> Record:
    made = program(GRAPH, frozenset({"hidden"}), {"act2": Trip(5, 6)})
    machine, options = replace(small_step.machine(), slow_tier=tier), RunOptions(patience_s=0.1, min_seconds=0.01)
    return run(
        GRAPH, library, made, plan(GRAPH), machine, small_step.links(), profile(GRAPH), options, small_step.DEVICES
    )


def test_a_run_on_a_node_is_verified_and_counts_pages(library: KernelLibrary) -> None:
    record = run_on(NODE, library)
    assert (record.verified_steps, record.tier_reality) == (2, "stand-in")
    assert list(record.pages_by_node) == ["dram", "pmem"]
    assert record.pages_by_node["pmem"] == {"0": -(-record.pmem_alloc_size // 4096)}


def test_a_run_in_a_folder_is_verified_and_leaves_it_empty(library: KernelLibrary, tmp_path: Path) -> None:
    record = run_on(DaxTier(kind="dax", path=str(tmp_path), stand_in=True), library)
    assert (record.verified_steps, record.tier_reality, record.pages_by_node) == (2, "stand-in", {})
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_memory_went_elsewhere_has_no_record(
    library: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def away(pool: NodePool) -> dict[str, int]:
        looks.append(pool.size_bytes)
        return {"0": 1, "2": 1} if len(looks) > 8 else {"0": 2}

    monkeypatch.setattr(NodePool, "pages_by_node", away)
    with pytest.raises(AutotmError, match=r"1 of 2 pages are not on node 0 \(1 on node 2\).*is refused"):
        run_on(NODE, library)
