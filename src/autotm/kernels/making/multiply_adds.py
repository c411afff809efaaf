"""How fast the cores multiply and add at best: a loop that touches registers only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tvm
from tvm import tirx

from autotm.kernels.code import machine_code, target_info, tir
from autotm.kernels.library import aligned_empty

_STEPS = 2_000_000


def register_loop(target: tvm.target.Target, threads: int) -> tuple[Callable[[], object], int]:
    """The compiled loop on memory of its own, and its floating-point operations."""
    function, flops = multiply_add_loop(target, threads)
    (result,) = function.params
    argument = tvm.runtime.from_dlpack(aligned_empty([int(extent) for extent in result.shape], "float32"))
    return partial(machine_code({"main": function}, target)["main"], argument), flops


def multiply_add_loop(target: tvm.target.Target, threads: int) -> tuple[tirx.PrimFunc, int]:
    """A loop of float32 multiply-adds in registers on so many threads, and its floating-point operations.

    It takes an array that its sums start from and end in.
    """
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
    return function, 2 * threads * chains * info.lanes * _STEPS
