"""How fast the cores multiply and add at best: a loop that touches registers only."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import tvm
from tvm import tirx

from autotm.kernels.code import machine_code, target_info, tir
from autotm.kernels.library import aligned_empty, pinned
from autotm.model.machine import Machine, Watch

_STEPS = 2_000_000
_ROUNDS = 5


def multiply_add_flop_per_s(machine: Machine, target: tvm.target.Target, watch: Watch) -> float:
    """Best rate of all the machine's threads together, in floating-point operations a second (2 a multiply-add).

    `watch` judges the runs: those during which others hold the cores are repeated.
    """
    with pinned(machine):
        run, flops = register_loop(target, machine.threads)
        run()
        return flops / min(watch.rounds(partial(_seconds, run), _ROUNDS, "multiply-adds"))


def register_loop(target: tvm.target.Target, threads: int) -> tuple[Callable[[], object], int]:
    """A compiled loop of float32 multiply-adds in registers on so many threads, and its floating-point operations."""
    info = target_info(target)
    chains = info.registers * 3 // 4
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
                tir.loop(_STEPS, step, "step"),
                *(tir.store(result, begin + at, sums.get(c, 0, info.lanes), info.lanes) for c, at in places),
            ]
        )

    body = tir.loop(threads, task, "task", tirx.ForKind.PARALLEL)
    function = tirx.PrimFunc([result], body).with_attr("global_symbol", "main")
    argument = tvm.runtime.from_dlpack(aligned_empty((threads * chains * info.lanes,), "float32"))
    module = machine_code({"main": function}, target)["main"]
    return partial(module, argument), 2 * threads * chains * info.lanes * _STEPS


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
