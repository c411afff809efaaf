"""How a contraction is computed: which tile, whether its sums are split, and the other ways that there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import tirx

from autotm.kernels.code import Index, tir
from autotm.kernels.cuda.contraction.product import Conditions, Operand, Product, product_of, vector_of
from autotm.kernels.cuda.contraction.tile import Tile, part_steps, tiled
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.stage import Stage, device_memory, each, local
from autotm.kernels.schedules import Problem
from autotm.model.step import DEFAULT_IMPLEMENTATION

LEAN, DIRECT, UNFOLDED = "lean", "direct", "unfolded"
"""The product without workspace; a thread for each result; the left operand laid out as a matrix before (im2col)."""
MOST_UNFOLDED_BYTES = 4 << 30
"""Beyond that an unfolded operand is not offered."""
TILES = (
    Tile(128, 128, 8, 8, 8),
    Tile(128, 64, 16, 8, 4),
    Tile(64, 128, 16, 4, 8),
    Tile(64, 64, 16, 4, 4),
    Tile(64, 32, 16, 4, 2),
    Tile(32, 64, 16, 2, 4),
    Tile(32, 32, 16, 2, 2),
)
_PARTS = (1, 2, 4, 8, 16, 32, 64)
_PANELS_OF_A_PART = 8
"""At least, where sums are split."""
_LAUNCH_NS = 3000.0
_LATENCY = 1.3
"""How much longer a block takes that has a multiprocessor to itself: nothing hides its waits. An estimate."""
_ELSEWHERE = 0.7
"""Multiply-adds that the rest of a thread's step costs, for each word it reads of shared memory. An estimate."""

Stages = tuple[list[Stage], list[tirx.Buffer]]


@dataclass(frozen=True)
class Way:
    """A tile, and pieces that sums are split into."""

    tile: Tile
    parts: int


def implementations(problem: Problem, device: CudaDevice) -> tuple[str, ...]:
    """Ways to compute a problem besides the default that are other code."""
    product = product_of(problem)
    names = [LEAN] if fastest(product, device, _PARTS).parts > 1 else []
    if problem.kind.startswith("conv2d"):
        names.append(DIRECT)
        if _unfolded_bytes(product) <= MOST_UNFOLDED_BYTES:
            names.append(UNFOLDED)
    return tuple(names)


def contraction_stages(problem: Problem, device: CudaDevice, implementation: str) -> Stages:
    """The stages of a contraction, and its workspaces.

    Raises:
        ValueError: there is no such implementation.
    """
    if implementation not in (DEFAULT_IMPLEMENTATION, *implementations(problem, device)):
        message = f"'{problem.kind}' has no implementation '{implementation}'"
        raise ValueError(message)
    return _WAYS[implementation](problem, product_of(problem), device)


def fastest(product: Product, device: CudaDevice, parts: tuple[int, ...]) -> Way:
    """The way that takes least time by `estimate_ns`."""
    ways = [Way(tile, count) for tile in TILES for count in parts if _may_split(product, tile, count)]
    return min(ways, key=lambda way: estimate_ns(product, way, device))


def _may_split(product: Product, tile: Tile, parts: int) -> bool:
    length = part_steps(product, tile, parts)
    return parts == 1 or (length >= _PANELS_OF_A_PART * tile.steps and length * (parts - 1) < product.steps)


def estimate_ns(product: Product, way: Way, device: CudaDevice) -> float:
    """Time of a product: the multiply-adds of the busiest multiprocessor, then what adds up the parts.

    A thread of r by c results reads r + c words for r c multiply-adds, which is what its rate depends on.
    """
    tile, parts = way.tile, way.parts
    blocks = math.ceil(product.rows / tile.rows) * math.ceil(product.columns / tile.columns) * product.groups * parts
    turns = math.ceil(blocks / device.multiprocessors)
    reuse = tile.own_rows * tile.own_columns / (tile.own_rows + tile.own_columns)
    rate = device.gflop_per_s / 2 / device.multiprocessors * reuse / (reuse + _ELSEWHERE)
    work = turns * tile.rows * tile.columns * part_steps(product, tile, parts) / rate
    if turns == 1:
        work *= _LATENCY
    moved = 2 * 4 * parts * product.groups * product.rows * product.columns if parts > 1 else 0
    return work + moved / device.gbyte_per_s + (_LAUNCH_NS if parts > 1 else 0.0)


def _default(problem: Problem, product: Product, device: CudaDevice) -> Stages:
    return by_tiles(problem, product, fastest(product, device, _PARTS))


def _lean(problem: Problem, product: Product, device: CudaDevice) -> Stages:
    return by_tiles(problem, product, fastest(product, device, (1,)))


def by_tiles(problem: Problem, product: Product, way: Way) -> Stages:
    """A product by tiles; split sums are added up in the order of their parts by a second stage."""
    size = product.groups * product.rows * product.columns
    if way.parts == 1:
        return [tiled(product, way.tile, 1, lambda _, *at: _finish(problem, product, *at))], []
    partial = device_memory((way.parts, size), "float32", "partial")

    def keep(part: Index, group: Index, m: Index, n: Index, value: tirx.Expr) -> tirx.Stmt:
        at = part * size + (group * product.rows + m) * product.columns + n
        return tir.store(partial, at, value)

    def add_up(index: tirx.Expr) -> tirx.Stmt:
        total = local(1, "float32", "total")

        def add(part: Index) -> tirx.Stmt:
            return tir.store(total, 0, tir.load(total, 0) + tir.load(partial, part * size + index))

        return tir.sequence([tirx.AllocBuffer(total), _clear(total), tir.loop(way.parts, add, "part"),
                             _at(problem, product, index, tir.load(total, 0))])  # fmt: skip

    return [tiled(product, way.tile, way.parts, keep), each(size, 256, add_up)], [partial]


def _direct(problem: Problem, product: Product, _: CudaDevice) -> Stages:
    def one(index: tirx.Expr) -> tirx.Stmt:
        total = local(1, "float32", "total")
        group, m, n = _unraveled(product, index)

        def term(k: Index) -> tirx.Stmt:
            (left, inside), (right, _) = product.left.at(group, m, k), product.right.at(group, n, k)
            factors = tir.load(product.left.buffer, left) * tir.load(product.right.buffer, right)
            add = tir.store(total, 0, tir.load(total, 0) + factors)
            return tir.choose(tirx.all(*inside), add, None) if inside else add

        return tir.sequence([tirx.AllocBuffer(total), _clear(total), tir.loop(product.steps, term, "k"),
                             _at(problem, product, index, tir.load(total, 0))])  # fmt: skip

    return [each(product.groups * product.rows * product.columns, 256, one)], []


def _unfolded_bytes(product: Product) -> int:
    return 4 * product.groups * product.rows * product.steps


def _unfolded(problem: Problem, product: Product, device: CudaDevice) -> Stages:
    """The left operand as a matrix in device memory: its zeros and repeated pixels too."""
    rows, steps, left = product.rows, product.steps, product.left
    matrix = device_memory((product.groups, rows * steps), "float32", "unfolded")

    def position(group: Index, m: Index, k: Index) -> Index:
        return group * rows * steps + (m * steps + k if left.along_k else k * rows + m)

    def place(group: Index, m: Index, k: Index) -> tuple[Index, Conditions]:
        return position(group, m, k), []

    def lay(index: tirx.Expr) -> tirx.Stmt:
        group, first, second = tir.unravel(index, [product.groups, *((rows, steps) if left.along_k else (steps, rows))])
        m, k = (first, second) if left.along_k else (second, first)
        source, inside = left.at(group, m, k)
        write = tir.store(matrix, index, tir.load(left.buffer, source))
        if not inside:
            return write
        return tir.choose(tirx.all(*inside), write, tir.store(matrix, index, tir.zeros(1)))

    operand = Operand(matrix, place, left.along_k, vector_of(steps if left.along_k else rows))
    laid = replace(product, left=operand)
    stages, workspaces = by_tiles(problem, laid, fastest(laid, device, (1,)))
    return [each(product.groups * rows * steps, 256, lay), *stages], [matrix, *workspaces]


def _clear(total: tirx.Buffer) -> tirx.Stmt:
    return tir.store(total, 0, tirx.FloatImm("float32", 0.0))


def _unraveled(product: Product, index: Index) -> list[Index]:
    return tir.unravel(index, [product.groups, product.rows, product.columns])


def _at(problem: Problem, product: Product, index: Index, value: tirx.Expr) -> tirx.Stmt:
    group, m, n = _unraveled(product, index)
    return _finish(problem, product, group, m, n, value)


def _finish(problem: Problem, product: Product, group: Index, m: Index, n: Index, value: tirx.Expr) -> tirx.Stmt:
    """The epilogue of one element."""
    position = None
    if problem.kind != "batched_matmul":
        position = (m * product.groups + group) * product.columns + n
    return problem.finish(product.coordinates(group, m, n), lambda: value, position)


_WAYS: dict[str, Callable[[Problem, Product, CudaDevice], Stages]] = {
    DEFAULT_IMPLEMENTATION: _default,
    LEAN: _lean,
    DIRECT: _direct,
    UNFOLDED: _unfolded,
}
