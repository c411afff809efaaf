"""How threads share a pixels x features contraction where memory is no concern: the least estimated time."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.contraction_panels import fill_all
from autotm.kernels.contraction_pixels import Panelling, Panels, Pixels, PixelTiles
from autotm.kernels.contraction_problem import Problem
from autotm.kernels.contraction_tiles import tile_cycles
from autotm.kernels.generated import Code
from autotm.kernels.target import TargetInfo
from autotm.kernels.tir import Index

_LAUNCH_CYCLES = 15_000


def contract_pixels(parts: Sequence[Pixels], problem: Problem, info: TargetInfo, threads: int) -> Code:
    """The parts one after the other."""
    made = [_contract(pixels, problem, info, threads) for pixels in parts]
    spaces = [space for part in made for space in part.workspaces]
    return Code(tir.sequence([part.body for part in made]), tuple(spaces))


def _contract(pixels: Pixels, problem: Problem, info: TargetInfo, threads: int) -> Code:
    """A parallel loop over blocks of pixels (that stay in the second-level cache) and groups of features."""
    emitter = PixelTiles(pixels, problem, info)
    kind, blocks, groups = _division(emitter, threads)
    size = {
        Panelling.NONE: 0,
        Panelling.SHARED: pixels.steps * pixels.features,
        Panelling.OWN: emitter.panel_size * blocks * groups,
    }[kind]
    panels = Panels(kind, tir.workspace(size, "panels"))

    def task(index: Index) -> tirx.Stmt:
        group, block = index // blocks, index % blocks
        first, last = tir.share(block, blocks, emitter.places)
        tiles = tir.share(group, groups, emitter.tiles.vectors.count)

        def body(a: Index, b: Index) -> tirx.Stmt:
            return emitter.compute(panels, tiles, (a, b), index * emitter.panel_size)

        return tir.bind(first, lambda a: tir.bind(last, lambda b: body(a, b), "last"), "first")

    statements = []
    if kind is Panelling.SHARED:
        statements.append(fill_all(pixels.operand, emitter.classes, panels.buffer, 0, info.lanes))
    statements.append(tir.loop(blocks * groups, task, "task", tirx.ForKind.PARALLEL))
    return Code(tir.sequence(statements), () if kind is Panelling.NONE else (panels.buffer,))


def _division(emitter: PixelTiles, threads: int) -> tuple[Panelling, int, int]:
    """Blocks of pixels and groups of features with the least estimated time of the busiest thread."""
    pixels, tiles, info = emitter.pixels, emitter.tiles, emitter.info
    source_bytes = 4 * pixels.count * min(pixels.run, max(pixels.source.column, 1))
    features = tiles.vectors.count
    smallest = max(1, min(emitter.places, -(-2 * source_bytes // info.l2_bytes)))
    tile = tile_cycles(tiles.rows.size * tiles.columns.size, tiles.vectors.size, pixels.steps)
    panel = pixels.steps * tiles.vectors.size * pixels.operand.cycles
    candidates = []
    for groups in range(1, min(features, threads) + 1):
        for blocks in {smallest, *(threads * m for m in range(1, smallest // threads + 2)), *range(1, threads)}:
            if not smallest <= blocks <= emitter.places:
                continue
            rounds = -(-blocks * groups // threads)
            share = -(-features // groups)
            work = rounds * share * -(-emitter.places // blocks) * tile
            traffic = (groups * source_bytes + 4 * blocks * pixels.steps * pixels.features) / (8 * threads)
            own = rounds * share * panel
            shared = 1.5 * features * panel / threads + _LAUNCH_CYCLES
            if emitter.reads_in_place:
                candidates.append((work + traffic, Panelling.NONE, blocks, groups))
            else:
                candidates.append((work + traffic + own, Panelling.OWN, blocks, groups))
                candidates.append((work + traffic + shared, Panelling.SHARED, blocks, groups))
    _, panelling, blocks, groups = min(candidates, key=lambda c: (c[0], c[2], c[3]))
    return panelling, blocks, groups
