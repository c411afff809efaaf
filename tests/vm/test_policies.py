"""Policies of Linux, followed by a real kernel over real nodes, against the simulation of them, page by page."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from autotm.memory.linux.page_policy import PagePolicy, apply_policy, balancing
from autotm.memory.linux.system_calls import node_of_pages
from autotm.model.errors import AutotmError
from autotm.model.machine import SWITCHES
from autotm.solve.paging import PageMap, interleaved, touch

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


def same_but_for_the_turn_that_is_first(found: np.ndarray, wanted: np.ndarray, turns: int) -> bool:
    """The kernel counts turns from address 0, the simulation from the start of the pool."""
    return any((found[turns:-turns] == wanted[turn : turn + found.size - 2 * turns]).all() for turn in range(turns))


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
