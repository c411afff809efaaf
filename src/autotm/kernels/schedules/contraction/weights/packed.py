"""The weight gradient of many channels: the pixels that one tap meets are first gathered into a dense panel.

A panel holds a vector of channels of each pixel of a block, and is small enough for the first-level cache, where
channels in place would lie a whole pixel apart and evict each other. It serves all tiles of features, so gathering
it costs little; zeros around the image are gathered too, so that no padded copy of the input is needed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Code, Index, TargetInfo, cut, tir
from autotm.kernels.schedules.contraction.parts import (
    Block,
    Grid,
    Problem,
    RegisterTile,
    each_block,
    each_portion,
    partial_sums,
    pick_features,
    pixel_blocks,
    portion_of,
    sum_block,
)

_LEAST_TILES = 3
"""Feature tiles that must share a panel before gathering it pays."""


@dataclass(frozen=True)
class Windows:
    """A weight gradient: x and dy in place, the window that slides over x."""

    x: Grid
    dy: Grid
    window: tuple[int, int]
    stride: tuple[int, int]
    origin: tuple[int, int]
    """Padding above and to the left."""


def gathering_pays(windows: Windows, info: TargetInfo, threads: int) -> bool:
    """Whether enough features share a panel and enough panels keep every thread busy."""
    tiles = -(-windows.dy.channels // (_vectors(info) * info.lanes))
    panels = windows.window[0] * windows.window[1] * -(-windows.x.channels // info.lanes)
    return tiles >= _LEAST_TILES and panels >= threads


def _vectors(info: TargetInfo) -> int:
    return (info.registers - 1) // (info.lanes // 2 + 1)


def contract_windows(windows: Windows, problem: Problem, info: TargetInfo, threads: int, *, lean: bool = False) -> Code:
    """Threads share the panels.

    Lean code holds the sums of a portion of the result at a time: it reads the pixels once for each.
    """
    emitter = _Emitter(windows, problem, info, threads)
    return emitter.by_portions() if lean and emitter.waits else emitter.code()


class _Emitter:
    def __init__(self, windows: Windows, problem: Problem, info: TargetInfo, threads: int) -> None:
        self.windows, self.problem, self.info = windows, problem, info
        x, dy = windows.x, windows.dy
        self.lines = dy.batch * dy.rows
        line_bytes = 4 * dy.columns * (x.channels * windows.stride[1] + dy.channels)
        self.blocks = pixel_blocks(self.lines, dy.columns, line_bytes, info)
        self.panels = cut(x.channels, info.lanes)
        self.features = cut(-(-dy.channels // info.lanes), _vectors(info))
        self.taps = windows.window[0] * windows.window[1]
        self.tasks = min(threads, self.taps * self.panels.count)
        self.panel_size = -(-self.lines // self.blocks) * dy.columns * self.panels.size
        self.panel = tir.workspace(self.tasks * self.panel_size, "panels")

    def code(self) -> Code:
        size = self.taps * self.windows.x.channels * self.windows.dy.channels
        partial, workspaces = partial_sums(self.problem, size, self.blocks)
        units = self.taps * self.panels.count

        def task(index: Index) -> tirx.Stmt:
            first, last = tir.share(index, self.tasks, units)
            base = index * self.panel_size

            def block(span: Block) -> tirx.Stmt:
                return tir.loop(last - first, lambda unit: self._unit(span, unit, base), "panel", start=first)

            return each_block(self.blocks, self.lines, partial, block)

        body = tir.loop(self.tasks, task, "task", tirx.ForKind.PARALLEL)
        return Code(body, (self.panel, *workspaces))

    @property
    def waits(self) -> bool:
        """Whether sums wait between blocks in memory that is not the result's."""
        return self.blocks > 1 and not self.problem.plain

    def by_portions(self) -> Code:
        units = self.taps * self.panels.count
        unit_size = self.panels.size * self.windows.dy.channels
        most = -(-units // self.tasks)
        size = min(most, portion_of(4 * unit_size, self.info))
        partial = tir.workspace(self.tasks * size * unit_size, "partial_sums")

        def task(index: Index) -> tirx.Stmt:
            def portion(first: Index, last: Index) -> tirx.Stmt:
                def block(span: Block) -> tirx.Stmt:
                    def unit(number: Index) -> tirx.Stmt:
                        base = index * (size * unit_size) + (number - first) * unit_size
                        return self._unit(
                            dataclasses.replace(span, base=base), number, index * self.panel_size, own=True
                        )

                    return tir.loop(last - first, unit, "panel", start=first)

                return each_block(self.blocks, self.lines, partial, block)

            return each_portion(tir.share(index, self.tasks, units), most, size, portion)

        return Code(tir.loop(self.tasks, task, "task", tirx.ForKind.PARALLEL), (self.panel, partial))

    def _unit(self, block: Block, unit: Index, base: Index, *, own: bool = False) -> tirx.Stmt:
        """One panel; its sums wait at their place of the result, or one behind the other in memory of their `own`."""
        tap, number = unit // self.panels.count, unit % self.panels.count

        def body(channel: Index, width: int) -> tirx.Stmt:
            panel = tap, channel, width, base
            return tir.sequence([self._gather(block, *panel), self._tiles(block, *panel, own=own)])

        return tir.pick(self.panels, number, body)

    def _gather(self, block: Block, tap: Index, channel: Index, width: int, base: Index) -> tirx.Stmt:
        windows, x, dy = self.windows, self.windows.x, self.windows.dy
        r, s = tap // windows.window[1], tap % windows.window[1]
        down, across = windows.stride

        def copy(to: Index, origin: Index | None) -> tirx.Stmt:
            moves = []
            for offset, lanes in tir.segments(width, self.info.lanes):
                value = tir.zeros(lanes) if origin is None else tir.load(x.buffer, origin + offset, lanes)
                moves.append(tir.store(self.panel, to + offset, value, lanes))
            return tir.sequence(moves)

        def line(index: Index) -> tirx.Stmt:
            image, row = index // dy.rows, (index % dy.rows) * down + r - windows.origin[0]
            to = base + (index - block.first) * (dy.columns * width)
            start = tir.number(s - windows.origin[1])
            origin = image * x.image + row * x.row + start * x.channels + channel

            def fill(first: Index, last: Index) -> tirx.Stmt:
                return tir.loop(last - first, lambda j: copy(to + j * width, None), "pixel", start=first)

            def inside(low: Index, high: Index) -> tirx.Stmt:
                def move(j: Index) -> tirx.Stmt:
                    return copy(to + j * width, origin + j * (across * x.channels))

                middle = tir.loop(high - low, move, "pixel", start=low)
                return tir.sequence([fill(0, low), middle, fill(high, dy.columns)])

            if self._never_outside():
                return inside(0, dy.columns)
            low = tirx.min(tirx.max(-(start // across), 0), dy.columns)
            high = tirx.max(tirx.min((x.columns - 1 - start) // across + 1, dy.columns), low)
            known = tirx.all(row >= 0, row < x.rows)
            return tir.choose(
                known,
                tir.bind(low, lambda a: tir.bind(high, lambda b: inside(a, b), "high"), "low"),
                fill(0, dy.columns),
            )

        return tir.loop(block.last - block.first, line, "line", start=block.first)

    def _never_outside(self) -> bool:
        windows, x, dy = self.windows, self.windows.x, self.windows.dy
        reach = [
            (count - 1) * step + window - before <= extent
            for count, step, window, before, extent in zip(
                (dy.rows, dy.columns), windows.stride, windows.window, windows.origin, (x.rows, x.columns), strict=True
            )
        ]
        return not any(windows.origin) and all(reach)

    def _tiles(self, block: Block, tap: Index, channel: Index, width: int, base: Index, *, own: bool) -> tirx.Stmt:
        halves = cut(width, max(1, self.info.lanes // 2))

        def tile(index: Index) -> tirx.Stmt:
            vector, half = index % self.features.count, index // self.features.count

            def rows(m: Index, height: int) -> tirx.Stmt:
                def features(k: Index, breadth: int) -> tirx.Stmt:
                    return tir.bind_all(
                        (tap, channel, m, k),
                        "tap channel row feature",
                        lambda *where: self._tile(block, where, (height, breadth), width, base, own=own),
                    )

                return pick_features(self.features, vector, self.windows.dy.channels, self.info.lanes, features)

            return tir.pick(halves, half, rows)

        return tir.loop(halves.count * self.features.count, tile, "tile")

    def _tile(
        self,
        block: Block,
        where: tuple[Index, Index, Index, Index],
        size: tuple[int, int],
        width: int,
        base: Index,
        *,
        own: bool,
    ) -> tirx.Stmt:
        tap, channel, row, k = where
        windows, dy = self.windows, self.windows.dy
        tile = RegisterTile(*size, self.info.lanes)
        begin = block.first * dy.row

        def pixels(left: Index, right: Index) -> tirx.Stmt:
            def pixel(p: Index) -> tirx.Stmt:
                return tile.multiply(
                    lambda m: tir.load(self.panel, left + p * width + m),
                    lambda o, n: tir.load(dy.buffer, right + p * dy.channels + o, n),
                )

            return tir.loop((block.last - block.first) * dy.columns, pixel, "pixel")

        def place(m: int, o: int) -> Index:
            return (tap * windows.x.channels + channel + row + m) * dy.channels + k + o

        def coordinates(m: int, o: Index) -> tuple[Index, ...]:
            return tap // windows.window[1], tap % windows.window[1], channel + row + m, k + o

        reduce = tir.bind(base + row, lambda a: tir.bind(begin + k, lambda b: pixels(a, b), "right"), "left")

        def waiting(m: int, o: int) -> Index:
            return (row + m) * dy.channels + k + o

        return sum_block(tile, block, self.problem, reduce, place, coordinates, waiting if own else None)
