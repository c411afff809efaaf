"""Policies of Linux, followed by a real kernel over real nodes: as simulated, page by page, and within a limit."""

from __future__ import annotations

import json
import mmap
import signal
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_step
from forks import Holder
from guest_kernels import SIZES

from autotm.kernels.library import KernelLibrary
from autotm.layout.compile import compile_program
from autotm.memory.linux.page_policy import PagePolicy, apply_policy, balancing
from autotm.memory.linux.policy_tiers import PolicyTiers
from autotm.memory.linux.system_calls import node_of_pages
from autotm.memory.opening import open_for
from autotm.memory.tiers import Tiers
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.limit import Limit
from autotm.model.links import MachineRates
from autotm.model.machine import SWITCHES, Machine
from autotm.model.record import Record
from autotm.model.system import SystemMemory
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.solve.paging import PageMap, interleaved, touch
from autotm.solve.placing import solve_and_pack

FAST, CARD, LOWER = 0, 1, 2
"""The node of the cores; the small one without cores; persistent memory, which is of a lower tier."""
WEIGHTS = Path("/sys/kernel/mm/mempolicy/weighted_interleave")


def mapping(size_bytes: int) -> np.ndarray:
    """Fresh memory in pages of 4 KiB: huge ones are dealt out whole."""
    fresh = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    fresh.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(fresh, np.uint8)


def placed(policy: PagePolicy, nodes: Sequence[int], size_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """A mapping that was touched from its first page to its last, and the node of each page."""
    memory = mapping(size_bytes)
    apply_policy(memory.ctypes.data, memory.size, policy, nodes)
    memory[:: mmap.PAGESIZE] = 1
    return memory, node_of_pages(memory.ctypes.data, memory.size)


def simulated(pages: int, weights: tuple[int, int]) -> np.ndarray:
    """Whether each page is on the first node."""
    return interleaved(PageMap(4096, pages, ((touch(0, pages * 4096, 4096),),)), pages, weights)


def same_but_for_the_turn_that_is_first(on_first: np.ndarray, wanted: np.ndarray, turns: int) -> bool:
    """Whether pages alternate as wanted; Linux counts turns from address 0, the simulation from the pool's start."""
    inner = on_first[turns:-turns]
    return any((inner == wanted[turn : turn + inner.size]).all() for turn in range(turns))


def test_preferred_pages_fill_a_node_and_the_rest_goes_elsewhere() -> None:
    memory, nodes = placed(PagePolicy.PREFERRED, [CARD], 600 << 20)
    on_card = np.flatnonzero(nodes == CARD)
    assert 0.5 * (512 << 20) < on_card.size * mmap.PAGESIZE < 512 << 20
    first = nodes[: on_card.size]
    assert (first == CARD).mean() > 0.95, "first touch fills the preferred node first"
    assert memory[0] == 1


def test_interleaved_pages_alternate() -> None:
    _, nodes = placed(PagePolicy.INTERLEAVE, [FAST, CARD], 32 << 20)
    assert set(nodes.tolist()) == {FAST, CARD}
    assert same_but_for_the_turn_that_is_first(nodes == FAST, simulated(nodes.size, (1, 1)), 2)


def test_weighted_pages_follow_their_weights() -> None:
    if not WEIGHTS.exists():
        with pytest.raises(AutotmError, match="is the first that has it"):
            placed(PagePolicy.WEIGHTED_INTERLEAVE, [FAST, CARD], 1 << 20)
        return
    (WEIGHTS / f"node{FAST}").write_text("5")
    (WEIGHTS / f"node{CARD}").write_text("2")
    _, nodes = placed(PagePolicy.WEIGHTED_INTERLEAVE, [FAST, CARD], 32 << 20)
    assert same_but_for_the_turn_that_is_first(nodes == FAST, simulated(nodes.size, (5, 2)), 7)


def test_hot_pages_are_promoted_and_switches_are_put_back() -> None:
    before = [Path("/", name).read_text() for name in SWITCHES]
    memory, nodes = placed(PagePolicy.PREFERRED, [LOWER], 8 << 20)
    assert (nodes == LOWER).all()
    apply_policy(memory.ctypes.data, memory.size, PagePolicy.LOCAL, [])
    with balancing():
        # Which pages, and when, is the kernel's choice; without its switches none ever is.
        while not (node_of_pages(memory.ctypes.data, memory.size) == FAST).any():
            memory[:: mmap.PAGESIZE] += 1
    assert [Path("/", name).read_text() for name in SWITCHES] == before


GRAPH = small_step.graph(*SIZES["wide"])
PROFILE = small_step.profile(GRAPH)
LINKS = replace(small_step.links(), rates=MachineRates(1e12, 80e9))
OPTIONS = RunOptions(min_seconds=0.01, min_steps=1, verify_steps=1, patience_s=0.05)


def switches() -> list[str]:
    return [Path("/", name).read_text(encoding="ascii") for name in SWITCHES]


def free_fast_bytes() -> int:
    return SystemMemory().nodes_named([0])[0].free_bytes


def ran(optimizer: str, limit: str, machine: Machine, wide_library: KernelLibrary) -> Record | None:
    """The record of a run; None where it was refused, since the kernel let pages take more than the limit.

    Which of the two happens depends on the memory that other processes free meanwhile; both are right.
    `tests/memory/linux/test_page_policy.py` tests how the limit is enforced, without a kernel.
    """
    plan, layout = solve_and_pack(GRAPH, PROFILE, LINKS, optimizer, Limit.parse(limit))
    program = compile_program(GRAPH, plan, layout)
    try:
        record = run(GRAPH, wide_library, program, plan, machine, LINKS, PROFILE, OPTIONS, small_step.DEVICES)
    except AutotmError as error:
        if "of fast memory beyond the limit" not in str(error):
            raise
        warnings.warn(f"{optimizer}: {error}", stacklevel=2)
        return None
    assert record.pages is not None
    assert (record.tier_reality, record.verified_steps, record.pages.placed_by) == ("real", 1, "linux")
    for by_node in (record.pages_by_node_before["pmem"], record.pages_by_node["pmem"]):
        assert set(by_node) <= {"0", "1", "2", "nowhere"}
        assert sum(by_node.values()) == -(-program.slow_bytes // 4096)
    return record


def pages(record: Record, node: str, *, before: bool = False) -> int:
    by_tier = record.pages_by_node_before if before else record.pages_by_node
    return by_tier["pmem"].get(node, 0)


@pytest.mark.parametrize("optimizer", ["linux-preferred", "linux-interleave"])
def test_pages_keep_the_limit_and_stay(
    optimizer: str,
    numa: Machine,
    wide_library: KernelLibrary,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    free = free_fast_bytes()
    # The limit is 4 MiB here: huge pages are too large for it.
    placing = replace(numa, slow_tier=numa.slow_tier.model_copy(update={"huge_pages": "none"}))
    record = ran(optimizer, "1:1", placing, wide_library)
    assert free_fast_bytes() > free - (64 << 20), "what filled fast memory was given back"
    if record is None:
        return
    with capsys.disabled():
        print(f" {optimizer}: {json.dumps(record.pages_by_node)}, {record.dram_limit_bytes // 4096} pages allowed")
    assert "2" not in record.pages_by_node["pmem"]
    assert record.pages_by_node_before["pmem"] == record.pages_by_node["pmem"]
    allowed = record.dram_limit_bytes // 4096
    # Not by more than is tolerated of what comes and goes between two looks.
    assert pages(record, "0") <= allowed + (1 << 20) // 4096
    # As far as the kernel gives it: it may keep as much as that for itself, and then the run says so.
    assert pages(record, "0") > 0.7 * allowed or "less than the limit allows" in caplog.text
    assert record.pages is not None
    assert record.pages.most_fast_bytes == pages(record, "0") * 4096 == record.dram_alloc_size
    assert record.bytes_dram_input_tensors < record.bytes_input_tensors
    assert (record.bytes_dram_input_tensors > 0) == (pages(record, "0") > 0)


def test_weights_are_followed_where_the_kernel_has_them(
    numa: Machine, wide_library: KernelLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    if not SystemMemory().knows_weights:
        with pytest.raises(BadInputError, match=r"linux-weighted-interleave cannot run on .*Linux 6\.9 is the first"):
            ran("linux-weighted-interleave", "1:1", numa, wide_library)
        return
    record = ran("linux-weighted-interleave", "1:1", numa, wide_library)
    assert record is None or pages(record, "0") > 0 or "less than the limit allows" in caplog.text


def test_pages_are_balanced_with_the_lower_tier(
    numa: Machine, wide_library: KernelLibrary, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotm.runtime.linux_pages._MOST_WINDOWS", 3)  # 16 of them may take a minute
    lower = replace(numa, slow_tier=numa.slow_tier.model_copy(update={"slow_nodes": (2,)}))
    before = switches()
    if record := ran("linux-balancing", "1:1", lower, wide_library):
        assert pages(record, "0") <= record.dram_limit_bytes // 4096 + 256
        # Node 1 is filled, yet pages were seen there: 1 MiB, as is tolerated on node 0, and a huge page.
        assert pages(record, "1") <= 256 + 512, record.pages_by_node
        # The kernel may move the rest off node 2 as well: the tolerances above leave room for all pages.
        with capsys.disabled():
            print(f" linux-balancing: {record.pages_by_node}")
    assert switches() == before


def test_everything_fast_is_bound(numa: Machine, wide_library: KernelLibrary) -> None:
    plan, layout = solve_and_pack(GRAPH, PROFILE, LINKS, "linux-preferred", Limit.parse("0:1"))
    program = compile_program(GRAPH, plan, layout)
    record = run(GRAPH, wide_library, program, plan, numa, LINKS, PROFILE, OPTIONS, small_step.DEVICES)
    assert set(record.pages_by_node["pmem"]) == {"0"}


def test_a_killed_run_gives_fast_memory_and_settings_back(numa: Machine) -> None:
    plan, layout = solve_and_pack(GRAPH, PROFILE, LINKS, "linux-balancing", Limit.parse("1:1"))
    program = compile_program(GRAPH, plan, layout)
    before, free = switches(), free_fast_bytes()

    def limited() -> Tiers:
        tiers = open_for(program, numa, LINKS, small_step.DEVICES)
        assert isinstance(tiers, PolicyTiers)
        tiers._limit_fast_memory(())
        return tiers

    holder = Holder(limited)
    assert switches() == ["2\n", "true\n"]
    assert free_fast_bytes() < free / 2
    holder.end(signal.SIGKILL)
    # The process that puts switches back ends a moment later.
    deadline = time.monotonic() + 30
    while switches() != before or free_fast_bytes() < free - (64 << 20):
        assert time.monotonic() < deadline
        time.sleep(0.1)
