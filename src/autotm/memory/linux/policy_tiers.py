"""Memory nodes between which Linux places pages within a limit: fast ones are filled until only the limit is free."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt

from autotm.memory.linux.page_policy import PagePolicy, PolicyPool, balancing
from autotm.memory.linux.system_calls import bind, give_back, lock, node_of_pages, prefer, set_policy
from autotm.memory.pool import Pool
from autotm.memory.tiers import Tiers
from autotm.model.errors import AutotmError
from autotm.model.machine import Machine, NumaTier
from autotm.model.system import SystemMemory

# Memory that fills a node but for a given size, in which the kernel then has to place pages.
#
# Linux has no limit of a process's memory by node. Instead the rest of the node is taken by pages that nothing uses.
# How much the node gives is not computed from its watermarks and reserves, which differ between kernels, but tried:
# the filler prefers the node, and is full when its pages begin to go elsewhere.

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
        """Take all memory that the node gives without taking any from other nodes.

        Raises:
            AutotmError: pages may not be locked or bound, a container's limit is in the way, or they do not stay.
        """
        spilled = 0.0
        while spilled < _SPILLED:
            spilled = self._grow(self._next_bytes())
        self.check()

    def take(self, size_bytes: int) -> int:
        """Take up to so many bytes more; return how many it got."""
        before, left = self.size_bytes, size_bytes
        while left > 0:
            piece = min(left, _LEAST_BYTES)
            left -= piece
            if self._grow(piece) >= _SPILLED:
                break
        return self.size_bytes - before

    def stir(self) -> None:
        """Give back more than a processor's lists of free pages hold, and take as much again.

        Pages that a process frees go to these lists first. There they do not count as free, so that the kernel takes
        pages of another node, although this one has some; afterwards the lists are nearly empty.
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
            freed = min(pages, len(held))
            if freed == len(held):
                self._pieces.pop(0)
            else:
                give_back(piece.ctypes.data, (int(held[freed - 1]) + 1) * mmap.PAGESIZE)
            pages -= freed
            self.size_bytes -= freed * mmap.PAGESIZE

    def check(self) -> None:
        """Make sure that every page is on the node.

        Raises:
            AutotmError: one is not.
        """
        pieces = [self._nodes(piece) for piece in self._pieces]
        away = sum(int(((nodes >= 0) & (nodes != self._node)).sum()) for nodes in pieces)
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
        limit = self._system.memory_limit
        if limit is not None and limit.left_bytes < 2 * size:
            raise AutotmError(
                f"memory node {self._node}: {free / 1e9:.3f} GB of it must be filled so that fast memory is limited, "
                f"but this container may take {limit.left_bytes / 1e9:.3f} GB more; raise its limit of memory"
            )
        return size

    def _grow(self, size_bytes: int) -> float:
        """Take a piece, and keep its pages that are on the node; return the share of the others."""
        mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE if size_bytes > _LEAST_BYTES else mmap.MADV_NOHUGEPAGE)
        piece: npt.NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
        set_policy(piece.ctypes.data, piece.size, _MPOL_PREFERRED, [self._node])
        piece[:: mmap.PAGESIZE] = 1
        nodes = self._nodes(piece)
        away = np.flatnonzero(nodes != self._node)
        for run in np.split(away, np.flatnonzero(np.diff(away) > 1) + 1):
            if run.size:
                give_back(piece.ctypes.data + int(run[0]) * mmap.PAGESIZE, run.size * mmap.PAGESIZE)
        lock(piece.ctypes.data, piece.size)
        bind(piece.ctypes.data, piece.size, [self._node])
        if len(away) < len(nodes):
            self._pieces.append(piece)
            self.size_bytes += (len(nodes) - len(away)) * mmap.PAGESIZE
        return len(away) / len(nodes)

    @staticmethod
    def _nodes(piece: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        return node_of_pages(piece.ctypes.data, piece.size)


# How many bytes to leave free for pages that Linux places, so that they keep a limit and, if possible, reach it.
#
# Not all freed bytes reach pages: the kernel keeps some on lists of its processors, up to tens of megabytes, and not as
# many each time. So the capacity is searched.

_GRAINS = 8
"""The search ends where too low and too high a capacity differ by this part of the tolerated bytes."""


class CapacitySearch:
    """A search for the free fast memory with which the pages that Linux places reach a limit and keep it.

    Args:
        touched: places all pages anew; returns the bytes of fast memory that the limit still leaves to them, negative
            where they exceed it.
        give: frees so many bytes more for pages; returns how many it freed.
        take: frees all pages and takes so many bytes from them; returns how many it got.
    """

    def __init__(self, touched: Callable[[], int], give: Callable[[int], int], take: Callable[[int], int]) -> None:
        self._touched, self._give, self._take = touched, give, take
        self.freed_bytes = 0
        self.left_bytes = touched()
        self.placements = 1
        """Number of times that all pages were placed."""

    def search(self, tolerated_bytes: int) -> None:
        """Change the capacity until pages keep the limit, and are at most `tolerated_bytes` below it.

        The search always ends: doubled steps end where there is nothing more to give or take, halved steps where they
        are small, and after these capacity is only taken. `left_bytes` is negative afterwards only where nothing could
        be taken, and above `tolerated_bytes` only where the kernel or other processes keep the memory.
        """
        little, much = self._bracket(tolerated_bytes)
        while little is not None and much is not None and much - little > tolerated_bytes // _GRAINS:
            if self._fits(tolerated_bytes) or not self._change((little + much) // 2 - self.freed_bytes):
                break
            if self.left_bytes > 0:
                little = self.freed_bytes
            else:
                much = self.freed_bytes
        step = 0
        while self.left_bytes < 0:
            step = max(-self.left_bytes, 2 * step)
            if not self._change(-step):
                break

    def _bracket(self, tolerated_bytes: int) -> tuple[int | None, int | None]:
        """Bracket the capacity in doubled steps; return one too low and one too high, None where it found none."""
        little = much = None
        step = 0
        while not self._fits(tolerated_bytes):
            if self.left_bytes > 0:
                little = self.freed_bytes
            else:
                much = self.freed_bytes
            step = max(abs(self.left_bytes), 2 * step)
            if (little is not None and much is not None) or not self._change(step if much is None else -step):
                break
        return little, much

    def _fits(self, tolerated_bytes: int) -> bool:
        return 0 <= self.left_bytes <= tolerated_bytes

    def _change(self, change_bytes: int) -> bool:
        """Give or take so many bytes and place all pages anew; return whether any were given or taken."""
        changed = self._give(change_bytes) if change_bytes > 0 else -self._take(-change_bytes)
        self.freed_bytes += changed
        self.left_bytes = self._touched()
        self.placements += 1
        return changed != 0


# Fast and slow nodes between which Linux itself places a program's pages, the fast ones filled up to a limit.

log = logging.getLogger(__name__)

_LEFT_BYTES = 64 << 20
"""Slow memory left beyond what pages need: where the last is taken, the kernel kills processes."""


class PolicyTiers(Tiers):
    """One pool of pages that Linux places, in at most `limit_bytes` of fast memory.

    Args:
        pool: of the program, not touched yet.
        machine: with slow memory of kind `numa`.
        more_fast: makes fast memory of a size, bound to the fast nodes.
        limit_bytes: of fast memory that the pool may have.
        system: this machine's memories.
    """

    def __init__(
        self,
        pool: PolicyPool,
        machine: Machine,
        more_fast: Callable[[int], Pool],
        limit_bytes: int,
        system: SystemMemory,
    ) -> None:
        super().__init__(more_fast(0), pool, machine, more_fast)
        tier = machine.slow_tier
        assert isinstance(tier, NumaTier)
        self._paged = pool
        self._fast_nodes, self._slow_nodes, self._limit_bytes = tier.fast_nodes, tier.slow_nodes, limit_bytes
        self._system = system
        self._fillers: list[Filler] = []
        self._between: list[Filler] = []
        self._stack = ExitStack()
        self._is_placing = False
        self.linux_moves_pages = pool.policy is PagePolicy.LOCAL

    def place(self, touch: Callable[[], None], *others: Tiers) -> int:
        """Fill fast memory but for the limit, and have the pool's pages placed by their first touch.

        Nodes that are neither fast nor slow, but not farther than the slow ones, are filled: pages would spill there.

        Args:
            touch: touches all pages that the program will.
            others: tiers open at the same time; their pages stay where they are while Linux moves others.

        Returns:
            Number of times that all pages were touched: they are placed again with more or less memory filled until
            they keep the limit and, as far as the kernel lets them, reach it.

        Raises:
            AutotmError: there is not enough memory on the nodes, or the system does not let this process limit it.
        """
        self._limit_fast_memory(others)
        tolerated = max(_tolerated(self._limit_bytes), self._paged.page_bytes)
        capacity = CapacitySearch(lambda: self._touched(touch), self._give, self._take_back)
        capacity.search(tolerated)
        if capacity.left_bytes < -_tolerated(self._limit_bytes):
            raise AutotmError(
                f"pages took {-capacity.left_bytes / 1e9:.6f} GB of fast memory beyond the limit, and nothing takes it "
                "back from them: other processes take and free memory of the fast nodes; end them, and run again. For "
                "a limit of a few huge pages say huge_pages: none in the machine file"
            )
        if capacity.left_bytes > tolerated:
            log.warning(
                "pages have %.6f GB of fast memory less than the limit allows: the kernel keeps it, or others have it",
                capacity.left_bytes / 1e9,
            )
        return capacity.placements

    def _touched(self, touch: Callable[[], None]) -> int:
        """Place all pages anew; return the bytes of fast memory that the limit still leaves to slow pages."""
        self._paged.forget()
        for filler in self._fillers:
            filler.stir()
        touch()
        nodes = self._paged.node_of_pages()
        fast = np.isin(nodes, self._fast_nodes)
        left = self._limit_bytes - int(fast.sum()) * mmap.PAGESIZE
        wanting = int(((nodes >= 0) & ~fast).sum())
        if self._paged.policy is PagePolicy.INTERLEAVE:
            # Pages that were dealt to slow nodes in turn never want fast memory.
            share = len(self._slow_nodes) / (len(self._fast_nodes) + len(self._slow_nodes))
            wanting -= int(share * (nodes >= 0).sum())
        log.info("pages by memory node: %s", self._paged.pages_by_node())
        return left if left < 0 else min(left, max(0, wanting) * mmap.PAGESIZE)

    def _limit_fast_memory(self, others: Sequence[Tiers]) -> None:
        self._require_free_bytes()
        if self.linux_moves_pages:
            for pool in (pool for tiers in (self, *others) for pool in tiers.bound_pools):
                pool.keep()
        system, first, known = self._system, self._fast_nodes[0], {*self._fast_nodes, *self._slow_nodes}
        farthest = max((system.distance(first, node) or 0 for node in self._slow_nodes), default=0)
        others_there = (node.number for node in system.nodes if node.number not in known)
        near = [node for node in others_there if (system.distance(first, node) or 0) <= farthest]
        self._between = [Filler(node, system) for node in near]
        self._fillers = [Filler(node, self._system) for node in self._fast_nodes]
        for filler in (*self._between, *self._fillers):
            filler.fill()
        self._give(self._limit_bytes)
        if self.linux_moves_pages:
            self._stack.enter_context(balancing())
        self._is_placing = True
        log.info(
            "fast memory limited to %.3f GB: %.3f GB on node %s filled",
            self._limit_bytes / 1e9,
            sum(filler.size_bytes for filler in self._fillers) / 1e9,
            ", ".join(map(str, self._fast_nodes)),
        )

    @property
    def bound_pools(self) -> tuple[Pool, ...]:
        """All but the pool whose pages Linux places."""
        return tuple(pool for pool in super().bound_pools if pool is not self._paged)

    @contextmanager
    def only_pages_of_the_pool(self) -> Iterator[None]:
        """Take other memory from slow nodes during the pool's first touch: the limit is of the pool alone."""
        prefer(self._slow_nodes[0])
        try:
            yield
        finally:
            prefer(None)

    def is_fast(self) -> npt.NDArray[np.bool_]:
        """Return whether each page of the pool is in fast memory now (pages,)."""
        return np.isin(self._paged.node_of_pages(), self._fast_nodes)

    @property
    def excess_bytes(self) -> int:
        """Fast memory that pages have beyond the limit, as others gave some back since it was filled."""
        return max(0, int(self.is_fast().sum()) * mmap.PAGESIZE - self._limit_bytes)

    def _give(self, size_bytes: int) -> int:
        """Free so many bytes more of fast memory for the pool; return how many, as there may be fewer."""
        freed = 0
        for filler in self._fillers:
            before = filler.size_bytes
            filler.leave(size_bytes - freed)
            freed += before - filler.size_bytes
        return freed

    def _take_back(self, size_bytes: int) -> int:
        """Free all pages, and fill so many bytes more of fast memory before they are placed anew; return how many."""
        self._paged.forget()
        return self.fill_up(size_bytes)

    def fill_up(self, size_bytes: int) -> int:
        """Fill up to so many bytes more of free fast memory; return how many."""
        taken = 0
        for filler in self._fillers:
            taken += filler.take(size_bytes - taken)
        return taken

    def check(self) -> None:
        """Check what `Tiers.check` does, and that the limit still holds.

        Raises:
            AutotmError: it does not, or pages are where they must not be.
        """
        super().check()
        for filler in (*self._fillers, *self._between):
            filler.check()
        if self._is_placing and (excess := self.excess_bytes) > _tolerated(self._limit_bytes):
            raise AutotmError(
                f"pages took {excess / 1e9:.6f} GB of fast memory beyond the limit, {self._limit_bytes / 1e9:.6f} GB: "
                "others freed memory of the fast nodes meanwhile, or caches of files gave way; what was measured is "
                "refused. Empty these caches (sync; echo 1 | sudo tee /proc/sys/vm/drop_caches), then run again"
            )

    def close(self) -> None:
        """Give fast memory back, put settings of Linux back, and free the pools."""
        for filler in (*self._fillers, *self._between):
            filler.close()
        self._stack.close()
        super().close()

    def _require_free_bytes(self) -> None:
        fast = min(self._limit_bytes, self._paged.size_bytes)
        slow = self._paged.size_bytes - fast + _LEFT_BYTES
        for nodes, wanted in ((self._fast_nodes, fast), (self._slow_nodes, slow)):
            if (free := sum(node.bindable_bytes for node in self._system.nodes_named(nodes))) < wanted:
                raise AutotmError(
                    f"pages need {wanted / 1e9:.3f} GB on memory node {', '.join(map(str, nodes))}, which has room for "
                    f"{free / 1e9:.3f} GB; take a smaller scale or batch, or another limit"
                )


def _tolerated(limit_bytes: int) -> int:
    """Return the bytes of pages that come and go between two looks."""
    return max(limit_bytes // 100, 1 << 20)
