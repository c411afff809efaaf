"""Pools: aligned zero-copy views, bounds, poison, and the end of their memory."""

import numpy as np
import psutil
import pytest

from autotm.memory.pool import POISON_BYTE, Pool
from autotm.model.errors import AutotmError
from autotm.model.graph import Tier


def test_views_are_aligned_and_share_memory() -> None:
    pool = Pool(Tier.FAST, 1 << 16)
    whole = pool.view(0, (1 << 14,), "float32")
    for offset in range(0, 4096, 64):
        part = pool.view(offset, (4, 4), "float32")
        assert part.ctypes.data % 64 == 0
        part[...] = offset
        assert (whole[offset // 4 : offset // 4 + 16] == offset).all()
        assert part.flags.c_contiguous


def test_pool_starts_zeroed_in_whole_pages() -> None:
    pool = Pool(Tier.SLOW, 3 * 4096 + 64)
    everything = pool.view(0, (3 * 4096 + 64,), "uint8")
    assert everything.ctypes.data % 4096 == 0
    assert not everything.any()


@pytest.mark.parametrize(("offset", "count"), [(0, 1025), (64, 1009), (-64, 1), (4096, 1), (1 << 40, 1)])
def test_views_beyond_the_pool_are_refused(offset: int, count: int) -> None:
    pool = Pool(Tier.FAST, 4096)
    with pytest.raises(AutotmError, match="leave its 4096 bytes"):
        pool.view(offset, (count,), "float32")


def test_the_last_byte_of_a_pool_is_usable() -> None:
    pool = Pool(Tier.FAST, 100)
    assert pool.view(64, (36,), "uint8").size == 36
    with pytest.raises(AutotmError, match=r"bytes \[64, 101\)"):
        pool.view(64, (37,), "uint8")


def test_misaligned_offsets_are_refused() -> None:
    pool = Pool(Tier.FAST, 4096)
    with pytest.raises(AutotmError, match="offset 32 is not a multiple of 64"):
        pool.view(32, (1,), "float32")


def test_scalars_booleans_and_empty_arrays() -> None:
    pool = Pool(Tier.FAST, 128)
    pool.view(64, (), "int64")[...] = 7
    assert pool.view(64, (1,), "int64")[0] == 7
    assert pool.view(0, (2, 3), "bool").dtype == np.bool_
    assert pool.view(128, (0, 5), "float32").shape == (0, 5)


def test_empty_pool_has_no_bytes() -> None:
    pool = Pool(Tier.FAST, 0)
    assert pool.view(0, (0,), "float32").size == 0
    with pytest.raises(AutotmError, match="leave its 0 bytes"):
        pool.view(0, (1,), "uint8")


def test_poison_reads_as_nan_and_spares_its_neighbours() -> None:
    pool = Pool(Tier.FAST, 4096)
    values = pool.view(0, (1024,), "float32")
    values[...] = 1
    pool.poison(64, 128)
    assert np.isnan(values[16:48]).all()
    assert (values[:16] == 1).all()
    assert (values[48:] == 1).all()
    assert (pool.view(64, (128,), "uint8") == POISON_BYTE).all()


def test_poison_beyond_the_pool_is_refused() -> None:
    pool = Pool(Tier.FAST, 4096)
    with pytest.raises(AutotmError, match="leave its 4096 bytes"):
        pool.poison(4032, 65)


@pytest.mark.parametrize("size_bytes", [-1, psutil.virtual_memory().total + (1 << 30)])
def test_impossible_sizes_are_refused(size_bytes: int) -> None:
    with pytest.raises(AutotmError, match="pmem pool"):
        Pool(Tier.SLOW, size_bytes)


def test_memory_outlives_close_while_a_view_lives() -> None:
    pool = Pool(Tier.FAST, 4096)
    view = pool.view(0, (1024,), "float32")
    pool.close()
    view[...] = 3
    assert (view == 3).all()
    with pytest.raises(AutotmError, match="leave its 0 bytes"):
        pool.view(0, (1,), "uint8")
