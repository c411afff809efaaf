"""Generated code of softmax, its logarithm, and their gradients: one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from autotm.kernels.code import Code, Index, TargetInfo, parameters, replace_body, tir
from autotm.kernels.schedules.rows.rows import Rows, exponential, fold, largest, total

_Row = Callable[[Rows, list[tirx.Buffer], Index], tirx.Stmt]


def schedule_softmax(sch: s_tir.Schedule, main: SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of the function in `sch`, which holds nothing but one of these operators."""
    buffers = parameters(sch)
    rows = Rows.of(buffers[0], len(buffers), info, threads)
    row = _ROWS[sch.get(main).name_hint]
    replace_body(sch, Code(rows.each(lambda origin: row(rows, buffers, origin)), ()))


def _softmax(rows: Rows, buffers: list[tirx.Buffer], origin: Index) -> tirx.Stmt:
    x, y = buffers
    peak, summed = largest(rows), total(rows)

    def exponentials(at: Index, lanes: int) -> tuple[list[tirx.Stmt], list[tirx.Expr]]:
        value = exponential(tir.load(x, origin + at, lanes) - tir.splat(peak.value, lanes), lanes)
        return [tir.store(y, origin + at, value, lanes)], [tir.load(y, origin + at, lanes)]

    factor = tir.Registers(1, 1)

    def scale(at: Index, lanes: int) -> tirx.Stmt:
        value = tir.load(y, origin + at, lanes) * tir.splat(factor.get(0, 0), lanes)
        return tir.store(y, origin + at, value, lanes)

    return tir.sequence(
        [
            fold(rows, [peak], lambda at, lanes: ([], [tir.load(x, origin + at, lanes)])),
            fold(rows, [summed], exponentials),
            factor.declare(),
            factor.set(0, 0, tirx.FloatImm("float32", 1.0) / summed.value),
            rows.walk(scale),
        ]
    )


def _softmax_gradient(rows: Rows, buffers: list[tirx.Buffer], origin: Index) -> tirx.Stmt:
    y, dy, dx = buffers
    summed = total(rows)

    def product(at: Index, lanes: int) -> tuple[list[tirx.Stmt], list[tirx.Expr]]:
        return [], [tir.load(y, origin + at, lanes) * tir.load(dy, origin + at, lanes)]

    def slope(at: Index, lanes: int) -> tirx.Stmt:
        value = tir.load(dy, origin + at, lanes) - tir.splat(summed.value, lanes)
        return tir.store(dx, origin + at, tir.load(y, origin + at, lanes) * value, lanes)

    return tir.sequence([fold(rows, [summed], product), rows.walk(slope)])


def _log_softmax(rows: Rows, buffers: list[tirx.Buffer], origin: Index) -> tirx.Stmt:
    x, y = buffers
    peak, summed = largest(rows), total(rows)

    def exponentials(at: Index, lanes: int) -> tuple[list[tirx.Stmt], list[tirx.Expr]]:
        return [], [exponential(tir.load(x, origin + at, lanes) - tir.splat(peak.value, lanes), lanes)]

    shift = tir.Registers(1, 1)

    def subtract(at: Index, lanes: int) -> tirx.Stmt:
        value = tir.load(x, origin + at, lanes) - tir.splat(peak.value, lanes) - tir.splat(shift.get(0, 0), lanes)
        return tir.store(y, origin + at, value, lanes)

    return tir.sequence(
        [
            fold(rows, [peak], lambda at, lanes: ([], [tir.load(x, origin + at, lanes)])),
            fold(rows, [summed], exponentials),
            shift.declare(),
            shift.set(0, 0, tirx.log(summed.value)),
            rows.walk(subtract),
        ]
    )


def schedule_log_softmax_gradient(sch: s_tir.Schedule, main: SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of the function in `sch`: elementwise work in front of dy is done row by row, in dx's place."""
    difference = sch.get(main).body.value
    dy, dx = difference.a.source, sch.get(main).writes[0].source
    (y,) = [load.source for load in tir.loads_of(difference.b) if len(load.indices) == len(dy.shape)]
    rows = Rows.of(dx, 3, info, threads)
    if dy in parameters(sch):
        body = rows.each(lambda origin: _log_softmax_gradient(rows, [y, dy, dx], origin))
    else:
        element = _producer(sch, main, dy)

        def row(origin: Index) -> tirx.Stmt:
            def store(column: Index) -> tirx.Stmt:
                at = [*_unravel(origin // rows.width, dx), tir.number(column)]
                return tirx.BufferStore(dx, element(at), at)

            fill = tir.lanewise(rows.width, rows.lanes, store)
            return tir.sequence([fill, _log_softmax_gradient(rows, [y, dx, dx], origin)])

        body = rows.each(row)
    replace_body(sch, Code(body, ()))


def _producer(sch: s_tir.Schedule, main: SBlockRV, buffer: tirx.Buffer) -> Callable[[Sequence[tirx.Expr]], tirx.Expr]:
    """An element of `buffer` as an expression of parameters; inlines everything in front of it."""
    elementwise = [rv for rv in sch.get_child_blocks(sch.get_sblock("root")) if rv != main and sch.get(rv).init is None]
    (last,) = [rv for rv in elementwise if sch.get(rv).writes[0].source.same_as(buffer)]
    name, last_name = sch.get(main).name_hint, sch.get(last).name_hint
    for rv in elementwise:
        if sch.get(rv).name_hint not in {name, last_name}:
            sch.compute_inline(rv)
    block = sch.get(last)
    axes, value = [axis.var for axis in block.iter_vars], block.body.value
    return lambda at: tir.rewrite(value, dict(zip(axes, at, strict=True)), {})


def _unravel(row: Index, buffer: tirx.Buffer) -> list[tirx.Expr]:
    """Indices of a row in all axes but the last."""
    indices: list[tirx.Expr] = []
    for extent in reversed([int(extent) for extent in buffer.shape[:-1]]):
        indices.insert(0, row % extent)
        row = row // extent
    return indices


def _log_softmax_gradient(rows: Rows, buffers: list[tirx.Buffer], origin: Index) -> tirx.Stmt:
    y, dy, dx = buffers
    summed = total(rows)

    def slope(at: Index, lanes: int) -> tirx.Stmt:
        probability = exponential(tir.load(y, origin + at, lanes), lanes)
        value = tir.load(dy, origin + at, lanes) - probability * tir.splat(summed.value, lanes)
        return tir.store(dx, origin + at, value, lanes)

    return tir.sequence(
        [fold(rows, [summed], lambda at, lanes: ([], [tir.load(dy, origin + at, lanes)])), rows.walk(slope)]
    )


_ROWS: dict[str, _Row] = {
    "softmax": _softmax,
    "softmax_gradient": _softmax_gradient,
    "log_softmax": _log_softmax,
}
