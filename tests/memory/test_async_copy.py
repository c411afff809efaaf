"""Copies beside kernels: every byte, the most urgent first, spread over their time, and honest about failure."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from stand_in_clock import StandInClock

from autotm.memory.copies import CHUNK_BYTES, AsyncCopyEngine
from autotm.model.errors import AutotmError

CPUS = os.sched_getaffinity(0)
Make = Callable[[Callable[[int], int]], AsyncCopyEngine]


@pytest.fixture
def engine_of() -> Iterator[Make]:
    made: list[AsyncCopyEngine] = []

    def make(chunk_ns: Callable[[int], int]) -> AsyncCopyEngine:
        made.append(AsyncCopyEngine("test", CPUS, chunk_ns))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandInClock:
    return StandInClock().put_into(monkeypatch, "memory.copies")


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 321])
def test_copies_every_byte_and_no_other_whenever_it_flies(engine_of: Make, size: int) -> None:
    source, target = noise(size), np.zeros(size + 128, np.uint8)
    async_copy = engine_of(lambda _: 0).prepare(target[64 : 64 + size], source, 0)
    for _ in range(3):
        source += 1
        async_copy.start()
        async_copy.wait()
        assert np.array_equal(target[64 : 64 + size], source)
        assert not target[:64].any()
        assert not target[64 + size :].any()


def test_a_copy_takes_its_time_and_leaves_the_step_alone(engine_of: Make, stand_in: StandInClock) -> None:
    chunks, chunk_ns, may_go_on = 20, 2_000_000, threading.Event()

    def held_ns(size: int) -> int:
        may_go_on.wait()
        return chunk_ns * size // CHUNK_BYTES

    source = noise(chunks * CHUNK_BYTES)
    async_copy = engine_of(held_ns).prepare(np.empty_like(source), source, 0)
    async_copy.start()
    assert not async_copy.is_done, "the step goes on while the first chunk is held"
    may_go_on.set()
    async_copy.wait()
    assert async_copy.ended_ns - async_copy.started_ns == chunks * chunk_ns
    assert stand_in.slept_ns == [chunk_ns] * chunks, "spread over its time, not at its end"


def test_the_most_urgent_copy_is_served_first(engine_of: Make) -> None:
    done: list[int] = []
    gate = threading.Event()

    def chunk_ns(_: int) -> int:
        gate.wait()
        return 0

    engine = engine_of(chunk_ns)
    sizes = {7: 3, 2: 5, 9: 1, 4: 2}
    async_copies = {}
    for deadline, count in sizes.items():
        source = noise(count * CHUNK_BYTES)
        async_copies[deadline] = engine.prepare(np.empty_like(source), source, deadline)
    for deadline, async_copy in async_copies.items():
        end = async_copy.end
        async_copy.end = lambda error=None, deadline=deadline, end=end: (done.append(deadline), end(error))
        async_copy.start()
    gate.set()
    for async_copy in async_copies.values():
        async_copy.wait()
    assert done == [2, 4, 7, 9], "the first chunk of 7 was under way when the others came; the rest of it gave way"


def test_waking_late_does_not_add_up(engine_of: Make, stand_in: StandInClock) -> None:
    """Chunks that are copied late are followed by shorter waits: the whole takes what it should."""
    chunks, chunk_ns, stand_in.late_ns = 15, 4_000_000, 500_000
    source = noise(chunks * CHUNK_BYTES)

    def slow(_: int) -> int:
        stand_in.advance(3_000_000)
        return chunk_ns

    async_copy = engine_of(slow).prepare(np.empty_like(source), source, 0)
    async_copy.start()
    async_copy.wait()
    assert async_copy.ended_ns - async_copy.started_ns == chunks * chunk_ns + stand_in.late_ns


def test_a_failure_of_the_thread_surfaces_at_the_wait_and_the_next_copy_works(engine_of: Make) -> None:
    fail = [True]

    def chunk_ns(_: int) -> int:
        if fail[0]:
            raise OSError("the link is down")
        return 0

    source = noise(2 * CHUNK_BYTES)
    target = np.zeros_like(source)
    async_copy = engine_of(chunk_ns).prepare(target, source, 0)
    async_copy.start()
    with pytest.raises(AutotmError, match="the link is down"):
        async_copy.wait()
    fail[0] = False
    async_copy.start()
    async_copy.wait()
    assert np.array_equal(target, source)


def test_a_copy_under_way_cannot_be_started_again(engine_of: Make) -> None:
    source, may_go_on = noise(4 * CHUNK_BYTES), threading.Event()
    async_copy = engine_of(lambda _: int(not may_go_on.wait())).prepare(np.empty_like(source), source, 0)
    async_copy.start()
    with pytest.raises(AutotmError, match="under way"):
        async_copy.start()
    may_go_on.set()
    async_copy.wait()


def test_closing_ends_the_thread_after_the_chunk_that_it_copies() -> None:
    copied: list[int] = []

    def chunk_ns(size: int) -> int:
        copied.append(size)
        while len(copied) == 3 and not engine._is_closed:
            time.sleep(0.001)
        return 0

    engine = AsyncCopyEngine("ends", CPUS, chunk_ns)
    source = np.zeros(1000 * CHUNK_BYTES, np.uint8)
    async_copy = engine.prepare(np.empty_like(source), source, 0)
    async_copy.start()
    while len(copied) < 3:
        time.sleep(0.001)
    engine.close()
    assert len(copied) == 3
    assert not async_copy.is_done
    assert "ends" not in {thread.name for thread in threading.enumerate()}


def test_different_sizes_and_strided_arrays_are_refused(engine_of: Make) -> None:
    engine = engine_of(lambda _: 0)
    with pytest.raises(AutotmError, match="destination holds 8 bytes, the source 12"):
        engine.prepare(np.zeros(2, np.float32), np.zeros(3, np.float32), 0)
    with pytest.raises(AutotmError, match="not contiguous"):
        engine.prepare(np.zeros((2, 2)), np.zeros((2, 4))[:, ::2], 0)
