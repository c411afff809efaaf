"""The search for room that pages which Linux places keep a limit with, against kernels that keep some memory back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotm.memory.linux.policy_tiers import Room

MIB = 1 << 20


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
        self.room_bytes, self.random = limit_bytes, random.Random(seed)
        self.fast_bytes = self.kept_bytes = 0

    def touched(self) -> int:
        self.kept_bytes = self.random.randint(*self.kept)
        self.fast_bytes = min(self.wanted_bytes, max(0, self.room_bytes - self.kept_bytes))
        left = self.limit_bytes - self.fast_bytes
        return left if left < 0 else min(left, self.wanted_bytes - self.fast_bytes)

    def give(self, size_bytes: int) -> int:
        given = min(size_bytes, self.filled_bytes)
        self.filled_bytes -= given
        self.room_bytes += given
        return given

    def take(self, size_bytes: int) -> int:
        taken = min(size_bytes, max(0, self.room_bytes - self.kept_bytes), self.most_taken_bytes)
        self.most_taken_bytes -= taken
        self.filled_bytes += taken
        self.room_bytes -= taken
        return taken

    def searched(self, tolerated_bytes: int) -> Room:
        room = Room(self.touched, self.give, self.take)
        room.search(tolerated_bytes)
        assert room.left_bytes >= -tolerated_bytes or self.most_taken_bytes == 0
        return room


@pytest.mark.parametrize("kept_mib", [-40, -3, 0, 1, 5, 12, 40, 300])
def test_what_a_kernel_keeps_back_is_made_up_for(kept_mib: int) -> None:
    kernel = Kernel(4 * MIB, 8 * MIB, 2000 * MIB, (kept_mib * MIB, kept_mib * MIB))
    room = kernel.searched(MIB)
    assert 3 * MIB <= kernel.fast_bytes <= 4 * MIB
    assert 0 <= room.left_bytes <= MIB
    assert room.placements < 24


def test_memory_that_is_not_there_is_not_searched_for_ever() -> None:
    kernel = Kernel(400 * MIB, 800 * MIB, 100 * MIB, (200 * MIB, 200 * MIB))
    assert kernel.searched(4 * MIB).left_bytes == 100 * MIB
    assert kernel.filled_bytes == 0


def test_pages_that_nothing_is_taken_from_stay_beyond_the_limit() -> None:
    kernel = Kernel(4 * MIB, 80 * MIB, 0, (-20 * MIB, -20 * MIB), most_taken_bytes=0)
    assert kernel.searched(MIB).left_bytes == -20 * MIB


@given(
    st.integers(1, 64),
    st.integers(1, 256),
    st.integers(0, 2000),
    st.tuples(st.integers(-32, 64), st.integers(0, 32)),
    st.integers(0, 1 << 30),
)
def test_any_kernel_ends_within_the_limit(
    limit: int, wanted: int, filled: int, kept: tuple[int, int], seed: int
) -> None:
    least = kept[0] * MIB
    kernel = Kernel(limit * MIB, wanted * MIB, filled * MIB, (least, least + kept[1] * MIB), seed=seed)
    room = kernel.searched(max(limit * MIB // 100, MIB))
    assert room.left_bytes >= 0
    assert kernel.fast_bytes <= kernel.limit_bytes
    assert room.placements < 80
