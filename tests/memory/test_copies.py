"""Copies: every byte and no other, whatever the stores, the number of threads and the hurry; what is refused."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from stand_in_clock import StandInClock

from autotm.memory.copies import (
    CHUNK_BYTES,
    PLAIN,
    AsyncCopy,
    AsyncCopyEngine,
    CopyEngine,
    CopyMethod,
    Stores,
    compiled,
    copy_bytes,
    measured_methods,
    streamed_bytes,
    usual_methods,
    widest_store,
)
from autotm.model.errors import AutotmError
from autotm.model.graph import Tier
from autotm.model.links import CopyCurve


@pytest.mark.parametrize("ahead_bytes", [0, 1024])
@pytest.mark.parametrize("store_bytes", [0, 16, 32, 64])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 255, 256, 257, 319, 320, 4096, 70001])
def test_every_store_copies_every_byte_and_no_other(store_bytes: int, ahead_bytes: int, size: int) -> None:
    if store_bytes > widest_store():
        pytest.skip(f"this processor's widest streaming store has {widest_store()} bytes")
    source = np.random.default_rng(size).integers(1, 256, size + 64, dtype=np.uint8)
    for to_offset in (0, 1, 31, 63, 64):
        for from_offset in (0, 1, 33):
            target = np.zeros(size + 192, np.uint8)
            copy_bytes(
                target.ctypes.data + to_offset, source.ctypes.data + from_offset, size, Stores(store_bytes, ahead_bytes)
            )
            assert np.array_equal(target[to_offset : to_offset + size], source[from_offset : from_offset + size])
            assert not target[:to_offset].any()
            assert not target[to_offset + size :].any()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n", encoding="utf-8")
    return path


def test_a_library_is_compiled_once_unless_it_is_damaged(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(source).answer() == 42
    (library,) = (source.parent / "cache" / "autotm").iterdir()
    with monkeypatch.context() as patched:
        patched.setenv("PATH", "")
        patched.delenv("CC", raising=False)
        assert compiled(source).answer() == 42, "no compiler is asked any more"
    library.unlink()
    library.write_bytes(b"half of one")
    assert compiled(source).answer() == 42


def test_a_folder_that_cannot_be_written_is_done_without(source: Path) -> None:
    (source.parent / "cache").write_text("a file where the folder should be", encoding="utf-8")
    assert compiled(source).answer() == 42


def test_what_is_missing_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(source.parent))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(AutotmError, match=r"no C compiler.*apt-get install gcc"):
        compiled(source)
    monkeypatch.undo()
    source.write_text(f"#include <no_such_header_{os.getpid()}.h>\n", encoding="utf-8")
    with pytest.raises(AutotmError, match=r"(?s)answer\.c failed.*gcc.*no_such_header"):
        compiled(source)


SMALL, LARGE = streamed_bytes() // 16, streamed_bytes() * 16
STREAMING = Stores(widest_store())
streams = pytest.mark.skipif(not widest_store(), reason="this processor has no streaming stores")


def curve(threads: int, stores: Stores, small_ns: int, large_ns: int, to: Tier = Tier.FAST) -> CopyCurve:
    return CopyCurve(to, threads, stores != PLAIN, stores.ahead_bytes, ((SMALL, small_ns), (LARGE, large_ns)))


@streams
def test_caches_say_when_a_copy_streams() -> None:
    methods = usual_methods(4)
    assert methods.method(streamed_bytes() - 1).stores == PLAIN
    assert methods.method(streamed_bytes()).stores == methods.stores_alone(streamed_bytes()) == STREAMING
    assert (methods.method(0).threads, methods.method(1 << 30).threads) == (1, 4)
    assert 4096 <= streamed_bytes() <= 1 << 26


@streams
def test_the_fastest_method_is_taken_at_each_size() -> None:
    curves = [
        curve(1, PLAIN, 100, 2000),
        curve(1, STREAMING, 200, 1500),
        curve(1, Stores(widest_store(), 1024), 200, 1200),
        curve(2, PLAIN, 400, 1000),
        curve(2, Stores(widest_store(), 1024), 400, 700),
    ]
    methods = measured_methods(curves, Tier.FAST, 2)
    assert methods.method(SMALL) == CopyMethod(1, PLAIN)
    assert methods.method(LARGE) == methods.method(1 << 40) == CopyMethod(2, Stores(widest_store(), 1024))
    assert methods.stores_alone(LARGE) == Stores(widest_store(), 1024)
    assert measured_methods(curves, Tier.FAST, 1).method(LARGE) == CopyMethod(1, Stores(widest_store(), 1024)), (
        "only so many threads"
    )


def test_between_sizes_the_nearer_decides_and_without_curves_caches_do() -> None:
    methods = measured_methods([curve(1, PLAIN, 100, 2000), curve(2, PLAIN, 400, 1000)], Tier.FAST, 2)
    assert [methods.method(streamed_bytes() + more).threads for more in (-64, 64)] == [1, 2]
    assert measured_methods([], Tier.FAST, 3) == usual_methods(3)


@streams
def test_of_methods_as_fast_most_threads_copy_and_leave_caches_alone() -> None:
    stores = (PLAIN, STREAMING, Stores(widest_store(), 1024))
    times = itertools.count(1000, -1)
    curves = [curve(threads, each, 100, next(times)) for threads in (1, 2, 4) for each in stores]
    methods = measured_methods(curves, Tier.FAST, 4)
    assert (methods.method(SMALL), methods.method(LARGE)) == (CopyMethod(1, PLAIN), CopyMethod(4, STREAMING))


@streams
def test_one_disturbed_size_does_not_choose_the_prefetch() -> None:
    early, sizes = Stores(widest_store(), 4096), [LARGE << power for power in range(4)]
    undisturbed = [1000 << power for power in range(4)]
    disturbed = [2 * undisturbed[0], *undisturbed[1:]]
    curves = [
        CopyCurve(Tier.FAST, 1, stores != PLAIN, stores.ahead_bytes, tuple(zip(sizes, times, strict=True)))
        for stores, times in (
            (PLAIN, [3 * ns for ns in undisturbed]),
            (STREAMING, disturbed),
            (early, [ns * 5 // 4 for ns in undisturbed]),
        )
    ]
    methods = measured_methods(curves, Tier.FAST, 1)
    assert {methods.stores_alone(size) for size in sizes} == {STREAMING}


@streams
def test_directions_have_methods_of_their_own_and_what_stays_in_the_caches_is_not_streamed_past_them() -> None:
    curves = [
        *(curve(1, PLAIN, 100, 1000), curve(1, STREAMING, 50, 500)),
        *(curve(1, PLAIN, 100, 500, Tier.SLOW), curve(1, STREAMING, 100, 1000, Tier.SLOW)),
    ]
    to_fast, to_slow = (measured_methods(curves, tier, 1) for tier in Tier)
    assert (to_fast.method(LARGE).stores, to_slow.method(LARGE).stores) == (STREAMING, PLAIN)
    assert to_fast.method(SMALL).stores == PLAIN


CPU = min(os.sched_getaffinity(0))
PARALLEL_BYTES = 2 << 20
SIZES = [
    *(0, 1, 63, 255, 257, 4096),
    *(streamed_bytes() - 1, streamed_bytes(), streamed_bytes() + 1),
    *(PARALLEL_BYTES - 1, PARALLEL_BYTES, PARALLEL_BYTES + 1, 6 * PARALLEL_BYTES + 12345),
]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize(("to_offset", "from_offset"), [(64, 0), (1, 0), (63, 17), (65, 64)])
def test_copies_every_byte_and_no_other(threads: int, to_offset: int, from_offset: int) -> None:
    engine = CopyEngine((CPU,) * threads)
    generator = np.random.default_rng(0)
    for size in SIZES:
        source = generator.integers(0, 256, from_offset + size, dtype=np.uint8)[from_offset:]
        target = np.zeros(size + 128, dtype=np.uint8)
        engine.copy(target[to_offset : to_offset + size], source)
        assert np.array_equal(target[to_offset : to_offset + size], source)
        assert not target[:to_offset].any()
        assert not target[to_offset + size :].any()
    engine.close()


def test_threads_share_an_engine_copy_after_copy() -> None:
    engine = CopyEngine((CPU,) * 3)
    wrong: list[int] = []

    def work(value: int) -> None:
        source = np.full(2 * PARALLEL_BYTES + value, value, np.uint8)
        target = np.empty_like(source)
        for _ in range(20):
            target[:] = 0
            engine.copy(target, source)
            if not np.array_equal(target, source):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    assert not wrong


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
@pytest.mark.parametrize("stores", [PLAIN, Stores(widest_store()), Stores(widest_store(), 1024)])
def test_a_method_may_leave_threads_asleep_and_none_comes_late(threads: int, stores: Stores) -> None:
    """Copy upon copy over the same bytes: a helper that comes late to one must not write into the next."""
    engine = CopyEngine((CPU,) * 3)
    for size in (1, PARALLEL_BYTES + 4099):
        target = np.zeros(size, np.uint8)
        for value in range(1, 21):
            engine.copy(target, np.full_like(target, value), CopyMethod(threads, stores))
            assert (target == value).all()
    engine.close()


def copying_threads() -> dict[str, set[int]]:
    """Cores that each copying thread of this process may use; Linux still lists ended threads for a moment."""
    cores = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text() == "autotm-copy\n":
                cores[task.name] = os.sched_getaffinity(int(task.name))
    return cores


def test_helpers_use_their_own_cores_and_end_with_the_engine() -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    before = os.sched_getaffinity(0)
    there = copying_threads()
    os.sched_setaffinity(0, {cpus[0]})
    try:
        engine = CopyEngine((cpus[0], *cpus))
        mine = {name: places for name, places in copying_threads().items() if name not in there}
        engine.close()
        engine.close()
    finally:
        os.sched_setaffinity(0, before)
    assert sorted(map(sorted, mine.values())) == [[cpu] for cpu in cpus]
    while copying_threads().keys() & mine.keys():  # joined, but still listed
        time.sleep(0.01)


def test_a_core_that_cannot_be_had_is_named() -> None:
    nowhere = max(os.sched_getaffinity(0)) + 5000
    with pytest.raises(AutotmError, match=rf"cores \[{nowhere}\].*change cpus"):
        CopyEngine((CPU, nowhere))


@pytest.mark.parametrize("apart", [0, 1, 63])
def test_overlaps_are_refused_and_neighbours_copied(apart: int) -> None:
    engine, memory = CopyEngine((CPU,)), np.arange(128, dtype=np.uint8)
    two_rows = np.zeros((2, 2), np.float32)
    engine.copy(two_rows, memory[:16])  # Shapes may differ where bytes agree.
    assert np.array_equal(two_rows.view(np.uint8).ravel(), memory[:16])
    with pytest.raises(AutotmError, match=f"overlap: 64 bytes, {apart} apart"):
        engine.copy(memory[apart : apart + 64], memory[:64])
    engine.copy(memory[64:], memory[:64])
    assert np.array_equal(memory[64:], memory[:64])


Make = Callable[[Callable[[int], int]], AsyncCopyEngine]


@pytest.fixture
def engine_of() -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def make(chunk_ns: Callable[[int], int]) -> AsyncCopyEngine:
            engine = AsyncCopyEngine("test", os.sched_getaffinity(0), chunk_ns)
            return stack.enter_context(contextlib.closing(engine))

        yield make


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandInClock:
    return StandInClock().put_into(monkeypatch, "memory.copies")


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 321])
def test_copies_every_byte_and_no_other_whenever_it_flies(engine_of: Make, size: int) -> None:
    source, target = noise(size), np.zeros(size + 128, np.uint8)
    async_copy = AsyncCopy(engine_of(lambda _: 0), target[64 : 64 + size], source, 0)
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
    async_copy = AsyncCopy(engine_of(held_ns), np.empty_like(source), source, 0)
    async_copy.start()
    assert not async_copy.is_done, "the step goes on while the first chunk is held"
    with pytest.raises(AutotmError, match="under way"):
        async_copy.start()
    may_go_on.set()
    async_copy.wait()
    assert async_copy.ended_ns - async_copy.started_ns == chunks * chunk_ns
    assert stand_in.slept_ns == [chunk_ns] * chunks, "spread over its time, not at its end"


def test_the_most_urgent_copy_is_served_first(engine_of: Make) -> None:
    gate, async_copies = threading.Event(), {}
    engine = engine_of(lambda _: int(not gate.wait()))
    for deadline, count in {7: 3, 2: 5, 9: 1, 4: 2}.items():
        source = noise(count * CHUNK_BYTES)
        async_copies[deadline] = AsyncCopy(engine, np.empty_like(source), source, deadline)
        async_copies[deadline].start()
    gate.set()
    for async_copy in async_copies.values():
        async_copy.wait()
    ended = sorted(async_copies, key=lambda deadline: async_copies[deadline].ended_ns)
    assert ended == [2, 4, 7, 9], "the first chunk of 7 was under way when the others came; the rest of it gave way"


def test_waking_late_does_not_add_up(engine_of: Make, stand_in: StandInClock) -> None:
    """Chunks that are copied late are followed by shorter waits: the whole takes what it should."""
    chunks, chunk_ns, stand_in.late_ns = 15, 4_000_000, 500_000
    source = noise(chunks * CHUNK_BYTES)

    def slow(_: int) -> int:
        stand_in.advance(3_000_000)
        return chunk_ns

    async_copy = AsyncCopy(engine_of(slow), np.empty_like(source), source, 0)
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
    async_copy = AsyncCopy(engine_of(chunk_ns), target, source, 0)
    async_copy.start()
    with pytest.raises(AutotmError, match="the link is down"):
        async_copy.wait()
    fail[0] = False
    async_copy.start()
    async_copy.wait()
    assert np.array_equal(target, source)


def test_closing_ends_the_thread_after_the_chunk_that_it_copies() -> None:
    copied: list[int] = []

    def chunk_ns(size: int) -> int:
        copied.append(size)
        while len(copied) == 3 and not engine._is_closed:
            time.sleep(0.001)
        return 0

    engine = AsyncCopyEngine("ends", os.sched_getaffinity(0), chunk_ns)
    source = np.zeros(1000 * CHUNK_BYTES, np.uint8)
    async_copy = AsyncCopy(engine, np.empty_like(source), source, 0)
    async_copy.start()
    while len(copied) < 3:
        time.sleep(0.001)
    engine.close()
    assert len(copied) == 3
    assert not async_copy.is_done
    assert "ends" not in {thread.name for thread in threading.enumerate()}


READ_ONLY = np.zeros(64, np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("destination", "source", "message"),
    [
        (np.zeros(2, np.float32), np.zeros(3, np.float32), "destination holds 8 bytes, the source 12"),
        (np.zeros((2, 2)), np.zeros((2, 4))[:, ::2], "not contiguous"),
        (READ_ONLY, np.ones(64, np.uint8), "read-only"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    engine_of: Make, destination: np.ndarray, source: np.ndarray, message: str
) -> None:
    with pytest.raises(AutotmError, match=f"^copy: .*{message}"):
        CopyEngine((CPU,)).copy(destination, source)
    with pytest.raises(AutotmError, match=f"^asynchronous move: .*{message}"):
        AsyncCopy(engine_of(lambda _: 0), destination, source, 0)
