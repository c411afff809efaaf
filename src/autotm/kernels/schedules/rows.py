"""Generated code of functions that work on each row by itself: layer normalization, softmax, and their gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from autotm.kernels import tir
from autotm.kernels.schedules import memory_bound
from autotm.kernels.schedules.memory_bound import EXP_LEAST
from autotm.kernels.target import PARALLEL_BYTES, TargetInfo
from autotm.kernels.tir import Code, Index, parameters, replace_body

# Parts of kernels that work on each row of a matrix by itself: the row is read from memory once, then from the cache.
#
# Sums over a row are kept lane by lane in several vectors, so that rounding stays small and additions overlap.

_VECTORS = 4
"""Vectors of partial sums."""
Terms = tuple[list[tirx.Stmt], list[tirx.Expr]]
"""Statements to run, then a vector for each fold of a row."""


@dataclass(frozen=True)
class Rows:
    """A matrix that is worked on row by row."""

    count: int
    width: int
    lanes: int
    tasks: int
    """Pieces of neighbouring rows that are shared among the threads; 1 if that does not pay."""

    @classmethod
    def of(cls, buffer: tirx.Buffer, buffers: int, info: TargetInfo, threads: int) -> Rows:
        """Return the rows along the last axis of `buffer`, one of `buffers` equally large ones of the kernel."""
        *leading, width = tir.extents(buffer)
        count = math.prod(leading)
        is_parallel = threads > 1 and 4 * count * width * buffers >= PARALLEL_BYTES
        return cls(count, width, info.lanes, min(threads, count) if is_parallel else 1)

    def each(self, body: Callable[[Index], tirx.Stmt]) -> tirx.Stmt:
        """Emit the body for the flat offset of every row."""

        def row(number: Index, _task: Index) -> tirx.Stmt:
            return tir.bind(number * self.width, body, "origin")

        return tir.in_tasks(self.tasks, self.count, row, "row", when=self.tasks > 1)

    def walk(self, body: Callable[[Index, int], tirx.Stmt]) -> tirx.Stmt:
        """Emit `body(offset, lanes)` for every vector of a row."""
        return tir.spans(self.width, self.lanes, body)


class Fold:
    """One number made of a whole row, e.g. its sum: `combine` of partial results that start at `unit`."""

    def __init__(self, rows: Rows, combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr], unit: tirx.Expr) -> None:
        self._rows, self._combine, self._unit = rows, combine, unit
        self._parts = tir.Registers(1, _VECTORS * rows.lanes)

    @property
    def value(self) -> tirx.Expr:
        """The result, once `result` has run."""
        return self._parts.get(0, 0)

    def start(self) -> tirx.Stmt:
        """Reserve and clear the partial results."""
        lanes = self._rows.lanes
        clear = [self._parts.set(0, part * lanes, tir.splat(self._unit, lanes), lanes) for part in range(_VECTORS)]
        return tir.sequence([self._parts.declare(), *clear])

    def take(self, part: int, value: tirx.Expr, lanes: int) -> tirx.Stmt:
        """Combine a vector with partial result `part`."""
        at = part * self._rows.lanes
        return self._parts.set(0, at, self._combine(self._parts.get(0, at, lanes), value), lanes)

    def result(self) -> tirx.Stmt:
        """Combine the partial results: the upper half with the lower one until one number is left."""
        statements, width = [], _VECTORS * self._rows.lanes // 2
        while width:
            step = min(width, self._rows.lanes)
            for at in range(0, width, step):
                value = self._combine(self._parts.get(0, at, step), self._parts.get(0, at + width, step))
                statements.append(self._parts.set(0, at, value, step))
            width //= 2
        return tir.sequence(statements)


def total(rows: Rows) -> Fold:
    """Return a sum."""
    return Fold(rows, lambda a, b: a + b, tir.constant(0.0))


def fold(rows: Rows, folds: Sequence[Fold], body: Callable[[Index, int], Terms]) -> tirx.Stmt:
    """Emit one pass over a row: `body(offset, lanes)` gives statements to run, then a vector for each of `folds`."""
    lanes, group = rows.lanes, _VECTORS * rows.lanes

    def vector(part: int, offset: Index, width: int) -> tirx.Stmt:
        statements, values = body(offset, width)
        taken = [item.take(part, value, width) for item, value in zip(folds, values, strict=True)]
        return tir.sequence([*statements, *taken])

    def unrolled(index: Index) -> tirx.Stmt:
        return tir.sequence([vector(part, index * group + part * lanes, lanes) for part in range(_VECTORS)])

    whole, rest = divmod(rows.width, group)
    statements = [item.start() for item in folds]
    statements += [tir.loop(whole, unrolled, "vectors")] if whole else []
    tail = tir.segments(rest, lanes)
    statements += [vector(part % _VECTORS, whole * group + at, width) for part, (at, width) in enumerate(tail)]
    return tir.sequence([*statements, *(item.result() for item in folds)])


def exponential(x: tirx.Expr, lanes: int) -> tirx.Expr:
    """Return exp(x) of a vector, exactly zero where the result would be denormal; x is at most `EXP_MOST`, or NaN."""
    value = memory_bound.exponential(x, memory_bound.within_exp(x, lanes), lanes)
    return tirx.Select(x < tir.constant(EXP_LEAST, lanes), tir.zeros(lanes), value)


# Generated code of layer normalization and its gradient: one row at a time, its statistics where they are used.

_ROWS_PER_BLOCK = 256
"""Rows that are added one after the other to one sum over rows: keeps rounding small."""


def schedule_layer_norm(sch: s_tir.Schedule, main: SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of the function in `sch`, which holds nothing but the operator."""
    x, gamma, beta, y = parameters(sch)
    rows = Rows.of(x, 2, info, threads)
    epsilon = float(sch.get(main).annotations["epsilon"])

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
    epsilon = float(sch.get(main).annotations["epsilon"])

    def block(index: Index) -> tirx.Stmt:
        base = index * (2 * rows.width)
        first, last = tir.share(index, blocks, rows.count)

        def clear(at: Index, lanes: int) -> tirx.Stmt:
            return tir.store(partial, base + at, tir.zeros(lanes), lanes)

        def row(number: Index) -> tirx.Stmt:
            return tir.bind(
                number * rows.width,
                lambda origin: _gradient_row(rows, (x, gamma, dy, dx), origin, (partial, base), epsilon),
                "origin",
            )

        cleared = tir.spans(2 * rows.width, rows.lanes, clear)
        return tir.sequence([cleared, tir.loop(last - first, row, "row", start=first)])

    blocks_summed = tir.parallel(blocks, block, "block", when=rows.tasks > 1)
    places = zip((0, rows.width), sums, strict=True)
    gathered = [_gather(rows, partial, offset, blocks, result) for offset, result in places]
    replace_body(sch, Code(tir.sequence([blocks_summed, *gathered]), (partial,)))


def _gather(rows: Rows, partial: tirx.Buffer, offset: int, blocks: int, result: tirx.Buffer) -> tirx.Stmt:
    def vector(at: Index, lanes: int) -> tirx.Stmt:
        sums = tir.Registers(1, lanes)

        def add(block: Index) -> tirx.Stmt:
            term = tir.load(partial, block * (2 * rows.width) + offset + at, lanes)
            return sums.set(0, 0, sums.get(0, 0, lanes) + term, lanes)

        clear, added = sums.set(0, 0, tir.zeros(lanes), lanes), tir.loop(blocks, add, "block")
        return tir.sequence([sums.declare(), clear, added, tir.store(result, at, sums.get(0, 0, lanes), lanes)])

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

    def gather(at: Index, lanes: int) -> Terms:
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
        plain, squares = total(self._rows), total(self._rows)

        def square(at: Index, lanes: int) -> Terms:
            distance = self._distance(at, lanes)
            return [], [distance * distance]

        deviation = tirx.sqrt(_mean(squares, self._rows) + tir.constant(self._epsilon))
        return tir.sequence(
            [
                self._values.declare(),
                fold(self._rows, [plain], _values(self._x, self._origin)),
                self._values.set(0, 0, _mean(plain, self._rows)),
                fold(self._rows, [squares], square),
                self._values.set(1, 0, tir.constant(1.0) / deviation),
            ]
        )

    def vector(self, at: Index, lanes: int) -> tirx.Expr:
        """Return the vector at an offset of the row."""
        return self._distance(at, lanes) * tir.splat(self.inverse, lanes)

    def _distance(self, at: Index, lanes: int) -> tirx.Expr:
        return tir.load(self._x, self._origin + at, lanes) - tir.splat(self._values.get(0, 0), lanes)


def _mean(fold: Fold, rows: Rows) -> tirx.Expr:
    return fold.value * tir.constant(1.0 / rows.width)


# Generated code of softmax, its logarithm, and their gradients: one row at a time.


def schedule_softmax(sch: s_tir.Schedule, main: SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of the function in `sch`, which holds nothing but one of these operators."""
    buffers = parameters(sch)
    rows = Rows.of(buffers[0], len(buffers), info, threads)
    row = _ROWS[sch.get(main).name_hint]
    replace_body(sch, Code(rows.each(lambda origin: row(rows, buffers, origin)), ()))


def _softmax(rows: Rows, buffers: list[tirx.Buffer], origin: Index, *, is_log: bool = False) -> tirx.Stmt:
    """Emit the exponentials of a row over their sum; or the row, shifted by the sum's logarithm."""
    (x, y), register = buffers, tir.Registers(1, 1)
    peak = Fold(rows, tirx.max, tir.constant(0.0) - tirx.infinity("float32"))
    summed = total(rows)

    def shifted(at: Index, lanes: int) -> tirx.Expr:
        return tir.load(x, origin + at, lanes) - tir.splat(peak.value, lanes)

    def exponentials(at: Index, lanes: int) -> Terms:
        value = exponential(shifted(at, lanes), lanes)
        if is_log:
            return [], [value]
        return [tir.store(y, origin + at, value, lanes)], [tir.load(y, origin + at, lanes)]

    def finish(at: Index, lanes: int) -> tirx.Stmt:
        known = tir.splat(register.get(0, 0), lanes)
        value = shifted(at, lanes) - known if is_log else tir.load(y, origin + at, lanes) * known
        return tir.store(y, origin + at, value, lanes)

    known = tirx.log(summed.value) if is_log else tir.constant(1.0) / summed.value
    folds = [fold(rows, [peak], _values(x, origin)), fold(rows, [summed], exponentials)]
    return tir.sequence([*folds, register.declare(), register.set(0, 0, known), rows.walk(finish)])


def _values(x: tirx.Buffer, origin: Index) -> Callable[[Index, int], Terms]:
    """Return the elements of a row as terms of one fold."""
    return lambda at, lanes: ([], [tir.load(x, origin + at, lanes)])


def _softmax_gradient(rows: Rows, buffers: list[tirx.Buffer], origin: Index) -> tirx.Stmt:
    y, dy, dx = buffers
    summed = total(rows)

    def product(at: Index, lanes: int) -> Terms:
        return [], [tir.load(y, origin + at, lanes) * tir.load(dy, origin + at, lanes)]

    def slope(at: Index, lanes: int) -> tirx.Stmt:
        value = tir.load(dy, origin + at, lanes) - tir.splat(summed.value, lanes)
        return tir.store(dx, origin + at, tir.load(y, origin + at, lanes) * value, lanes)

    return tir.sequence([fold(rows, [summed], product), rows.walk(slope)])


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
                at, outer = [tir.number(column)], origin // rows.width
                for extent in reversed(tir.extents(dx)[:-1]):
                    at.insert(0, outer % extent)
                    outer = outer // extent
                return tirx.BufferStore(dx, element(at), at)

            fill = tir.lanewise(rows.width, rows.lanes, store)
            return tir.sequence([fill, _log_softmax_gradient(rows, [y, dx, dx], origin)])

        body = rows.each(row)
    replace_body(sch, Code(body, ()))


def _producer(sch: s_tir.Schedule, main: SBlockRV, buffer: tirx.Buffer) -> Callable[[Sequence[tirx.Expr]], tirx.Expr]:
    """Return an element of `buffer` as an expression of parameters; inline everything in front of it."""
    elementwise = [rv for rv in sch.get_child_blocks(sch.get_sblock("root")) if rv != main and sch.get(rv).init is None]
    (last,) = [rv for rv in elementwise if sch.get(rv).writes[0].source.same_as(buffer)]
    name, last_name = sch.get(main).name_hint, sch.get(last).name_hint
    for rv in elementwise:
        if sch.get(rv).name_hint not in {name, last_name}:
            sch.compute_inline(rv)
    block = sch.get(last)
    axes, value = [axis.var for axis in block.iter_vars], block.body.value
    return lambda at: tir.rewrite(value, dict(zip(axes, at, strict=True)), {})


def _log_softmax_gradient(rows: Rows, buffers: list[tirx.Buffer], origin: Index) -> tirx.Stmt:
    y, dy, dx = buffers
    summed = total(rows)

    def slope(at: Index, lanes: int) -> tirx.Stmt:
        probability = exponential(tir.load(y, origin + at, lanes), lanes)
        value = tir.load(dy, origin + at, lanes) - probability * tir.splat(summed.value, lanes)
        return tir.store(dx, origin + at, value, lanes)

    return tir.sequence([fold(rows, [summed], _values(dy, origin)), rows.walk(slope)])


_ROWS: dict[str, Callable[[Rows, list[tirx.Buffer], Index], tirx.Stmt]] = {
    "softmax": _softmax,
    "softmax_gradient": _softmax_gradient,
    "log_softmax": functools.partial(_softmax, is_log=True),
}
