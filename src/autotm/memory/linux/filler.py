"""Memory that takes up a node, but for a given size: what a kernel then has to place pages in.

Linux has no limit of a process's memory by node. Instead the rest of the node is taken by pages that nothing uses. How
much it really gives is not computed from its watermarks and reserves, which differ between kernels, but found out: the
filler prefers the node, and is full when its pages begin to go elsewhere.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from autotm.memory.linux.calls import bind, give_back, lock, node_of_pages, set_policy
from autotm.model.files import AutotmError
from autotm.model.machine import SystemMemory

_MPOL_PREFERRED = 1
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 256 << 20
_SHARE = 16
"""A piece is this part of what is free at most: none takes much of other nodes when this one is full."""
_SPILLED = 0.5
"""The node is full when this share of a piece went elsewhere; a few pages do before, where lists of free ones end."""


class Filler:
    """Locked pages on one memory node, given back when this is closed, or with the process, however that ends.

    `size_bytes` is what it has.

    Args:
        node: its number.
        system: this machine's memories.
    """

    def __init__(self, node: int, system: SystemMemory) -> None:
        self._node = node
        self._system = system
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self.size_bytes = 0

    def fill(self) -> None:
        """Take what the node gives without taking anything from others.

        Raises:
            AutotmError: pages may not be locked or bound, a container's limit is in the way, or they do not stay.
        """
        spilled = 0.0
        while spilled < _SPILLED:
            spilled = self._grow(self._next_bytes())
        self.check()

    def take(self, size_bytes: int) -> int:
        """Take up to so many bytes more; returns how many it got."""
        before, left = self.size_bytes, size_bytes
        while left > 0:
            piece = min(left, _LEAST_BYTES)
            left -= piece
            if self._grow(piece) >= _SPILLED:
                break
        return self.size_bytes - before

    def stir(self) -> None:
        """Give back more than a processor's lists of free pages hold, and take as much.

        What a process frees goes to these lists first. There it does not count as free, so that a kernel that looks
        whether the node has room finds none, and takes pages of another node; afterwards the lists are nearly empty.
        """
        before = self.size_bytes
        self.leave(2 * self._system.listed_bytes(self._node) + _LEAST_BYTES)
        self.take(before - self.size_bytes)

    def leave(self, size_bytes: int) -> None:
        """Give back so many bytes, or all: those that were taken first, which lie closest together."""
        pages = size_bytes // mmap.PAGESIZE
        while pages > 0 and self._pieces:
            piece = self._pieces[0]
            held = np.flatnonzero(self._nodes(piece) >= 0)
            given = min(pages, len(held))
            if given == len(held):
                self._pieces.pop(0)
            else:
                give_back(piece.ctypes.data, (int(held[given - 1]) + 1) * mmap.PAGESIZE)
            pages -= given
            self.size_bytes -= given * mmap.PAGESIZE

    def check(self) -> None:
        """Make sure that every page is on the node.

        Raises:
            AutotmError: one is not.
        """
        found = [self._nodes(piece) for piece in self._pieces]
        away = sum(int(((nodes >= 0) & (nodes != self._node)).sum()) for nodes in found)
        if away:
            raise AutotmError(
                f"memory node {self._node}: {away} pages that should fill it are elsewhere, so that fast memory is not "
                "limited; look for what moves locked pages (autotm doctor), then run again"
            )

    def close(self) -> None:
        """Give everything back."""
        self._pieces.clear()
        self.size_bytes = 0

    def _next_bytes(self) -> int:
        free = sum(node.free_bytes for node in self._system.nodes_named([self._node]))
        size = min(_MOST_BYTES, max(_LEAST_BYTES, free // _SHARE)) // _LEAST_BYTES * _LEAST_BYTES
        left = self._system.limit_left_bytes
        if left is not None and left < 2 * size:
            raise AutotmError(
                f"memory node {self._node}: {free / 1e9:.3f} GB of it must be filled so that fast memory is limited, "
                f"but this container may take {left / 1e9:.3f} GB more; raise its limit of memory"
            )
        return size

    def _grow(self, size_bytes: int) -> float:
        """Take a piece, and keep what of it is on the node; returns the share that is not."""
        mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE if size_bytes > _LEAST_BYTES else mmap.MADV_NOHUGEPAGE)
        piece: npt.NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
        set_policy(piece.ctypes.data, piece.size, _MPOL_PREFERRED, [self._node])
        piece[:: mmap.PAGESIZE] = 1
        found = self._nodes(piece)
        away = np.flatnonzero(found != self._node)
        for first, last in _runs(away):
            give_back(piece.ctypes.data + first * mmap.PAGESIZE, (last + 1 - first) * mmap.PAGESIZE)
        lock(piece.ctypes.data, piece.size)
        bind(piece.ctypes.data, piece.size, [self._node])
        if len(away) < len(found):
            self._pieces.append(piece)
            self.size_bytes += (len(found) - len(away)) * mmap.PAGESIZE
        return len(away) / len(found)

    @staticmethod
    def _nodes(piece: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        return node_of_pages(piece.ctypes.data, piece.size)


def _runs(numbers: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    if not len(numbers):
        return []
    ends = np.flatnonzero(np.diff(numbers) > 1)
    firsts = numbers[np.concatenate(([0], ends + 1))]
    lasts = numbers[np.concatenate((ends, [len(numbers) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
