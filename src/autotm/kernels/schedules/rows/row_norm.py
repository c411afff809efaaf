"""Generated code of layer normalization and its gradient: one row at a time, its statistics where they are used."""

from __future__ import annotations

from dataclasses import replace

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from autotm.kernels.code import Code, Index, TargetInfo, parameters, replace_body, tir
from autotm.kernels.schedules.rows.rows import Fold, Rows, fold, total

_ROWS_PER_BLOCK = 256
"""Rows that are added one after the other to one sum over rows: keeps rounding small."""


def schedule_layer_norm(sch: s_tir.Schedule, main: SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of the function in `sch`, which holds nothing but the operator."""
    x, gamma, beta, y = parameters(sch)
    rows = Rows.of(x, 2, info, threads)
    epsilon = _epsilon(sch, main)

    def row(origin: Index) -> tirx.Stmt:
        normal = _Normal(rows, x, origin, epsilon)

        def vector(at: Index, lanes: int) -> tirx.Stmt:
            value = normal.vector(at, lanes) * tir.load(gamma, at, lanes) + tir.load(beta, at, lanes)
            return tir.store(y, origin + at, value, lanes)

        return tir.sequence([normal.statistics(), rows.walk(vector)])

    replace_body(sch, Code(rows.each(row), ()))


def schedule_layer_norm_gradient(sch: s_tir.Schedule, main: SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body; sums over rows are made of sums over blocks of rows, in their order."""
    x, gamma, dy, dx, *sums = parameters(sch)
    rows = Rows.of(x, 3, info, threads)
    blocks = min(rows.count, max(rows.tasks, -(-rows.count // _ROWS_PER_BLOCK)))
    partial = tir.workspace(blocks * 2 * rows.width, "partial_sums")
    epsilon = _epsilon(sch, main)

    def clear(base: Index) -> tirx.Stmt:
        flat = replace(rows, width=2 * rows.width)
        return flat.walk(lambda at, lanes: tir.store(partial, base + at, tir.zeros(lanes), lanes))

    def block(index: Index) -> tirx.Stmt:
        base = index * (2 * rows.width)
        first, last = tir.share(index, blocks, rows.count)

        def row(number: Index) -> tirx.Stmt:
            return tir.bind(
                number * rows.width,
                lambda origin: _gradient_row(rows, (x, gamma, dy, dx), origin, (partial, base), epsilon),
                "origin",
            )

        return tir.sequence([clear(base), tir.loop(last - first, row, "row", start=first)])

    kind = tirx.ForKind.PARALLEL if rows.tasks > 1 else tirx.ForKind.SERIAL
    body = [tir.loop(blocks, block, "block", kind)]
    for offset, result in zip((0, rows.width), sums, strict=True):
        body.append(_gather(rows, partial, offset, blocks, result))
    replace_body(sch, Code(tir.sequence(body), (partial,)))


def _gather(rows: Rows, partial: tirx.Buffer, offset: int, blocks: int, result: tirx.Buffer) -> tirx.Stmt:
    def vector(at: Index, lanes: int) -> tirx.Stmt:
        sums = tir.Registers(1, lanes)

        def add(block: Index) -> tirx.Stmt:
            term = tir.load(partial, block * (2 * rows.width) + offset + at, lanes)
            return sums.set(0, 0, sums.get(0, 0, lanes) + term, lanes)

        return tir.sequence(
            [
                sums.declare(),
                sums.set(0, 0, tir.zeros(lanes), lanes),
                tir.loop(blocks, add, "block"),
                tir.store(result, at, sums.get(0, 0, lanes), lanes),
            ]
        )

    return rows.walk(vector)


def _gradient_row(
    rows: Rows, buffers: tuple[tirx.Buffer, ...], origin: Index, partial: tuple[tirx.Buffer, Index], epsilon: float
) -> tirx.Stmt:
    x, gamma, dy, dx = buffers
    normal = _Normal(rows, x, origin, epsilon)
    slopes, products = total(rows), total(rows)
    means = tir.Registers(2, 1)
    sums, base = partial

    def add(at: Index, value: tirx.Expr, lanes: int) -> tirx.Stmt:
        return tir.store(sums, base + at, tir.load(sums, base + at, lanes) + value, lanes)

    def gather(at: Index, lanes: int) -> tuple[list[tirx.Stmt], list[tirx.Expr]]:
        outer = tir.load(dy, origin + at, lanes)
        slope = outer * tir.load(gamma, at, lanes)
        n = normal.vector(at, lanes)
        return [add(at, outer * n, lanes), add(rows.width + at, outer, lanes)], [slope, slope * n]

    def slope(at: Index, lanes: int) -> tirx.Stmt:
        value = tir.load(dy, origin + at, lanes) * tir.load(gamma, at, lanes) - tir.splat(means.get(0, 0), lanes)
        value = value - normal.vector(at, lanes) * tir.splat(means.get(1, 0), lanes)
        return tir.store(dx, origin + at, value * tir.splat(normal.inverse, lanes), lanes)

    return tir.sequence(
        [
            normal.statistics(),
            fold(rows, [slopes, products], gather),
            means.declare(),
            means.set(0, 0, _mean(slopes, rows)),
            means.set(1, 0, _mean(products, rows)),
            rows.walk(slope),
        ]
    )


class _Normal:
    """(x - mean) / sqrt(variance + epsilon) of one row."""

    def __init__(self, rows: Rows, x: tirx.Buffer, origin: Index, epsilon: float) -> None:
        self._rows, self._x, self._origin, self._epsilon = rows, x, origin, epsilon
        self._values = tir.Registers(2, 1)

    @property
    def inverse(self) -> tirx.Expr:
        """1 / sqrt(variance + epsilon)."""
        return self._values.get(1, 0)

    def statistics(self) -> tirx.Stmt:
        """Compute mean and variance, the latter from the distances to the mean."""
        one, epsilon = (tirx.FloatImm("float32", value) for value in (1.0, self._epsilon))
        plain, squares = total(self._rows), total(self._rows)

        def square(at: Index, lanes: int) -> tuple[list[tirx.Stmt], list[tirx.Expr]]:
            distance = self._distance(at, lanes)
            return [], [distance * distance]

        return tir.sequence(
            [
                self._values.declare(),
                fold(self._rows, [plain], lambda at, lanes: ([], [tir.load(self._x, self._origin + at, lanes)])),
                self._values.set(0, 0, _mean(plain, self._rows)),
                fold(self._rows, [squares], square),
                self._values.set(1, 0, one / tirx.sqrt(_mean(squares, self._rows) + epsilon)),
            ]
        )

    def vector(self, at: Index, lanes: int) -> tirx.Expr:
        """The vector at an offset of the row."""
        return self._distance(at, lanes) * tir.splat(self.inverse, lanes)

    def _distance(self, at: Index, lanes: int) -> tirx.Expr:
        return tir.load(self._x, self._origin + at, lanes) - tir.splat(self._values.get(0, 0), lanes)


def _mean(fold: Fold, rows: Rows) -> tirx.Expr:
    return fold.value * tirx.FloatImm("float32", 1.0 / rows.width)


def _epsilon(sch: s_tir.Schedule, main: SBlockRV) -> float:
    return float(sch.get(main).annotations["epsilon"])
