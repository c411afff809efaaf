"""Managed memory beside a ballast: the driver has what the limit allows, and beyond that only where one is told to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import small_step
from played_cudart import PlayedRuntime
from recorded_nvml import Recorded

from autotm.memory.gpu import opening
from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.memory.gpu.cuda_memory import Runtime
from autotm.memory.gpu.interface import Span
from autotm.memory.gpu.opening import open_managed
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.machine import CudaTier

MIB = 1 << 20
POOL, ALLOWED = 24 * MIB, 8 * MIB
TOLD = replace(small_step.machine(), name="gpu", slow_tier=CudaTier(kind="cuda", managed_oversubscription=True))
UNTOLD = replace(TOLD, slow_tier=CudaTier(kind="cuda"))


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PlayedRuntime]:
    """A GPU of 64 MiB, unless told otherwise."""

    def played(**given: object) -> PlayedRuntime:
        runtime = PlayedRuntime(**{"device_bytes": 64 * MIB} | given)
        monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
        monkeypatch.setitem(sys.modules, "pynvml", Recorded())
        monkeypatch.setattr(opening, "_opened", set())
        return runtime

    return played


def test_the_driver_has_what_is_allowed_until_the_device_is_closed(play: Callable[..., PlayedRuntime]) -> None:
    played = play()
    with open_managed(TOLD, POOL, 64, allowed_bytes=ALLOWED) as device:
        assert played.free["device"] == 64 * MIB, "a pool that nobody touched is nowhere"
        device.keep_allowance()
        assert ALLOWED <= played.free["device"] < ALLOWED + 2 * MIB
        span = Span(device.device_pool, POOL - 4096, 4096)
        values = np.arange(4096, dtype=np.uint8)
        device.write(span, values)
        np.testing.assert_array_equal(device.read(span), values)
    assert not played.memory
    assert played.free["device"] == 64 * MIB


def test_kernels_loaded_before_take_nothing_of_what_is_allowed(play: Callable[..., PlayedRuntime]) -> None:
    played = play()
    with open_managed(TOLD, POOL, 64, allowed_bytes=ALLOWED) as device:
        played.free["device"] -= 10 * MIB
        device.keep_allowance()
        assert ALLOWED <= played.free["device"] < ALLOWED + 2 * MIB


def test_what_is_not_to_be_had_in_one_piece_is_held_in_several(play: Callable[..., PlayedRuntime]) -> None:
    played = play(largest_bytes=5 * MIB)
    with open_managed(TOLD, POOL, 64, allowed_bytes=ALLOWED) as device:
        device.keep_allowance()
        assert ALLOWED <= played.free["device"] < ALLOWED + 2 * MIB
        assert sum(kind == "device" for kind, _ in played.memory.values()) > 10
    assert not played.memory


def test_a_little_that_cannot_be_held_is_left(play: Callable[..., PlayedRuntime]) -> None:
    pool, allowed = 217 * MIB, 216 * MIB
    free = allowed + 2 * MIB + (1 << 16)
    played = play(device_bytes=free, largest_bytes=MIB)
    with open_managed(TOLD, pool, 64, allowed_bytes=allowed) as device:
        device.keep_allowance()
        assert played.free["device"] == free


def test_memory_that_cannot_be_held_is_an_error(play: Callable[..., PlayedRuntime]) -> None:
    played = play(largest_bytes=MIB)
    with (
        open_managed(TOLD, POOL, 64, allowed_bytes=ALLOWED) as device,
        pytest.raises(AutotmError, match="beyond the limit could not be held"),
    ):
        device.keep_allowance()
    assert not played.memory


def test_less_than_allowed_is_an_error(play: Callable[..., PlayedRuntime]) -> None:
    played = play()
    with open_managed(TOLD, POOL, 64, allowed_bytes=ALLOWED) as device:
        played.free["device"] = ALLOWED - 3 * MIB
        with pytest.raises(AutotmError, match=r"0.008 GB are asked for, 0.005 GB are free"):
            device.keep_allowance()


def test_beside_a_pool_that_fits_nothing_is_held(play: Callable[..., PlayedRuntime]) -> None:
    played = play()
    with open_managed(UNTOLD, POOL, 64, allowed_bytes=POOL) as device:
        device.keep_allowance()
        assert played.free["device"] == 64 * MIB


def test_a_pool_beyond_its_device_memory_has_to_be_allowed(play: Callable[..., PlayedRuntime]) -> None:
    played = play()
    with pytest.raises(BadInputError, match=r"gpu.yaml.*can hang a GPU.*managed_oversubscription: true"):
        open_managed(UNTOLD, POOL, 64, allowed_bytes=POOL - 1)
    assert not played.memory
    open_managed(UNTOLD, POOL, 64, allowed_bytes=POOL).close()


def test_the_rest_must_fit_the_host(play: Callable[..., PlayedRuntime], monkeypatch: pytest.MonkeyPatch) -> None:
    played = play()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=POOL - ALLOWED - 1))
    with pytest.raises(AutotmError, match="the rest goes to the host"):
        open_managed(TOLD, POOL, 64, allowed_bytes=ALLOWED)
    assert not played.memory


def test_a_driver_that_moves_pools_as_a_whole_is_refused(play: Callable[..., PlayedRuntime]) -> None:
    played = play(concurrent=False)
    with pytest.raises(AutotmError, match="no concurrent managed access"):
        open_managed(TOLD, POOL, 64, allowed_bytes=ALLOWED)
    open_managed(TOLD, POOL, 64, allowed_bytes=POOL).close()
    assert not played.memory


def test_ordinary_pools_have_no_allowance(play: Callable[..., PlayedRuntime]) -> None:
    played = play()
    with CudaDevice(0, MIB, 64, runtime=Runtime(played)) as device:
        device.keep_allowance()
        assert played.free["device"] == 63 * MIB
