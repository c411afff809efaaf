"""The copy engine: every byte, any thread count, and refusal of what it cannot copy."""

import os
from pathlib import Path

import numpy as np
import pytest

from autotm.memory.copying import PARALLEL_BYTES, CopyEngine
from autotm.model.files.errors import AutotmError

CPU = min(os.sched_getaffinity(0))
SIZES = [0, 1, 63, 4096, PARALLEL_BYTES - 1, PARALLEL_BYTES, PARALLEL_BYTES + 1, 3 * PARALLEL_BYTES + 12345]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_copies_every_byte_and_no_other(threads: int) -> None:
    engine = CopyEngine((CPU,) * threads)
    generator = np.random.default_rng(0)
    for size in SIZES:
        source = generator.integers(0, 256, size, dtype=np.uint8)
        target = np.zeros(size + 128, dtype=np.uint8)
        engine.copy(target[64 : 64 + size], source)
        assert np.array_equal(target[64 : 64 + size], source)
        assert not target[:64].any()
        assert not target[64 + size :].any()
    engine.close()


def test_shapes_may_differ_where_bytes_agree() -> None:
    engine = CopyEngine((CPU,))
    source = np.arange(12, dtype=np.float32).reshape(3, 4)
    target = np.zeros(6, dtype=np.float64)
    engine.copy(target, source)
    assert np.array_equal(target.view(np.float32), source.ravel())


def test_helpers_use_their_own_cores() -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpus[0]})
    try:
        engine = CopyEngine(cpus)
        source = np.ones(2 * PARALLEL_BYTES, dtype=np.uint8)
        engine.copy(np.empty_like(source), source)
        threads = [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
        places = [os.sched_getaffinity(thread) for thread in threads]
        engine.close()
    finally:
        os.sched_setaffinity(0, before)
    assert all({cpu} in places for cpu in cpus)


def test_different_sizes_are_refused() -> None:
    with pytest.raises(AutotmError, match="destination holds 8 bytes, the source 12"):
        CopyEngine((CPU,)).copy(np.zeros(2, np.float32), np.zeros(3, np.float32))


def test_strided_arrays_are_refused() -> None:
    with pytest.raises(AutotmError, match="not contiguous"):
        CopyEngine((CPU,)).copy(np.zeros((2, 2)), np.zeros((2, 4))[:, ::2])
