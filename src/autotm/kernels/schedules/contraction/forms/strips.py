"""How threads share a pixels x features contraction, and make its operands ready piece by piece.

Each thread takes one block of pixel rows after the other. Of a padded source it makes only the lines that the block
meets, a strip that stays in the second-level cache; of the (steps, features) operand only one panel at a time. Copies
of whole operands would go through memory, and were not faster in any network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Code, Cut, Index, TargetInfo, tile_cycles, tir
from autotm.kernels.schedules.contraction.forms.pixels import Pixels, PixelTiles
from autotm.kernels.schedules.contraction.parts import Padding, Problem

_MANY_PIXELS = 512
"""Enough pixels for each panel: making it takes little beside reading it."""
_FEW_PIXELS = 192
"""With fewer for each panel, making it takes longer than fetching pixels again that do not stay in the cache."""
_BYTES_PER_CYCLE = 8
"""What a thread fetches from behind the second-level cache."""


def contract_strips(
    parts: Sequence[Pixels], problem: Problem, info: TargetInfo, threads: int, padding: Padding | None = None
) -> Code:
    """The parts one after the other, in the same memory.

    In each, threads share blocks of pixel rows and groups of features.

    With `padding`, places of a part's source are those of the whole padded grid.
    """
    emitters = [_Emitter(pixels, padding, problem, info, threads) for pixels in parts]
    strips = tir.workspace(max(emitter.strip_size * emitter.tasks for emitter in emitters), "strips")
    panels = tir.workspace(max(emitter.panel_size * emitter.tasks for emitter in emitters), "panels")
    spaces = [strips] if padding else []
    spaces += [panels] if any(emitter.panel_size for emitter in emitters) else []
    return Code(tir.sequence([emitter.code(strips, panels) for emitter in emitters]), tuple(spaces))


@dataclass(frozen=True)
class _Strips:
    """Lines of a padded source that lie in memory at a time: those that a block of pixel rows meets."""

    padding: Padding
    pixels: Pixels
    cut: Cut
    """Of an image's rows into tiles."""

    @property
    def _grid(self) -> tuple[int, int]:
        """Lines in an image, elements in a line."""
        grid = self.padding.within(self.padding.grid.buffer)
        return grid.rows, grid.row

    def first(self, place: Index) -> Index:
        """The first line that tile row `place`, counted over all images, meets."""
        (rows, row), source = self._grid, self.pixels.source
        image, tile = place // self.cut.count, place % self.cut.count
        return image * rows + self._start(tile) * (source.row // row) + source.base // row

    def last(self, place: Index) -> Index:
        """The line behind the last one that it meets."""
        (rows, row), source = self._grid, self.pixels.source
        image, tile = place // self.cut.count, place % self.cut.count
        end = (self._start(tile + 1) - 1) * (source.row // row) + source.base // row
        return image * rows + end + self.pixels.taps[0]

    def _start(self, tile: Index) -> Index:
        size, longer = self.cut.size, self.cut.longer
        if isinstance(tile, int):
            return tile * (size - 1) + min(tile, longer)
        return tile * (size - 1) + tirx.min(tile, tir.number(longer))

    def most(self, blocks: int, places: int) -> int:
        """Elements that the lines of any block take."""
        shares = [tir.share(block, blocks, places) for block in range(blocks)]
        return max(self.last(last - 1) - self.first(first) for first, last in shares) * self._grid[1]


class _Emitter:
    def __init__(
        self, pixels: Pixels, padding: Padding | None, problem: Problem, info: TargetInfo, threads: int
    ) -> None:
        self.pixels, self.problem, self.info = pixels, problem, info
        self.whole = PixelTiles(pixels, problem, info)
        tiles = self.whole.tiles
        # Strips are whole lines; without them a block may begin anywhere.
        self.abreast = tiles.columns.count if padding else 1
        self.places = self.whole.places // self.abreast
        self.blocks, self.groups = _division(self.whole, self.abreast, threads)
        self.tasks = min(threads, self.blocks * self.groups)
        self.strips = _Strips(padding, pixels, tiles.rows) if padding else None
        self.strip_size = self.strips.most(self.blocks, self.places) if self.strips else 0
        self.panel_size = 0 if self.whole.reads_in_place else self.whole.panel_size

    def code(self, strips: tirx.Buffer, panels: tirx.Buffer) -> tirx.Stmt:
        used = panels if self.panel_size else None

        def task(index: Index) -> tirx.Stmt:
            first, last = tir.share(index, self.tasks, self.blocks * self.groups)
            return tir.loop(last - first, lambda unit: self._unit(unit, index, strips, used), "unit", start=first)

        return tir.loop(self.tasks, task, "task", tirx.ForKind.PARALLEL)

    def _unit(self, unit: Index, task: Index, strips: tirx.Buffer, panels: tirx.Buffer | None) -> tirx.Stmt:
        """One block of pixel rows, for one group of features."""
        group, block = unit // self.blocks, unit % self.blocks
        tiles = tir.share(group, self.groups, self.whole.tiles.vectors.count)

        def rows(first: Index, last: Index) -> tirx.Stmt:
            def compute(part: PixelTiles) -> tirx.Stmt:
                places = first * self.abreast, last * self.abreast
                return part.compute(panels, tiles, places, task * self.panel_size)

            if self.strips is None:
                return compute(self.whole)
            return self._in_strip(self.strips, (first, last), (strips, task * self.strip_size), compute)

        return tir.bind_all(tir.share(block, self.blocks, self.places), "first last", rows)

    def _in_strip(
        self,
        strips: _Strips,
        rows: tuple[Index, Index],
        place: tuple[tirx.Buffer, Index],
        compute: Callable[[PixelTiles], tirx.Stmt],
    ) -> tirx.Stmt:
        """Make the lines that some tile rows meet, then compute from them."""
        buffer, base = place
        target = strips.padding.within(buffer)

        def lines(top: Index, bottom: Index) -> tirx.Stmt:
            def line(index: Index) -> tirx.Stmt:
                return strips.padding.line(index, target, base + (index - top) * target.row, self.info.lanes)

            begin = self.pixels.source.base + base - top * target.row
            source = dataclasses.replace(self.pixels.source, buffer=buffer, base=begin)
            part = PixelTiles(dataclasses.replace(self.pixels, source=source), self.problem, self.info)
            return tir.sequence([tir.loop(bottom - top, line, "line", start=top), compute(part)])

        return tir.bind_all((strips.first(rows[0]), strips.last(rows[1] - 1)), "top bottom", lines)


def _division(whole: PixelTiles, abreast: int, threads: int) -> tuple[int, int]:
    """Blocks of tile rows of `abreast` places, and groups of features: least estimated time of the busiest thread."""
    pixels, tiles = whole.pixels, whole.tiles
    places, features = whole.places // abreast, tiles.vectors.count
    source_bytes = _source_bytes(pixels)
    tile = tile_cycles(tiles.rows.size * tiles.columns.size, tiles.vectors.size, pixels.steps)
    panel = 0.0 if whole.reads_in_place else pixels.steps * tiles.vectors.size * pixels.operand.cycles
    least = min(places, _least_blocks(pixels, whole.info))
    candidates = []
    for groups in range(1, min(features, threads) + 1):
        for blocks in {least, *range(least, threads), -(-least // threads) * threads}:
            if blocks > places:
                continue
            rounds, share = -(-blocks * groups // threads), -(-features // groups)
            work = rounds * share * (-(-places // blocks) * abreast * tile + panel)
            traffic = groups * source_bytes + 4 * blocks * pixels.steps * pixels.features
            candidates.append((work + traffic / (_BYTES_PER_CYCLE * threads), blocks, groups))
    _, blocks, groups = min(candidates)
    return blocks, groups


def _least_blocks(pixels: Pixels, info: TargetInfo) -> int:
    """Each fits half the second-level cache; an eighth, where that leaves enough pixels for a panel to pay."""
    fewest, most = (-(-parts * _source_bytes(pixels) // info.l2_bytes) for parts in (2, 8))
    return max(1, min(fewest, pixels.count // _FEW_PIXELS), min(most, pixels.count // _MANY_PIXELS))


def _source_bytes(pixels: Pixels) -> int:
    return 4 * pixels.count * min(pixels.run, max(pixels.source.column, 1))
