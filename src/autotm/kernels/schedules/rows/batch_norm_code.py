"""The two reductions of batch norm as generated code: each reads its operands once.

The variance is that of the deviations from a rough mean, of a few rows, so that nothing cancels: with the sums s and t
of d = x - rough and d², the mean is rough + s/n and the variance t/n - (s/n)² (Chan, Golub and LeVeque, 1983).
"""

from __future__ import annotations

from tvm import s_tir, tirx

from autotm.kernels.code import Index, TargetInfo, parameters, tir
from autotm.kernels.schedules.rows.channel_sums import ChannelSums, matrix

_ROUGH_ROWS = 8


def schedule_statistics(sch: s_tir.Schedule, main: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of `batch_norm.statistics`."""
    x, mean, inverse = parameters(sch)
    rows, channels = matrix(x)
    epsilon = float(sch.get(main).annotations["epsilon"])

    def constant(value: float, lanes: int) -> tirx.Expr:
        return tir.splat(tirx.FloatImm("float32", value), lanes)

    def rough_mean(c: Index, lanes: int) -> tirx.Stmt:
        count = min(rows, _ROUGH_ROWS)
        total = tir.zeros(lanes)
        for sample in range(count):
            total = total + tir.load(x, sample * rows // count * channels + c, lanes)
        return tir.store(mean, c, total * constant(1 / count, lanes), lanes)

    def terms(row: Index, c: Index, lanes: int) -> list[tirx.Expr]:
        deviation = tir.load(x, row * channels + c, lanes) - tir.load(mean, c, lanes)
        return [deviation, deviation * deviation]

    def finish(c: Index, lanes: int, sums: list[tirx.Expr]) -> tirx.Stmt:
        offset, square = (value * constant(1 / rows, lanes) for value in sums)
        variance = tirx.max(square - offset * offset, tir.zeros(lanes))
        deviation = tirx.sqrt(variance + constant(epsilon, lanes))
        return tir.sequence(
            [
                tir.store(inverse, c, constant(1.0, lanes) / deviation, lanes),
                tir.store(mean, c, tir.load(mean, c, lanes) + offset, lanes),
            ]
        )

    sums = ChannelSums(rows, channels, 1, terms, finish)
    sums.replace_body(sch, info, threads, tir.spans(channels, info.lanes, rough_mean))


def schedule_gradient_sums(sch: s_tir.Schedule, _main: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of `batch_norm.gradient_sums`."""
    dy, x, mean, inverse, dgamma, dbeta = parameters(sch)
    rows, channels = matrix(x)

    def terms(row: Index, c: Index, lanes: int) -> list[tirx.Expr]:
        slope = tir.load(dy, row * channels + c, lanes)
        return [slope, slope * (tir.load(x, row * channels + c, lanes) - tir.load(mean, c, lanes))]

    def finish(c: Index, lanes: int, sums: list[tirx.Expr]) -> tirx.Stmt:
        total, product = sums
        return tir.sequence(
            [
                tir.store(dgamma, c, product * tir.load(inverse, c, lanes), lanes),
                tir.store(dbeta, c, total, lanes),
            ]
        )

    ChannelSums(rows, channels, 2, terms, finish).replace_body(sch, info, threads)
