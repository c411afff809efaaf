"""How a GPU computes a contraction: its implementations, and which tile takes least time by the GPU's facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.cuda.device import WARP, CudaDevice
from autotm.kernels.cuda.product import Conditions, Operand, Product, product_of, vector_of
from autotm.kernels.cuda.stage import Stage, device_memory, each, local
from autotm.kernels.cuda.tiles import COLUMNS, PACKED, ROWS, Tile, part_steps, tiled
from autotm.kernels.schedules.problem import Problem
from autotm.kernels.tir import Index
from autotm.model.graph import DEFAULT_IMPLEMENTATION
from autotm.model.machine import Products

# Which tile a product gets, and whether its sums are split: what takes least time by facts of the GPU.

TILES = (
    Tile(128, 128, 8, 8, 8),
    Tile(128, 64, 16, 8, 4),
    Tile(64, 128, 16, 4, 8),
    Tile(64, 64, 16, 4, 4),
    Tile(64, 32, 16, 4, 2),
    Tile(32, 64, 16, 2, 4),
    Tile(32, 32, 16, 2, 2),
)
_WARP_TILES = (
    (128, 128, 64, 32), (128, 64, 32, 32), (64, 128, 32, 32), (64, 64, 32, 32), (64, 32, 32, 16), (32, 64, 16, 32),
    (32, 32, 16, 16),
)  # fmt: skip
"""Results of a block, then of a warp."""
PARTS = (1, 2, 4, 8, 16, 32, 64)
_PANELS_OF_A_PART = 8
"""Least panels of a part where sums are split; half as many if a word of a panel has two terms."""
_LAUNCH_NS = 3000.0
_LATENCY = 1.3
"""How much longer a block takes that is alone on a multiprocessor, where nothing hides its waits. An estimate."""
_ELSEWHERE = 0.7
"""Multiply-adds that the rest of a thread's step costs, for each word it reads of shared memory. An estimate."""
_CACHED = 2.5
"""How much faster blocks read operands from the second-level cache than from device memory. An estimate."""


@dataclass(frozen=True)
class Tiling:
    """A tile, and pieces that sums are split into."""

    tile: Tile
    parts: int


def warp_tiles(products: Products) -> list[Tile]:
    """Return the tiles of tensor cores."""
    steps = 16 * PACKED[products]
    return [Tile(rows, columns, steps, down, across, products) for rows, columns, down, across in _WARP_TILES]


def fastest(
    product: Product, device: CudaDevice, parts: Sequence[int] = PARTS, products: Products = "float32"
) -> Tiling:
    """Return the tiling that takes least time by `estimate_ns`, with factors as they are or rounded."""
    tiles = TILES if products == "float32" else warp_tiles(products)
    tilings = [Tiling(tile, count) for tile in tiles for count in parts if _may_split(product, tile, count)]
    return min(tilings, key=lambda tiling: estimate_ns(product, tiling, device))


def _may_split(product: Product, tile: Tile, parts: int) -> bool:
    length = part_steps(product, tile, parts)
    return parts == 1 or (length >= _PANELS_OF_A_PART * tile.words and length * (parts - 1) < product.steps)


def estimate_ns(product: Product, tiling: Tiling, device: CudaDevice) -> float:
    """Estimate the time of a product: the multiply-adds of the busiest multiprocessor, then what adds up the parts."""
    tile, parts = tiling.tile, tiling.parts
    blocks = math.ceil(product.rows / tile.rows) * math.ceil(product.columns / tile.columns) * product.groups * parts
    turns = math.ceil(blocks / device.multiprocessors)
    one_ns = _float_ns(tile, device) if tile.products == "float32" else _tensor_ns(tile, device)
    work = turns * tile.rows * tile.columns * part_steps(product, tile, parts) * one_ns
    if turns == 1:
        work *= _LATENCY
    moved = 2 * 4 * parts * product.groups * product.rows * product.columns if parts > 1 else 0
    return work + moved / device.gbyte_per_s + (_LAUNCH_NS if parts > 1 else 0.0)


def _float_ns(tile: Tile, device: CudaDevice) -> float:
    """Estimate the time of a multiply-add of a multiprocessor.

    A thread of r by c results reads r + c words for r c multiply-adds, which is what its rate depends on.
    """
    reuse = tile.own_rows * tile.own_columns / (tile.own_rows + tile.own_columns)
    rate = device.gflop_per_s / 2 / device.multiprocessors * reuse / (reuse + _ELSEWHERE)
    return 1 / rate


def _tensor_ns(tile: Tile, device: CudaDevice) -> float:
    """Estimate as `_float_ns`: the instruction itself, the words that a warp reads for it, and what feeds the panels.

    Reading does not overlap with multiplying here, and panels come no faster than the second-level cache gives them:
    real kernels may do better at the first and worse at the second.
    """
    instruction = device.tensor_gflop_per_s * tile.packed / 2 / device.multiprocessors
    words = WARP * (4 * tile.own_rows / ROWS + 2 * tile.own_columns / COLUMNS) / 8
    read = words / (tile.own_rows * tile.own_columns * tile.packed)
    shared_words = device.shared_gbyte_per_s / 4 / device.multiprocessors
    fed = 4 * (tile.rows + tile.columns) / (tile.rows * tile.columns)
    cached = device.gbyte_per_s * _CACHED / device.multiprocessors
    return max(1 / instruction + read / shared_words, fed / cached)


# How a contraction is computed: by tiles, exactly or on tensor cores, and its other implementations.

LEAN, DIRECT, UNFOLDED = "lean", "direct", "unfolded"
"""The product without workspace; a thread for each result; the left operand laid out as a matrix before (im2col)."""
EXACT = "exact"
"""The implementation that would be the default without tensor cores."""
MOST_UNFOLDED_BYTES = 4 << 30
"""Size beyond which an unfolded operand is not offered."""
Stages = tuple[list[Stage], list[tirx.Buffer]]


def implementations(problem: Problem, device: CudaDevice, products: Products = "float32") -> tuple[str, ...]:
    """Return the names of implementations of a problem whose code differs from the default's.

    Where `products` may be rounded, they are by the default or by an implementation of that name, as which one is
    faster is estimated; `exact` is there where the default is not. Only `default`, that name, and `lean` of a rounded
    default round.
    """
    product = product_of(problem)
    tiling = _preferred(product, device, products)
    names = [LEAN] if tiling.parts > 1 else []
    if products != "float32":
        names.append(products if tiling.tile.products == "float32" else EXACT)
    if problem.kind.startswith("conv2d"):
        names.append(DIRECT)
        if 4 * product.groups * product.rows * product.steps <= MOST_UNFOLDED_BYTES:
            names.append(UNFOLDED)
    return tuple(names)


def _preferred(product: Product, device: CudaDevice, products: Products) -> Tiling:
    """Return the fastest tiling by estimate, on tensor cores if it may be and they are faster."""
    tilings = [fastest(product, device, PARTS, kind) for kind in dict.fromkeys((products, "float32"))]
    return min(tilings, key=lambda tiling: estimate_ns(product, tiling, device))


def contraction_stages(
    problem: Problem, device: CudaDevice, implementation: str, products: Products = "float32"
) -> tuple[Stages, Products]:
    """Return the stages of a contraction and its workspaces, and what its factors are rounded to.

    Raises:
        ValueError: there is no such implementation.
    """
    if implementation not in (DEFAULT_IMPLEMENTATION, *implementations(problem, device, products)):
        raise ValueError(f"'{problem.kind}' has no implementation '{implementation}'")
    product = product_of(problem)
    if implementation in _OTHERS:
        return _OTHERS[implementation](problem, product, device), "float32"
    tiling = _preferred(product, device, products)
    if implementation == LEAN:
        tiling = fastest(product, device, (1,), tiling.tile.products)
    elif implementation in {EXACT, products}:
        tiling = fastest(product, device, products="float32" if implementation == EXACT else products)
    return by_tiles(problem, product, tiling), tiling.tile.products


def by_tiles(problem: Problem, product: Product, tiling: Tiling) -> Stages:
    """Return a product by tiles; split sums are added up in the order of their parts by a second stage."""
    size = product.groups * product.rows * product.columns
    if tiling.parts == 1:
        return [tiled(product, tiling.tile, 1, lambda _, *at: _finish(problem, product, *at))], []
    partial = device_memory((tiling.parts, size), "float32", "partial")

    def keep(part: Index, group: Index, m: Index, n: Index, value: tirx.Expr) -> tirx.Stmt:
        return tir.store(partial, part * size + (group * product.rows + m) * product.columns + n, value)

    def add_up(index: tirx.Expr) -> tirx.Stmt:
        def add(total: tirx.Buffer, part: Index) -> tirx.Stmt:
            return tir.store(total, 0, tir.load(total, 0) + tir.load(partial, part * size + index))

        return _summed(problem, product, index, "part", tiling.parts, add)

    return [tiled(product, tiling.tile, tiling.parts, keep), each(size, 256, add_up)], [partial]


def _direct(problem: Problem, product: Product, _: CudaDevice) -> Stages:
    def one(index: tirx.Expr) -> tirx.Stmt:
        group, m, n = tir.unravel(index, [product.groups, product.rows, product.columns])

        def add(total: tirx.Buffer, k: Index) -> tirx.Stmt:
            (left, inside), (right, _) = product.left.at(group, m, k), product.right.at(group, n, k)
            factors = tir.load(product.left.buffer, left) * tir.load(product.right.buffer, right)
            step = tir.store(total, 0, tir.load(total, 0) + factors)
            return tir.choose(tirx.all(*inside), step, None) if inside else step

        return _summed(problem, product, index, "k", product.steps, add)

    return [each(product.groups * product.rows * product.columns, 256, one)], []


def _unfolded(problem: Problem, product: Product, device: CudaDevice) -> Stages:
    """Return the left operand as a matrix in device memory: its zeros and repeated pixels too."""
    rows, steps, left = product.rows, product.steps, product.left
    matrix = device_memory((product.groups, rows * steps), "float32", "unfolded")

    def place(group: Index, m: Index, k: Index) -> tuple[Index, Conditions]:
        return group * rows * steps + (m * steps + k if left.along_k else k * rows + m), []

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


def _summed(
    problem: Problem,
    product: Product,
    index: Index,
    name: str,
    count: int,
    add: Callable[[tirx.Buffer, Index], tirx.Stmt],
) -> tirx.Stmt:
    """Finish the result at a flat position: a sum in registers, to which `add` adds `count` terms of that name."""
    total = local(1, "float32", "total")
    group, m, n = tir.unravel(index, [product.groups, product.rows, product.columns])
    summed = tir.loop(count, lambda term: add(total, term), name)
    clear = tir.store(total, 0, tir.zeros(1))
    stored = _finish(problem, product, group, m, n, tir.load(total, 0))
    return tir.sequence([tirx.AllocBuffer(total), clear, summed, stored])


def _finish(problem: Problem, product: Product, group: Index, m: Index, n: Index, value: tirx.Expr) -> tirx.Stmt:
    """Emit the epilogue of one element."""
    position = None
    if problem.kind != "batched_matmul":
        position = (m * product.groups + group) * product.columns + n
    return problem.finish(product.coordinates(group, m, n), lambda: value, position)


_OTHERS: dict[str, Callable[[Problem, Product, CudaDevice], Stages]] = {DIRECT: _direct, UNFOLDED: _unfolded}
