"""The kernels of `small_step`, compiled with TVM in about a second."""

from __future__ import annotations

from pathlib import Path

import tvm
from small_step import RATE
from tvm import s_tir, te

from autotm.kernels.target import host_target


def build_library(path: Path, batch: int = 32, width: int = 64, target: tvm.target.Target | None = None) -> None:
    """Compile the step's kernels into `path`, for this host's CPU unless there is a `target`."""
    module = tvm.IRModule({name: _parallel(name, args) for name, args in _functions(batch, width).items()})
    tvm.compile(module, target=target or host_target()).export_library(str(path))


def _functions(batch: int, width: int) -> dict[str, list[te.Tensor]]:
    rows, square = (batch, width), (width, width)

    def tensor(shape: tuple[int, ...], name: str) -> te.Tensor:
        return te.placeholder(shape, "float32", name)

    def matmul(left: te.Tensor, right: te.Tensor, name: str, *, transpose: bool = False) -> te.Tensor:
        k = te.reduce_axis((0, left.shape[0] if transpose else left.shape[1]), "k")
        return te.compute(
            (left.shape[1] if transpose else left.shape[0], right.shape[1]),
            lambda i, j: te.sum((left[k, i] if transpose else left[i, k]) * right[k, j], axis=k),
            name=name,
        )

    x, w, act, v = tensor(rows, "x"), tensor(square, "w"), tensor(rows, "act"), tensor(square, "v")
    out, target, error, hidden = (tensor(rows, name) for name in ("out", "target", "error", "hidden"))
    grad = tensor(square, "grad")
    relu = te.compute(rows, lambda i, j: te.max(act[i, j], tvm.tirx.const(0, "float32")), name="result")
    difference = te.compute(rows, lambda i, j: out[i, j] - target[i, j], name="difference")
    a, b = te.reduce_axis((0, batch), "a"), te.reduce_axis((0, width), "b")
    loss = te.compute((1,), lambda _: te.sum(difference[a, b] * difference[a, b], axis=[a, b]), name="result")
    transposed = te.compute(square, lambda i, j: v[j, i], name="transposed")
    k = te.reduce_axis((0, width), "k")
    gact = te.compute(
        rows,
        lambda i, j: te.sum(error[i, k] * transposed[k, j] * (hidden[i, j] > 0).astype("float32"), axis=k),
        name="result",
    )
    sgd = te.compute(square, lambda i, j: v[i, j] - tvm.tirx.const(RATE / batch, "float32") * grad[i, j], name="result")
    return {
        "hidden": [x, w, matmul(x, w, "result")],
        "relu": [act, relu],
        "out": [act, v, matmul(act, v, "result")],
        "loss": [out, target, difference, loss],
        "grad_act": [error, v, hidden, gact, transposed],
        "grad_v": [act, error, matmul(act, error, "result", transpose=True)],
        "sgd_v": [v, grad, sgd],
        "grad_w": [x, error, matmul(x, error, "result", transpose=True)],
        "sgd_w": [v, grad, sgd],
    }


def _parallel(name: str, arguments: list[te.Tensor]) -> tvm.tirx.PrimFunc:
    schedule = s_tir.Schedule(te.create_prim_func(arguments).with_attr("global_symbol", name))
    if name != "loss":
        schedule.parallel(schedule.get_loops(schedule.get_sblock("result"))[0])
    return schedule.mod["main"].with_attr("global_symbol", name)
