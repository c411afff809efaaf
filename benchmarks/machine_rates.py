"""What the machine can do at best: multiply-adds in registers, and copies between buffers larger than its caches."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tvm
from tvm import tirx

from autotm.kernels.code import tir
from autotm.kernels.code.passes import machine_code
from autotm.kernels.code.target import host_target, target_info
from autotm.kernels.library.library import aligned_empty

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
    info = target_info(target)
    chains, steps = info.registers * 3 // 4, 2_000_000
    result = tirx.decl_buffer((tirx.IntImm("int64", threads * chains * info.lanes),), "float32", name="result")

    def task(index: tir.Index) -> tirx.Stmt:
        sums = tir.Registers(chains, info.lanes)
        places = [(c, c * info.lanes) for c in range(chains)]
        begin = index * (chains * info.lanes)
        value = [tir.load(result, begin + at, info.lanes) for _, at in places]
        factor = tir.splat(tirx.FloatImm("float32", 0.999), info.lanes)

        def step(_: tir.Index) -> tirx.Stmt:
            return tir.sequence(
                [sums.set(c, 0, sums.get(c, 0, info.lanes) * factor + factor, info.lanes) for c, _ in places]
            )

        return tir.sequence(
            [
                sums.declare(),
                *(sums.set(c, 0, value[c], info.lanes) for c, _ in places),
                tir.loop(steps, step, "step"),
                *(tir.store(result, begin + at, sums.get(c, 0, info.lanes), info.lanes) for c, at in places),
            ]
        )

    body = tir.loop(threads, task, "task", tirx.ForKind.PARALLEL)
    function = tirx.PrimFunc([result], body).with_attr("global_symbol", "main")
    argument = tvm.runtime.from_dlpack(aligned_empty((threads * chains * info.lanes,), "float32"))
    module = machine_code({"main": function}, target)["main"]
    best = best_seconds([lambda: module(argument)], 1.0)[0]
    return 2.0 * threads * chains * info.lanes * steps / best


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
