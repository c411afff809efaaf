"""Static cost rules: how a contraction's result is cut into register tiles. No tuning, no timing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from autotm.kernels.code.target import TargetInfo

_FMA_PER_CYCLE = 2
_LOADS_PER_CYCLE = 2
_FMA_LATENCY = 4
_TILE_OVERHEAD_CYCLES = 40
CHAIN_STEPS = 1024
"""Products added one after the other into one float32 sum before it is added to a total: keeps rounding small."""


@dataclass(frozen=True)
class Cut:
    """An extent cut into `count` nearly equal pieces: the first `longer` of `size`, the rest one shorter."""

    extent: int
    count: int

    @property
    def size(self) -> int:
        """Length of the longer pieces."""
        return -(-self.extent // self.count)

    @property
    def longer(self) -> int:
        """How many pieces have the full length."""
        return self.extent - (self.size - 1) * self.count

    def sizes(self) -> tuple[int, ...]:
        """The different lengths, longest first."""
        return (self.size,) if self.longer == self.count else (self.size, self.size - 1)


def cut(extent: int, largest: int) -> Cut:
    """The fewest nearly equal pieces no longer than `largest`."""
    return Cut(extent, -(-extent // max(1, min(largest, extent))))


@dataclass(frozen=True)
class Tiles:
    """Register tile: `rows` x `columns` scalars of one operand times vectors of the other."""

    rows: Cut
    columns: Cut
    vectors: Cut


@lru_cache(maxsize=4096)
def register_tiles(rows: int, columns: int, features: int, steps: int, info: TargetInfo) -> Tiles:
    """The cut of a (rows, columns, features) result with the least estimated cycles for `steps` products each."""
    vectors = -(-features // info.lanes)
    best, least = None, float("inf")
    for tiles in _candidates(rows, columns, vectors, info):
        cycles = sum(count * tile_cycles(size, width, steps) for size, width, count in _classes(tiles))
        if cycles < least:
            best, least = tiles, cycles
    assert best is not None
    return best


def tile_cycles(scalars: int, vectors: int, steps: int) -> float:
    """Estimated cycles of one register tile: bound by FMA units, load ports or FMA latency, plus entry and exit."""
    step = max(scalars * vectors / _FMA_PER_CYCLE, (scalars + vectors) / _LOADS_PER_CYCLE, float(_FMA_LATENCY))
    return steps * step + _TILE_OVERHEAD_CYCLES + 2 * scalars * vectors


def _candidates(rows: int, columns: int, vectors: int, info: TargetInfo) -> Iterator[Tiles]:
    for width in range(1, min(vectors, 6) + 1):
        largest = (info.registers - 1) // width - 1
        for column in {cut(columns, size).count: cut(columns, size) for size in range(1, largest + 1)}.values():
            heights = range(1, min(rows, largest // column.size) + 1) if column.count == 1 else (1,)
            for height in heights:
                yield Tiles(cut(rows, height), column, cut(vectors, width))


def _classes(tiles: Tiles) -> Iterator[tuple[int, int, int]]:
    for height, rows in _counts(tiles.rows):
        for width, columns in _counts(tiles.columns):
            for vectors, count in _counts(tiles.vectors):
                yield height * width, vectors, rows * columns * count


def _counts(pieces: Cut) -> tuple[tuple[int, int], ...]:
    rest = pieces.count - pieces.longer
    return ((pieces.size, pieces.longer), (pieces.size - 1, rest)) if rest else ((pieces.size, pieces.longer),)
