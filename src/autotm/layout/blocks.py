"""What is to be packed: byte intervals that live over half-open kernel spans."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.model.plan import Stay
from autotm.model.step import Graph

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """Block i takes `sizes[i]` bytes, a multiple of the alignment, during kernels [starts[i], ends[i])."""

    sizes: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, graph: Graph, stays: Sequence[Stay]) -> Blocks:
        """The stays as blocks of their tensors' allocated bytes."""
        sizes = [graph.by_name[stay.tensor].allocated_bytes for stay in stays]
        starts = [stay.start for stay in stays]
        ends = [stay.end for stay in stays]
        return cls(np.array(sizes, np.int64), np.array(starts, np.int64), np.array(ends, np.int64))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, members: Sequence[int] | Ints) -> Blocks:
        """Some of the blocks, in that order."""
        chosen = np.asarray(members, np.int64)
        return Blocks(self.sizes[chosen], self.starts[chosen], self.ends[chosen])

    @property
    def by_events(self) -> Blocks:
        """The same blocks in a time that counts only the moments at which one of them begins or ends."""
        moments, places = np.unique(np.concatenate([self.starts, self.ends]), return_inverse=True)
        del moments
        return Blocks(self.sizes, places[: len(self)], places[len(self) :])

    def digest(self, limit_bytes: int | None) -> bytes:
        """Of the blocks in their order, and of a limit."""
        found = hashlib.blake2b(repr(limit_bytes).encode(), digest_size=16)
        for part in (self.sizes, self.starts, self.ends):
            found.update(part.tobytes())
        return found.digest()

    @property
    def live_bytes(self) -> Ints:
        """(kernels,) Bytes live during each kernel, up to the last one that a block lives through."""
        change = np.zeros(int(self.ends.max(initial=0)) + 1, np.int64)
        np.add.at(change, self.starts, self.sizes)
        np.add.at(change, self.ends, -self.sizes)
        return change.cumsum()[:-1]

    @property
    def peak_bytes(self) -> int:
        """Most bytes live during one kernel: no packing is lower."""
        return int(self.live_bytes.max(initial=0))

    def height(self, offsets: Ints) -> int:
        """Bytes that a pool needs for these offsets."""
        return int((offsets + self.sizes).max(initial=0))

    def groups(self) -> Iterator[list[int]]:
        """Groups of blocks whose spans never meet those of another group: each can use the whole pool."""
        group: list[int] = []
        end = 0
        for block in np.argsort(self.starts, kind="stable").tolist():
            if group and self.starts[block] >= end:
                yield group
                group = []
            group.append(block)
            end = max(end, int(self.ends[block]))
        if group:
            yield group
