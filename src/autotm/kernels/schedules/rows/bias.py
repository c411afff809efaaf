"""The gradient of a bias: the sum over all axes but the last."""

from __future__ import annotations

from tvm import s_tir, te, tirx

from autotm.kernels.code import Index, TargetInfo, parameters, tir
from autotm.kernels.schedules.rows.channel_sums import ChannelSums, matrix


def bias_gradient(dy: te.Tensor) -> te.Tensor:
    """Shape (..., channels) gives (channels,); the code is generated, known by the block's name."""
    *leading, channels = (int(extent) for extent in dy.shape)
    axes = [te.reduce_axis((0, extent)) for extent in leading]
    return te.compute((channels,), lambda c: te.sum(dy(*axes, c), axis=axes), name="bias_gradient")


def schedule_bias_gradient(sch: s_tir.Schedule, _main: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of `bias_gradient`."""
    dy, total = parameters(sch)
    rows, channels = matrix(dy)

    def terms(row: Index, c: Index, lanes: int) -> list[tirx.Expr]:
        return [tir.load(dy, row * channels + c, lanes)]

    def finish(c: Index, lanes: int, sums: list[tirx.Expr]) -> tirx.Stmt:
        return tir.store(total, c, sums[0], lanes)

    ChannelSums(rows, channels, 1, terms, finish, count=1).replace_body(sch, info, threads)
