"""Copies beside kernels: every byte, the most urgent first, spread over their time, and honest about failure."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from autotm.memory.async_copy import CHUNK_BYTES, CopyEngine
from autotm.memory.clock import wait_until
from autotm.model.files.errors import AutotmError

CPUS = os.sched_getaffinity(0)
Make = Callable[[Callable[[int], int]], CopyEngine]


@pytest.fixture
def engine_of() -> Iterator[Make]:
    made: list[CopyEngine] = []

    def make(chunk_ns: Callable[[int], int]) -> CopyEngine:
        made.append(CopyEngine("test", CPUS, chunk_ns))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


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


@pytest.mark.wall_clock
def test_a_copy_takes_its_time_and_leaves_the_step_alone(engine_of: Make) -> None:
    chunks, chunk_ns = 20, 2_000_000
    source = noise(chunks * CHUNK_BYTES)
    async_copy = engine_of(lambda size: chunk_ns * size // CHUNK_BYTES).prepare(np.empty_like(source), source, 0)
    start = time.perf_counter_ns()
    async_copy.start()
    assert time.perf_counter_ns() - start < chunks * chunk_ns / 4
    assert not async_copy.is_done
    async_copy.wait()
    assert chunks * chunk_ns <= time.perf_counter_ns() - start < 4 * chunks * chunk_ns


@pytest.mark.wall_clock
def test_a_waiting_step_does_not_hold_up_the_copy(engine_of: Make) -> None:
    """The interpreter's lock changes hands every 5 ms at most: chunks of 0.2 ms would take forty times as long."""
    chunks, chunk_ns = 100, 200_000
    source = noise(chunks * CHUNK_BYTES)
    async_copy = engine_of(lambda _: chunk_ns).prepare(np.empty_like(source), source, 0)
    times = []
    for _ in range(3):
        start = time.perf_counter_ns()
        async_copy.start()
        while not async_copy.is_done:
            wait_until(time.perf_counter_ns() + 1_000_000)
        times.append(time.perf_counter_ns() - start)
    assert min(times) < 5 * chunks * chunk_ns


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


@pytest.mark.wall_clock
def test_waking_late_does_not_add_up(engine_of: Make) -> None:
    """Chunks that are copied late are followed by shorter waits: the whole takes what it should."""
    chunks, chunk_ns = 15, 4_000_000
    source = noise(chunks * CHUNK_BYTES)

    def late(_: int) -> int:
        time.sleep(0.003)
        return chunk_ns

    async_copy = engine_of(late).prepare(np.empty_like(source), source, 0)
    times = []
    for _ in range(6):
        start = time.perf_counter_ns()
        async_copy.start()
        async_copy.wait()
        times.append(time.perf_counter_ns() - start)
    assert chunks * chunk_ns <= min(times) < 1.5 * chunks * chunk_ns


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
    source = noise(4 * CHUNK_BYTES)
    async_copy = engine_of(lambda _: 20_000_000).prepare(np.empty_like(source), source, 0)
    async_copy.start()
    with pytest.raises(AutotmError, match="under way"):
        async_copy.start()
    async_copy.wait()


def test_closing_ends_the_thread_while_copies_are_under_way() -> None:
    engine = CopyEngine("ends", CPUS, lambda _: 10_000_000)
    source = np.zeros(1000 * CHUNK_BYTES, np.uint8)
    engine.prepare(np.empty_like(source), source, 0).start()
    start = time.monotonic()
    engine.close()
    assert time.monotonic() - start < 5, "the copy would take 10 s"
    assert "ends" not in {thread.name for thread in threading.enumerate()}


def test_different_sizes_and_strided_arrays_are_refused(engine_of: Make) -> None:
    engine = engine_of(lambda _: 0)
    with pytest.raises(AutotmError, match="destination holds 8 bytes, the source 12"):
        engine.prepare(np.zeros(2, np.float32), np.zeros(3, np.float32), 0)
    with pytest.raises(AutotmError, match="not contiguous"):
        engine.prepare(np.zeros((2, 2)), np.zeros((2, 4))[:, ::2], 0)
