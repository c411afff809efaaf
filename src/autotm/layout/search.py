"""Local search over placing orders: move what sticks out of the pool before what is in its way."""

from __future__ import annotations

import random

import numpy as np

from autotm.layout.first_fit import Blocks, Ints, first_fit


class Budget:
    """How many block placements a search may still spend; counted, not timed, so that results repeat."""

    def __init__(self, placements: int) -> None:
        self.left = placements

    def spend(self, placements: int) -> bool:
        """Take `placements`, if they are left."""
        if self.left < placements:
            return False
        self.left -= placements
        return True


def lower(blocks: Blocks, order: list[int], offsets: Ints, target: int, budget: Budget) -> Ints:
    """Offsets no higher than those given, within `target` bytes if the search finds such.

    A step moves one block that sticks out to just before an earlier one whose span meets its own, and is kept unless
    more bytes stick out than before.
    """
    draw = random.Random(0)  # noqa: S311 - a search, not a secret
    best, best_height = offsets, _height(blocks, offsets)
    current, excess = order, _excess(blocks, offsets, target)
    while best_height > target and budget.spend(len(blocks)):
        proposed = _promote(blocks, current, offsets, target, draw)
        found = first_fit(blocks, proposed)
        found_excess = _excess(blocks, found, target)
        if found_excess <= excess:
            current, offsets, excess = proposed, found, found_excess
        if _height(blocks, found) < best_height:
            best, best_height = found, _height(blocks, found)
    return best


def _promote(blocks: Blocks, order: list[int], offsets: Ints, target: int, draw: random.Random) -> list[int]:
    outside = np.flatnonzero(offsets + blocks.sizes > target)
    block = int(outside[draw.randrange(len(outside))])
    position = order.index(block)
    start, end = blocks.starts[block], blocks.ends[block]
    rivals = [
        earlier
        for earlier in range(position)
        if blocks.starts[order[earlier]] < end and blocks.ends[order[earlier]] > start
    ]
    if not rivals:
        return order
    to = rivals[draw.randrange(len(rivals))]
    return [*order[:to], block, *order[to:position], *order[position + 1 :]]


def _height(blocks: Blocks, offsets: Ints) -> int:
    return int((offsets + blocks.sizes).max())


def _excess(blocks: Blocks, offsets: Ints, target: int) -> int:
    return int(np.maximum(0, offsets + blocks.sizes - target).sum())
