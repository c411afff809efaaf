"""The copy engine: every byte and no other, any thread count, a helper on each core, refusal of what it cannot copy."""

import contextlib
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from autotm.memory.copies import CopyEngine
from autotm.memory.native.library import PLAIN, Stores, streamed_bytes, widest_store
from autotm.memory.native.ways import CopyMethod
from autotm.model.errors import AutotmError

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


def test_a_copy_is_complete_when_it_returns() -> None:
    """Copy upon copy over the same bytes: a helper that comes late to one must not write into the next."""
    engine = CopyEngine((CPU,) * 4)
    target = np.empty(PARALLEL_BYTES + 77, np.uint8)
    for value in range(1, 200):
        engine.copy(target, np.full_like(target, value))
        assert (target == value).all()
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


def test_shapes_may_differ_where_bytes_agree() -> None:
    engine = CopyEngine((CPU,))
    source = np.arange(12, dtype=np.float32).reshape(3, 4)
    target = np.zeros(6, dtype=np.float64)
    engine.copy(target, source)
    assert np.array_equal(target.view(np.float32), source.ravel())


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
@pytest.mark.parametrize("stores", [PLAIN, Stores(widest_store()), Stores(widest_store(), 1024)])
def test_a_way_may_leave_threads_asleep(threads: int, stores: Stores) -> None:
    engine = CopyEngine((CPU,) * 3)
    for size in (1, PARALLEL_BYTES + 4099):
        source, target = np.full(size, 7, np.uint8), np.zeros(size, np.uint8)
        for _ in range(20):
            target[:] = 0
            engine.copy(target, source, CopyMethod(threads, stores))
            assert (target == 7).all()
    engine.close()


def copying_threads() -> dict[str, set[int]]:
    """Helpers of this process and the cores that they may use; the kernel lists ended ones for a moment."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text() == "autotm-copy\n":
                found[task.name] = os.sched_getaffinity(int(task.name))
    return found


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


def test_different_sizes_are_refused() -> None:
    with pytest.raises(AutotmError, match="destination holds 8 bytes, the source 12"):
        CopyEngine((CPU,)).copy(np.zeros(2, np.float32), np.zeros(3, np.float32))


def test_strided_arrays_are_refused() -> None:
    with pytest.raises(AutotmError, match="not contiguous"):
        CopyEngine((CPU,)).copy(np.zeros((2, 2)), np.zeros((2, 4))[:, ::2])


@pytest.mark.parametrize("apart", [0, 1, 63])
def test_overlaps_are_refused_and_neighbours_copied(apart: int) -> None:
    engine, memory = CopyEngine((CPU,)), np.arange(128, dtype=np.uint8)
    with pytest.raises(AutotmError, match=f"overlap: 64 bytes, {apart} apart"):
        engine.copy(memory[apart : apart + 64], memory[:64])
    engine.copy(memory[64:], memory[:64])
    assert np.array_equal(memory[64:], memory[:64])


def test_read_only_destinations_are_refused() -> None:
    target = np.zeros(64, np.uint8)
    target.flags.writeable = False
    with pytest.raises(AutotmError, match="read-only"):
        CopyEngine((CPU,)).copy(target, np.ones(64, np.uint8))
