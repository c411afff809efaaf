"""Pages that Linux places: policies asked for on the node that all machines have, filled nodes, searched capacity."""

from __future__ import annotations

import mmap
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotm.memory.linux import policy_tiers
from autotm.memory.linux.page_policy import POLICIES, PagePolicy, apply_policy, balancing
from autotm.memory.linux.policy_tiers import CapacitySearch, Filler
from autotm.memory.linux.system_calls import NOWHERE, give_back, lock, pages_by_node
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.machine import SWITCHES
from autotm.model.system import MemoryLimit, SystemMemory
from autotm.solve.options import optimizer_names

PAGES = 64


def mapping() -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)


def asked(memory: np.ndarray, policy: PagePolicy, nodes: list[int]) -> None:
    """Apply a policy, or skip where a container forbids it."""
    try:
        apply_policy(memory.ctypes.data, memory.size, policy, nodes)
    except AutotmError as error:
        if "EPERM" in str(error) or "ENOSYS" in str(error):
            pytest.skip(str(error))
        if policy is PagePolicy.WEIGHTED_INTERLEAVE and "Linux 6.9 is the first" in str(error):
            pytest.skip(str(error))
        raise


def test_every_simulated_policy_can_be_asked_for() -> None:
    assert set(POLICIES) == {name for name in optimizer_names() if name.startswith("linux-")}


@pytest.mark.parametrize("policy", PagePolicy)
def test_touched_pages_are_on_the_node_asked_for(policy: PagePolicy) -> None:
    memory = mapping()
    asked(memory, policy, [] if policy is PagePolicy.LOCAL else [0])
    try:
        before = pages_by_node(memory.ctypes.data, memory.size)
    except AutotmError as error:
        pytest.skip(str(error))
    assert before == {NOWHERE: PAGES}, "nothing was touched yet"
    memory[:: mmap.PAGESIZE] = 1
    after = pages_by_node(memory.ctypes.data, memory.size)
    assert sum(after.values()) == PAGES
    if policy is not PagePolicy.LOCAL:
        assert after == {"0": PAGES}


def test_what_the_kernel_refuses_is_told() -> None:
    memory = mapping()
    asked(memory, PagePolicy.PREFERRED, [0])
    with pytest.raises(AutotmError, match="EINVAL"):
        apply_policy(memory.ctypes.data + 1, memory.size, PagePolicy.PREFERRED, [0])


@pytest.fixture
def switches(tmp_path: Path) -> list[Path]:
    """A made-up tree with both switches off."""
    paths = [tmp_path / name for name in SWITCHES]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("0")
    return paths


def contents(paths: list[Path]) -> list[str]:
    return [path.read_text() for path in paths]


def test_switches_are_on_within_and_as_before_after(switches: list[Path], tmp_path: Path) -> None:
    def fail() -> None:
        with balancing(tmp_path):
            assert contents(switches) == ["2", "1"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert contents(switches) == ["0", "0"]


def test_a_killed_process_leaves_no_switch_on(switches: list[Path], tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from autotm.memory.linux.page_policy import balancing\n"
        "with balancing(Path(sys.argv[1])):\n    print('on', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    assert contents(switches) == ["2", "1"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    while contents(switches) != ["0", "0"]:  # what watches over it puts them back
        time.sleep(0.02)


def test_switches_that_are_not_there_or_may_not_be_changed_leave_the_others_as_they_were(
    switches: list[Path], tmp_path: Path
) -> None:
    first, second = switches
    second.unlink()
    with pytest.raises(BadInputError, match="needs a Linux of 6"), balancing(tmp_path):
        pass
    second.symlink_to("/proc/version")
    with pytest.raises(AutotmError, match="needs to be run as root"), balancing(tmp_path):
        pass
    assert first.read_text() == "0"


MIB = 1 << 20


@pytest.fixture
def filler() -> Filler:
    """Eight MiB of node 0, which every machine has."""
    node_filler = Filler(0, SystemMemory())
    try:
        assert node_filler.take(8 * MIB) == 8 * MIB
    except AutotmError as error:
        pytest.skip(f"NOT TESTED: filled nodes: {error}")
    return node_filler


def test_pages_on_another_node_are_seen_and_what_is_given_back_is_no_longer_held(filler: Filler) -> None:
    filler._node = 1
    with pytest.raises(AutotmError, match="memory node 1: 2048 pages that should fill it are elsewhere"):
        filler.check()
    filler._node = 0
    filler.check()
    filler.leave(5 * MIB)
    assert filler.size_bytes == 3 * MIB
    filler.check()
    filler.leave(100 * MIB)
    assert filler.size_bytes == 0
    filler.take(MIB)
    filler.close()
    assert filler.size_bytes == 0


def test_a_limit_of_memory_ends_it_before_the_system_ends_the_process(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemMemory, "memory_limit", property(lambda _: MemoryLimit(8 * MIB, 3 * MIB)))
    with pytest.raises(AutotmError, match=r"must be filled .* this container may take 0\.003 GB more"):
        filler.fill()


def test_locked_pages_stay_untouched_until_they_are_touched() -> None:
    memory = mapping()
    address = memory.ctypes.data
    try:
        lock(address, memory.size)
        memory[: 2 * mmap.PAGESIZE] = 1
        assert pages_by_node(address, memory.size)[NOWHERE] == PAGES - 2
    except AutotmError as error:
        pytest.skip(f"NOT TESTED: locked memory: {error}")
    give_back(address, memory.size)
    assert pages_by_node(address, memory.size) == {NOWHERE: PAGES}


def test_pages_that_went_elsewhere_are_given_back(filler: Filler, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, freed = np.zeros(1024, np.int32), []
    nodes[[1, 2, 5, 7, 8]] = 1
    monkeypatch.setattr(policy_tiers, "node_of_pages", lambda *_: nodes)
    monkeypatch.setattr(policy_tiers, "give_back", lambda *piece: freed.append(piece))
    filler.take(4 * MIB)
    (start, _), (second, _), (third, _) = freed
    assert [size // mmap.PAGESIZE for _, size in freed] == [2, 1, 2]
    assert (second - start, third - start) == (4 * mmap.PAGESIZE, 6 * mmap.PAGESIZE)
    assert filler.size_bytes == 8 * MIB + (1024 - 5) * mmap.PAGESIZE


class Kernel:
    """Fast memory of which a kernel keeps an amount back that changes each time pages are placed.

    Args:
        limit_bytes: of fast memory for pages.
        wanted_bytes: what pages would take.
        filled_bytes: what is taken by others, and can be given back.
        kept: (least, most) bytes that the kernel keeps back; negative where others freed memory.
        most_taken_bytes: what can ever be taken from pages.
        seed: of what is kept.
    """

    def __init__(
        self,
        limit_bytes: int,
        wanted_bytes: int,
        filled_bytes: int,
        kept: tuple[int, int],
        most_taken_bytes: int = 1 << 40,
        seed: int = 0,
    ) -> None:
        self.limit_bytes, self.wanted_bytes, self.filled_bytes = limit_bytes, wanted_bytes, filled_bytes
        self.kept, self.most_taken_bytes = kept, most_taken_bytes
        self.capacity_bytes, self.random = limit_bytes, random.Random(seed)
        self.fast_bytes = self.kept_bytes = 0

    def touched(self) -> int:
        self.kept_bytes = self.random.randint(*self.kept)
        self.fast_bytes = min(self.wanted_bytes, max(0, self.capacity_bytes - self.kept_bytes))
        left = self.limit_bytes - self.fast_bytes
        return left if left < 0 else min(left, self.wanted_bytes - self.fast_bytes)

    def give(self, size_bytes: int) -> int:
        returned_bytes = min(size_bytes, self.filled_bytes)
        self.filled_bytes -= returned_bytes
        self.capacity_bytes += returned_bytes
        return returned_bytes

    def take(self, size_bytes: int) -> int:
        taken = min(size_bytes, max(0, self.capacity_bytes - self.kept_bytes), self.most_taken_bytes)
        self.most_taken_bytes -= taken
        self.filled_bytes += taken
        self.capacity_bytes -= taken
        return taken

    def searched(self, tolerated_bytes: int) -> CapacitySearch:
        search = CapacitySearch(self.touched, self.give, self.take)
        search.search(tolerated_bytes)
        assert search.left_bytes >= -tolerated_bytes or self.most_taken_bytes == 0
        return search


@pytest.mark.parametrize("kept_mib", [-40, -3, 0, 1, 5, 12, 40, 300])
def test_what_a_kernel_keeps_back_is_made_up_for(kept_mib: int) -> None:
    kernel = Kernel(4 * MIB, 8 * MIB, 2000 * MIB, (kept_mib * MIB, kept_mib * MIB))
    search = kernel.searched(MIB)
    assert 3 * MIB <= kernel.fast_bytes <= 4 * MIB
    assert 0 <= search.left_bytes <= MIB
    assert search.placements < 24


def test_memory_that_is_not_there_is_not_searched_for_ever() -> None:
    kernel = Kernel(400 * MIB, 800 * MIB, 100 * MIB, (200 * MIB, 200 * MIB))
    assert kernel.searched(4 * MIB).left_bytes == 100 * MIB
    assert kernel.filled_bytes == 0
    kernel = Kernel(4 * MIB, 80 * MIB, 0, (-20 * MIB, -20 * MIB), most_taken_bytes=0)
    assert kernel.searched(MIB).left_bytes == -20 * MIB, "pages that nothing is taken from stay beyond the limit"


@given(st.integers(1, 64), st.integers(1, 256), st.integers(0, 2000), st.integers(-32, 64), st.integers(0, 32),
       st.integers(0, 1 << 30))  # fmt: skip
def test_any_kernel_ends_within_the_limit(
    limit: int, wanted: int, filled: int, kept: int, more: int, seed: int
) -> None:
    kernel = Kernel(limit * MIB, wanted * MIB, filled * MIB, (kept * MIB, (kept + more) * MIB), seed=seed)
    search = kernel.searched(max(limit * MIB // 100, MIB))
    assert search.left_bytes >= 0
    assert kernel.fast_bytes <= kernel.limit_bytes
    assert search.placements < 80
