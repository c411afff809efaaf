"""Memory that fills a node: given back as it was asked for, locked while it is held."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from autotm.memory.linux.policy_tiers import Filler, _runs
from autotm.memory.linux.system_calls import NOWHERE, give_back, lock, pages_by_node, prefer
from autotm.model.errors import AutotmError
from autotm.model.system import SystemMemory

MIB = 1 << 20


@pytest.fixture
def filler() -> Filler:
    """Eight MiB of node 0, which every machine has."""
    found = Filler(0, SystemMemory())
    try:
        assert found.take(8 * MIB) == 8 * MIB
    except AutotmError as error:
        pytest.skip(f"NOT TESTED: filled nodes: {error}")
    return found


def test_what_is_given_back_is_no_longer_held(filler: Filler) -> None:
    filler.check()
    filler.leave(5 * MIB)
    assert filler.size_bytes == 3 * MIB
    filler.check()
    filler.leave(100 * MIB)
    assert filler.size_bytes == 0
    filler.take(MIB)
    filler.close()
    assert filler.size_bytes == 0


def test_pages_on_another_node_are_seen(filler: Filler) -> None:
    filler._node = 1
    with pytest.raises(AutotmError, match="memory node 1: 2048 pages that should fill it are elsewhere"):
        filler.check()


def test_a_limit_of_memory_ends_it_before_the_system_ends_the_process(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemMemory, "limit_left_bytes", property(lambda _: 3 * MIB))
    with pytest.raises(AutotmError, match=r"must be filled .* this container may take 0\.003 GB more"):
        filler.fill()


def test_locked_pages_stay_untouched_until_they_are_touched() -> None:
    memory = np.frombuffer(mmap.mmap(-1, 16 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    address = memory.ctypes.data
    try:
        lock(address, memory.size)
        memory[:8192] = 1
        assert pages_by_node(address, memory.size)[NOWHERE] == 14
    except AutotmError as error:
        pytest.skip(f"NOT TESTED: locked memory: {error}")
    give_back(address, memory.size)
    assert pages_by_node(address, memory.size) == {NOWHERE: 16}


def test_a_thread_can_prefer_a_node() -> None:
    try:
        prefer(0)
    except AutotmError as error:
        pytest.skip(f"NOT TESTED: memory policies: {error}")
    prefer(None)


@pytest.mark.parametrize(("numbers", "runs"), [([], []), ([3], [(3, 3)]), ([1, 2, 5, 7, 8], [(1, 2), (5, 5), (7, 8)])])
def test_runs_of_pages(numbers: list[int], runs: list[tuple[int, int]]) -> None:
    assert _runs(np.array(numbers, np.int64)) == runs
