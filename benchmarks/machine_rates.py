"""What the machine can do at best: multiply-adds in registers, and copies between buffers larger than its caches."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import tvm

from autotm.kernels.calibration_kernels import multiply_add_loop
from autotm.kernels.library import aligned_empty
from autotm.kernels.passes import machine_code
from autotm.kernels.target import host_target
from autotm.kernels.tir import extents

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 200
_COPIED_BYTES = 256 << 20


def best_seconds(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """Least time of each call, taken in turn."""
    best = [float("inf")] * len(calls)
    for call in calls:
        call()
    begin, rounds = time.perf_counter(), 0
    while rounds < _LEAST_ROUNDS or (time.perf_counter() - begin < seconds and rounds < _MOST_ROUNDS):
        for index, call in enumerate(calls):
            call()
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
        rounds += 1
    return best


def peak_flop_per_s(threads: int) -> float:
    """Measured multiply-add rate of a loop that touches registers only."""
    target = host_target(threads)
    function, flops = multiply_add_loop(target, threads)
    argument = tvm.runtime.from_dlpack(aligned_empty(extents(function.params[0]), "float32"))
    run = partial(machine_code({"main": function}, target)["main"], argument)
    return flops / best_seconds([run], 1.0)[0]


class Copier:
    """memmove on some threads, from one buffer to another."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._threads = threads

    def __call__(self, source: np.ndarray, destination: np.ndarray) -> None:
        """Copy all of `source`."""
        piece = source.nbytes // self._threads
        offsets = [piece * index for index in range(self._threads)]
        to, since = ([array.ctypes.data + offset for offset in offsets] for array in (destination, source))
        list(self._pool.map(ctypes.memmove, to, since, [piece] * self._threads))


def copy_bytes_per_s(threads: int) -> float:
    """Measured rate of copying, bytes read plus bytes written."""
    source, destination = (aligned_empty((_COPIED_BYTES,), "uint8") for _ in range(2))
    source[...] = 1
    copy = Copier(threads)
    return 2 * _COPIED_BYTES / best_seconds([lambda: copy(source, destination)], 0.5)[0]
