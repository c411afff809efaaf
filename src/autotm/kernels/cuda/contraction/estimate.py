"""Which tile a product gets, and whether its sums are split: what takes least time by facts of the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotm.kernels.cuda.contraction.instructions import COLUMNS, PACKED, ROWS
from autotm.kernels.cuda.contraction.product import Product
from autotm.kernels.cuda.contraction.staging import part_steps
from autotm.kernels.cuda.contraction.tile import Tile
from autotm.kernels.cuda.contraction.warp_tile import WarpTile
from autotm.kernels.cuda.device import WARP, CudaDevice
from autotm.model.machine import Products

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
    WarpTile(128, 128, 64, 32, 16, "tf32"),
    WarpTile(128, 64, 32, 32, 16, "tf32"),
    WarpTile(64, 128, 32, 32, 16, "tf32"),
    WarpTile(64, 64, 32, 32, 16, "tf32"),
    WarpTile(64, 32, 32, 16, 16, "tf32"),
    WarpTile(32, 64, 16, 32, 16, "tf32"),
    WarpTile(32, 32, 16, 16, 16, "tf32"),
)
PARTS = (1, 2, 4, 8, 16, 32, 64)
_PANELS_OF_A_PART = 8
"""At least, where sums are split; of panels with two terms in a word half as many."""
_LAUNCH_NS = 3000.0
_LATENCY = 1.3
"""How much longer a block takes that has a multiprocessor to itself: nothing hides its waits. An estimate."""
_ELSEWHERE = 0.7
"""Multiply-adds that the rest of a thread's step costs, for each word it reads of shared memory. An estimate."""
_CACHED = 2.5
"""How much faster blocks read operands from the second-level cache than from device memory. An estimate."""


@dataclass(frozen=True)
class Way:
    """A tile, and pieces that sums are split into."""

    tile: Tile | WarpTile
    parts: int


def warp_tiles(products: Products) -> Sequence[WarpTile]:
    """Those of tensor cores."""
    return [replace(tile, products=products) for tile in _WARP_TILES]


def fastest(product: Product, device: CudaDevice, parts: Sequence[int] = PARTS, products: Products = "float32") -> Way:
    """The way that takes least time by `estimate_ns`, with factors as they are or rounded."""
    tiles = TILES if products == "float32" else warp_tiles(products)
    ways = [Way(tile, count) for tile in tiles for count in parts if _may_split(product, tile, count)]
    return min(ways, key=lambda way: estimate_ns(product, way, device))


def _may_split(product: Product, tile: Tile | WarpTile, parts: int) -> bool:
    length = part_steps(product, tile, parts)
    least = _PANELS_OF_A_PART * (tile.steps if isinstance(tile, Tile) else tile.words)
    return parts == 1 or (length >= least and length * (parts - 1) < product.steps)


def estimate_ns(product: Product, way: Way, device: CudaDevice) -> float:
    """Time of a product: the multiply-adds of the busiest multiprocessor, then what adds up the parts."""
    tile, parts = way.tile, way.parts
    blocks = math.ceil(product.rows / tile.rows) * math.ceil(product.columns / tile.columns) * product.groups * parts
    turns = math.ceil(blocks / device.multiprocessors)
    one_ns = _float_ns(tile, device) if isinstance(tile, Tile) else _tensor_ns(tile, device)
    work = turns * tile.rows * tile.columns * part_steps(product, tile, parts) * one_ns
    if turns == 1:
        work *= _LATENCY
    moved = 2 * 4 * parts * product.groups * product.rows * product.columns if parts > 1 else 0
    return work + moved / device.gbyte_per_s + (_LAUNCH_NS if parts > 1 else 0.0)


def _float_ns(tile: Tile, device: CudaDevice) -> float:
    """Time of a multiply-add of a multiprocessor.

    A thread of r by c results reads r + c words for r c multiply-adds, which is what its rate depends on.
    """
    reuse = tile.own_rows * tile.own_columns / (tile.own_rows + tile.own_columns)
    rate = device.gflop_per_s / 2 / device.multiprocessors * reuse / (reuse + _ELSEWHERE)
    return 1 / rate


def _tensor_ns(tile: WarpTile, device: CudaDevice) -> float:
    """As `_float_ns`: the instruction itself, the words that a warp reads for it, and what feeds the panels.

    Reading does not overlap with multiplying here, and panels come no faster than the second-level cache gives them:
    real kernels may do better at the first and worse at the second.
    """
    packed = PACKED[tile.products]
    instruction = device.tensor_gflop_per_s * packed / 2 / device.multiprocessors
    words = WARP * (4 * tile.own_rows / ROWS + 2 * tile.own_columns / COLUMNS) / 8
    read = words / (tile.own_rows * tile.own_columns * packed)
    shared_words = device.shared_gbyte_per_s / 4 / device.multiprocessors
    fed = 4 * (tile.rows + tile.columns) / (tile.rows * tile.columns)
    cached = device.gbyte_per_s * _CACHED / device.multiprocessors
    return max(1 / instruction + read / shared_words, fed / cached)
