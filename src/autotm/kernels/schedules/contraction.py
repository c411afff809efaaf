"""The schedule of a fused contraction: which form each kind takes, its operands made ready, its groups."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx

from autotm.kernels import tir
from autotm.kernels.schedules.panels import Grid, Operand, Padding, RowMajor, Taps, Turned, copy, fill, turn_rows
from autotm.kernels.schedules.pixels import Pixels, Source, contract_strips
from autotm.kernels.schedules.problem import Output, Problem, problem_of
from autotm.kernels.schedules.products import (
    FEW_ROWS,
    batched_product,
    few_rows_product,
    few_rows_product_nt,
    long_product_nt,
    long_product_pays,
)
from autotm.kernels.schedules.weights import Weights, contract_weights, contract_windows, gathering_pays
from autotm.kernels.schedules.winograd import (
    winograd_data_gradient,
    winograd_forward,
    winograd_pays,
    winograd_weight_gradient,
    winograd_weights_pay,
)
from autotm.kernels.target import PARALLEL_BYTES, TargetInfo, cut
from autotm.kernels.tir import Code, Index, replace_body
from autotm.model.graph import DEFAULT_IMPLEMENTATION

# The deterministic contraction schedule: from a fused function to code at the core's multiply-add rate.
#
# The function's main block (a contraction) and its elementwise epilogue are replaced by generated loops around
# register tiles; padded and packed operands are root-level buffers, so that they can become workspaces.

Generate = Callable[[Problem, TargetInfo, int], Code]
IMPLEMENTATIONS = (DEFAULT_IMPLEMENTATION, "lean")
"""Ways to compute a contraction: `default` is meant to be the fastest with any workspace, `lean` to need little.

Where the fastest takes little too, both are the same code.
"""


def schedule_contraction(
    sch: s_tir.Schedule,
    main_block: s_tir.schedule.SBlockRV,
    info: TargetInfo,
    threads: int,
    implementation: str = DEFAULT_IMPLEMENTATION,
) -> tuple[str, ...]:
    """Replace the body of the fused function in `sch` by generated code for `threads` threads.

    Returns the names of implementations that are other code for this function.

    Raises:
        ValueError: the function is no contraction with an elementwise epilogue.
    """
    problem = problem_of(sch, main_block)
    generate = _generator(problem, implementation)
    code = each_group(generate, problem, info, threads) if problem.groups > 1 else generate(problem, info, threads)
    replace_body(sch, code)
    return tuple(name for name in others(problem.kind) if _generator(problem, name) is not generate)


def others(kind: str) -> tuple[str, ...]:
    """Return the names of the ways to compute a kind of contraction, apart from the default."""
    _, lean = _FORMS.get(kind, (None, None))
    return IMPLEMENTATIONS[1:] if lean else ()


def _generator(problem: Problem, implementation: str) -> Generate:
    plain, lean = _FORMS[problem.kind]
    if implementation != DEFAULT_IMPLEMENTATION:
        if lean is None:
            raise ValueError(f"{problem.kind} has no implementation {implementation}")
        return lean
    pays, winograd = _WINOGRAD.get(problem.kind, (None, plain))
    return winograd if pays and pays(problem) else plain


# Each kind of contraction brought to one of the two generated forms, with its operands made ready.

_LEAST_TURNED = 192
"""Rows of A from which turning it for Aᵀ B pays."""
_LEAST_FEATURES = {16: 128, 32: 512}
"""Features from which it pays, by the registers of a core: with 16, 0.63 to 0.84 of the time (measured on AVX2), with
32, 0.76 to 1.00 (on AVX-512)."""
_TURNED_COLUMNS = 64  # Columns of A that one task turns.
_LEAST_RUN = 128
"""Runs of neighbouring taps that are shorter are taken as one."""


def forward(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit a convolution: pixels of the padded input times weights."""
    taps, columns, channels, features = tir.extents(problem.right)
    grid, padding = _padded(Grid.of(problem.left), problem.padding)
    batch, rows, width, _ = problem.shape
    source = _strided(grid, problem.stride)
    if taps == 1 and columns == 1 and problem.stride == (1, 1) and problem.flattens and padding is None:
        source = Source(grid.buffer, 0, 0, 0, grid.channels, 0)
        batch, rows, width = 1, 1, batch * rows * width
    reduction, source = _reduction(taps, columns, channels, source)
    operand = RowMajor(problem.right, taps * columns * channels, features)
    pixels = Pixels(batch, rows, width, features, *reduction, source, operand, _same)
    return contract_strips([pixels], problem, info, threads, padding)


def _padded(grid: Grid, sides: tuple[int, int, int, int]) -> tuple[Grid, Padding | None]:
    """Return where pixels would lie in the padded grid, and the padding if there is any."""
    if not any(sides):
        return grid, None
    padding = Padding(grid, sides)
    return padding.within(grid.buffer), padding


def _strided(grid: Grid, stride: tuple[int, int]) -> Source:
    return Source(grid.buffer, 0, grid.image, stride[0] * grid.row, stride[1] * grid.channels, grid.row)


def _reduction(rows: int, columns: int, channels: int, source: Source) -> tuple[tuple[tuple[int, int], int], Source]:
    """Return the taps and their runs: few channels of neighbouring taps are one run, more are a run for each tap."""
    if columns * channels < _LEAST_RUN or columns == 1:
        return ((rows, 1), columns * channels), source
    return ((rows, columns), channels), dataclasses.replace(source, across=channels)


def _same(n: Index, i: Index, j: Index, k: Index) -> tuple[Index, ...]:
    return n, i, j, k


def data_gradient(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit the gradient with respect to a convolution's input: one contraction for each phase of the stride."""
    shape = tir.extents(problem.right)
    vertical = _phases(problem.shape[1], shape[0], problem.stride[0], problem.padding[0])
    horizontal = _phases(problem.shape[2], shape[1], problem.stride[1], problem.padding[1])
    grid = Grid.of(problem.left)
    (top, bottom), (left, right) = _margin(vertical, grid.rows), _margin(horizontal, grid.columns)
    sides = top, left, bottom, right
    grid, padding = _padded(grid, sides)
    phases = [
        _phase(problem, grid, sides, pair, Turned(problem.right, shape, pair[0].taps, pair[1].taps))
        for pair in itertools.product(vertical, horizontal)
        if min(phase.count for phase in pair)
    ]
    return contract_strips(phases, problem, info, threads, padding)


@dataclass(frozen=True)
class _Phase:
    """Rows (or columns) of the input with the same remainder by the stride."""

    first: int
    """First such row of the input."""
    step: int
    count: int
    origin: int
    """Row of dy that the first tap of the first such row meets; may lie outside."""
    taps: Taps


def _phases(extent: int, window: int, stride: int, before: int) -> list[_Phase]:
    phases = []
    for remainder in range(stride):
        taps = len(range(remainder, window, stride))
        start = max(0, -(-(before - remainder) // stride))
        first = start * stride + remainder - before
        count = max(0, -(-(extent - first) // stride))
        phases.append(_Phase(first, stride, count, start - (taps - 1), Taps(remainder, stride, taps)))
    return phases


def _margin(phases: list[_Phase], extent: int) -> tuple[int, int]:
    used = [phase for phase in phases if phase.taps.count and phase.count]
    before = max([0, *(-phase.origin for phase in used)])
    after = max([0, *(phase.origin + phase.count + phase.taps.count - 1 - extent for phase in used)])
    return before, after


def _phase(
    problem: Problem, grid: Grid, padding: tuple[int, int, int, int], phases: tuple[_Phase, _Phase], operand: Turned
) -> Pixels:
    above, across = phases
    batch, _, _, channels = problem.shape
    base = (above.origin + padding[0]) * grid.row + (across.origin + padding[1]) * grid.channels
    source = Source(grid.buffer, base, grid.image, grid.row, grid.channels, grid.row)
    extents = batch, above.count, across.count, channels
    (taps, run), source = _reduction(above.taps.count, across.taps.count, grid.channels, source)

    def coordinates(n: Index, i: Index, j: Index, c: Index) -> tuple[Index, ...]:
        return n, i * above.step + above.first, j * across.step + across.first, c

    if above.taps.count * across.taps.count == 0:
        taps, run = (0, 0), 0
    whole = not any(padding) and (above.count, across.count) == (grid.rows, grid.columns)
    if problem.stride == (1, 1) and taps == (1, 1) and whole and problem.flattens:
        extents = 1, 1, batch * above.count * across.count, channels
        return Pixels(*extents, taps, run, Source(grid.buffer, 0, 0, 0, grid.channels, 0), operand, _same)
    return Pixels(*extents, taps, run, source, operand, coordinates)


def weight_gradient(problem: Problem, info: TargetInfo, threads: int, *, lean: bool = False) -> Code:
    """Emit the gradient with respect to a convolution's weights: a reduction over pixels."""
    taps, columns, channels, features = problem.shape
    if gathering_pays(problem, info, threads) or (lean and any(problem.padding)):
        return contract_windows(problem, info, threads, lean=lean)
    grid, right, padded, spaces = Grid.of(problem.left), Grid.of(problem.right), [], []
    if any(problem.padding):
        grid, filled = Padding(grid, problem.padding).whole("padded", info.lanes)
        padded, spaces = [filled], [grid.buffer]
    batch, rows, width = right.batch, right.rows, right.columns
    source = _strided(grid, problem.stride)
    other = Source(right.buffer, 0, right.image, right.row, right.channels, 0)
    if taps == 1 and columns == 1 and problem.stride == (1, 1):
        source = Source(grid.buffer, 0, 0, grid.channels, 0, 0)
        other = Source(right.buffer, 0, 0, right.channels, 0, 0)
        batch, rows, width = 1, batch * rows * width, 1
    merged = columns == 1 or problem.flattens

    def coordinates(tap: Index, q: Index, k: Index) -> tuple[Index, ...]:
        return (tap, 0, q, k) if merged else (tap, q // channels, q % channels, k)

    weights = Weights(batch, rows, width, features, taps, columns * channels, source, other, coordinates)
    code = contract_weights(weights, problem, info, threads, lean=lean)
    return Code(tir.sequence([*padded, code.body]), (*spaces, *code.workspaces))


def product(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit A B."""
    rows, steps = tir.extents(problem.left)
    if rows <= FEW_ROWS:
        return few_rows_product(problem, info, threads)
    return _rows_times(problem.left, steps, RowMajor(problem.right, steps, problem.shape[1]), problem, info, threads)


def product_nt(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit A Bᵀ: B is turned into panels, unless A has few rows."""
    rows, steps = tir.extents(problem.left)
    if rows <= FEW_ROWS:
        return few_rows_product_nt(problem, info)
    if long_product_pays(problem, info, threads):
        return long_product_nt(problem, info, threads)
    tap = Taps(0, 1, 1)
    operand = Turned(problem.right, (1, 1, problem.shape[1], steps), tap, tap)
    return _rows_times(problem.left, steps, operand, problem, info, threads)


def product_tn(problem: Problem, info: TargetInfo, threads: int, *, lean: bool = False) -> Code:
    """Emit Aᵀ B: a reduction over the rows of both, or a product of the turned A."""
    rows, run = tir.extents(problem.left)
    features = problem.shape[1]
    if rows >= _LEAST_TURNED and features >= _LEAST_FEATURES[info.registers] and not lean:
        return _turned_product(problem, info, threads)
    source, other = Source(problem.left, 0, 0, run, 0, 0), Source(problem.right, 0, 0, features, 0, 0)
    weights = Weights(1, rows, 1, features, 1, run, source, other, lambda _, q, k: (q, k))
    return contract_weights(weights, problem, info, threads, lean=lean)


def _turned_product(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit Aᵀ B as a product of the turned A: in place, a column of A or a tile of B meets few sets of the caches."""
    steps, rows = tir.extents(problem.left)
    features = problem.shape[1]
    # Turned rows whose length is a power of two meet few sets, too.
    pitch = steps + info.lanes
    turned = tir.workspace(rows * pitch, "turned")
    parts = cut(rows, _TURNED_COLUMNS)

    def part(index: Index) -> tirx.Stmt:
        def columns(first: Index, count: int) -> tirx.Stmt:
            return turn_rows((problem.left, first, rows), (turned, first * pitch, pitch), steps, count, info.lanes)

        return tir.pick(parts, index, columns)

    code = _rows_times(turned, pitch, RowMajor(problem.right, steps, features), problem, info, threads)
    turning = tir.parallel(parts.count, part, "part")
    return Code(tir.sequence([turning, code.body]), (turned, *code.workspaces))


def _rows_times(
    left: tirx.Buffer, pitch: int, right: Operand, problem: Problem, info: TargetInfo, threads: int
) -> Code:
    """Emit the product of rows of `left`, `pitch` elements apart, and the (steps, features) operand."""
    rows, features = problem.shape
    source = Source(left, 0, 0, 0, pitch, 0)
    pixels = Pixels(1, 1, rows, features, (1, 1), right.steps, source, right, lambda _n, _i, j, k: (j, k))
    return contract_strips([pixels], problem, info, threads)


_FORMS: dict[str, tuple[Generate, Generate | None]] = {
    "conv2d": (forward, forward),
    "conv2d_data_gradient": (data_gradient, data_gradient),
    "conv2d_weight_gradient": (weight_gradient, functools.partial(weight_gradient, lean=True)),
    "matmul": (product, None),
    "matmul_nt": (product_nt, None),
    "matmul_tn": (product_tn, functools.partial(product_tn, lean=True)),
    "batched_matmul": (batched_product, None),
}
"""The plain form of each kind, and the lean one, if there is any."""
_WINOGRAD: dict[str, tuple[Callable[[Problem], bool], Generate]] = {
    "conv2d": (winograd_pays, winograd_forward),
    "conv2d_data_gradient": (winograd_pays, winograd_data_gradient),
    "conv2d_weight_gradient": (winograd_weights_pay, winograd_weight_gradient),
}


# Grouped convolution: a loop over the groups around the contraction, whose operands are copied out of the whole.
#
# Groups narrower than a vector are taken several at once, with zeros where they do not meet: as many multiplications a
# vector as the groups one by one would take, in fewer and longer loops.


def each_group(generate: Generate, problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit `generate`'s code for one block of groups, run for each block in turn."""
    widest = max(int(buffer.shape[-1]) for buffer in (problem.left, problem.right, problem.product)) // problem.groups
    # Take as many groups at once as divide their number and are together no wider than a vector.
    counts = (count for count in range(1, problem.groups + 1) if problem.groups % count == 0)
    merged = max((count for count in counts if count * widest <= info.lanes), default=1)
    groups = _Groups(problem, merged, info.lanes, threads)
    one, code = groups.one, generate(groups.one, info, threads)

    def block(number: Index) -> tirx.Stmt:
        return tir.sequence([*groups.copy_in(number), code.body, groups.copy_out(number)])

    spaces = (one.left, one.right, one.product, *code.workspaces)
    return Code(tir.loop(problem.groups // merged, block, "block"), spaces)


@dataclass(frozen=True)
class _Groups:
    """Copies between the whole operands and those of one block of `merged` groups.

    Every operand and the product hold their groups one after the other along the last axis. Weights have the
    channels of one group only before it, so those of a block are the blocks of a diagonal.
    """

    problem: Problem
    merged: int
    lanes: int
    threads: int

    @property
    def weights_last(self) -> bool:
        """Whether the weights' gradient is the product, rather than the weights the right operand."""
        return self.problem.kind == "conv2d_weight_gradient"

    @functools.cached_property
    def one(self) -> Problem:
        """The contraction of one block, on buffers of its own."""
        left = self._buffer(self.problem.left, "left")
        right = self._buffer(self.problem.right, "right", diagonal=not self.weights_last)
        product = self._buffer(self.problem.product, "product", diagonal=self.weights_last)
        changed = {"left": left, "right": right, "product": product, "shape": tir.extents(product)}
        return dataclasses.replace(self.problem, **changed, groups=1, outputs=(Output.plain(product),))

    def copy_in(self, block: Index) -> list[tirx.Stmt]:
        """Emit copies of both operands of one block."""
        right = self._columns if self.weights_last else self._diagonal
        return [
            self._columns(self.problem.left, self.one.left, block),
            right(self.problem.right, self.one.right, block),
        ]

    def copy_out(self, block: Index) -> tirx.Stmt:
        """Emit the product of one block, through the epilogue, to the outputs."""
        *outer, features = tir.extents(self.one.product)
        if not self.weights_last:

            def row(position: Index) -> tirx.Stmt:
                return self._finish(tir.unravel(position, outer), block * features, position * features, features)

            return self._rows(math.prod(outer), features, row)
        rows, columns, channels = outer
        own, part = channels // self.merged, features // self.merged

        def diagonal(position: Index) -> tirx.Stmt:
            r, s, c = tir.unravel(position, (rows, columns, own))

            def finish(group: int) -> tirx.Stmt:
                column = group * part
                place = ((r * columns + s) * channels + group * own + c) * features + column
                return self._finish((r, s, c), block * features + column, place, part)

            return tir.sequence([finish(group) for group in range(self.merged)])

        return self._rows(rows * columns * own, features, diagonal)

    def _finish(self, outer: Sequence[Index], column: Index, place: Index, width: int) -> tirx.Stmt:
        def element(at: Index) -> tirx.Stmt:
            return self.problem.finish((*outer, column + at), lambda: tir.load(self.one.product, place + at))

        return tir.lanewise(width, self.lanes, element)

    def _columns(self, whole: tirx.Buffer, part: tirx.Buffer, block: Index) -> tirx.Stmt:
        (*outer, width), total = tir.extents(part), int(whole.shape[-1])

        def row(position: Index) -> tirx.Stmt:
            return copy(whole, position * total + block * width, part, position * width, width, self.lanes)

        return self._rows(math.prod(outer), width, row)

    def _diagonal(self, whole: tirx.Buffer, part: tirx.Buffer, block: Index) -> tirx.Stmt:
        rows, columns, channels, width = tir.extents(part)
        own, features, total = channels // self.merged, width // self.merged, int(whole.shape[-1])

        def row(position: Index) -> tirx.Stmt:
            tap, c = position // own, position % own
            begin = (tap * own + c) * total + block * width
            statements = []
            for group in range(self.merged):
                place = (tap * channels + group * own + c) * width
                before, after = group * features, (self.merged - 1 - group) * features
                statements += [
                    fill(part, place, before, self.lanes),
                    copy(whole, begin + before, part, place + before, features, self.lanes),
                    fill(part, place + before + features, after, self.lanes),
                ]
            return tir.sequence(statements)

        return self._rows(rows * columns * own, width * self.merged, row)

    def _rows(self, count: int, width: int, row: Callable[[Index], tirx.Stmt]) -> tirx.Stmt:
        is_parallel = self.threads > 1 and 8 * count * width >= PARALLEL_BYTES
        return tir.parallel(count, row, "row", when=is_parallel)

    def _buffer(self, whole: tirx.Buffer, name: str, *, diagonal: bool = False) -> tirx.Buffer:
        *outer, width = tir.extents(whole)
        shape = [*outer, width // self.problem.groups * self.merged]
        if diagonal:
            shape[-2] *= self.merged
        return tirx.decl_buffer([tirx.IntImm("int64", extent) for extent in shape], "float32", f"group_{name}")
