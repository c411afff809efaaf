"""Fast and slow nodes between which Linux itself places a program's pages, the fast ones filled up to a limit."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt

from autotm.memory.linux.calls import prefer
from autotm.memory.linux.filler import Filler
from autotm.memory.linux.node_pool import NodePool
from autotm.memory.linux.page_policy import PagePolicy, balancing
from autotm.memory.linux.policy_pool import PolicyPool
from autotm.memory.linux.real_tiers import RealTiers
from autotm.memory.linux.room import Room
from autotm.memory.pool import Pool
from autotm.memory.tiers import Tiers
from autotm.model.files import AutotmError
from autotm.model.machine import Machine, SystemMemory
from autotm.model.plan import PagedTraffic
from autotm.model.step import OpClass

log = logging.getLogger(__name__)

_LEFT_BYTES = 64 << 20
"""Of slow memory beyond what pages need: where the last is taken, the kernel kills processes."""


class PolicyTiers(RealTiers):
    """One pool of pages that Linux places, in at most `limit_bytes` of fast memory.

    Args:
        more_fast: makes fast memory of a size, bound to the fast nodes.
        pool: of the program, not touched yet.
        machine: with slow memory of kind `numa`.
        policy: of the pool.
        fast_nodes, slow_nodes: of the machine file.
        limit_bytes: of fast memory that the pool may have.
        system: this machine's memories.
    """

    linux_places_pages = True

    def __init__(
        self,
        more_fast: Callable[[int], Pool],
        pool: PolicyPool,
        machine: Machine,
        policy: PagePolicy,
        fast_nodes: Sequence[int],
        slow_nodes: Sequence[int],
        limit_bytes: int,
        system: SystemMemory,
    ) -> None:
        super().__init__(more_fast, more_fast(0), pool, machine)
        self._paged = pool
        self._fast_nodes, self._slow_nodes, self._limit_bytes = tuple(fast_nodes), tuple(slow_nodes), limit_bytes
        self._system = system
        self._fillers: list[Filler] = []
        self._between: list[Filler] = []
        slow_share = {PagePolicy.INTERLEAVE: len(slow_nodes) / (len(fast_nodes) + len(slow_nodes))}
        self._dealt = slow_share.get(policy)
        self._stack = ExitStack()
        self._is_placing = False
        self.linux_moves_pages = policy is PagePolicy.LOCAL

    def place(self, touch: Callable[[], None], *others: Tiers) -> int:
        """Fill fast memory but for the limit, and have the pool's pages placed by their first touch.

        Nodes that are neither fast nor slow, but not farther than the slow ones, are filled: pages would spill there.

        Args:
            touch: touches all pages that the program will.
            others: open beside these; what they have stays where it is while Linux moves pages.

        Returns:
            How often all was touched: pages are placed again with more or less filled, until they keep the limit and,
            as far as the kernel gives it to them, reach it.

        Raises:
            AutotmError: there is not enough memory on the nodes, or the system does not let this process limit it.
        """
        self._limit_fast_memory(others)
        tolerated = max(_tolerated(self._limit_bytes), self._paged.page_bytes)
        room = Room(lambda: self._touched(touch), self._give, self._take_back)
        room.search(tolerated)
        if room.left_bytes < -_tolerated(self._limit_bytes):
            raise AutotmError(
                f"pages took {-room.left_bytes / 1e9:.6f} GB of fast memory beyond the limit, and nothing takes it "
                "back from them: other processes take and free memory of the fast nodes; end them, and run again. For "
                "a limit of a few huge pages say huge_pages: none in the machine file"
            )
        if room.left_bytes > tolerated:
            log.warning(
                "pages have %.6f GB of fast memory less than the limit allows: the kernel keeps it, or others have it",
                room.left_bytes / 1e9,
            )
        return room.placements

    def _touched(self, touch: Callable[[], None]) -> int:
        """Place all pages anew; returns the bytes of fast memory that the limit still leaves to slow ones."""
        self._paged.forget()
        for filler in self._fillers:
            filler.stir()
        touch()
        nodes = self._paged.node_of_pages()
        fast = np.isin(nodes, self._fast_nodes)
        left = self._limit_bytes - int(fast.sum()) * mmap.PAGESIZE
        # Of what is dealt out in turn, pages that were dealt to slow nodes never want fast memory.
        share = 0.0 if self._dealt is None else self._dealt
        wanting = int(((nodes >= 0) & ~fast).sum()) - int(share * (nodes >= 0).sum())
        log.info("pages by memory node: %s", self._paged.pages_by_node())
        return left if left < 0 else min(left, max(0, wanting) * mmap.PAGESIZE)

    def _limit_fast_memory(self, others: Sequence[Tiers]) -> None:
        self._require_room()
        if self.linux_moves_pages:
            for pool in (pool for tiers in (self, *others) for pool in tiers.bound_pools):
                pool.keep()
        self._between = [Filler(node, self._system) for node in self._nodes_between()]
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
        """While the pool is touched for the first time, take other memory from slow nodes: the limit is the pool's."""
        prefer(self._slow_nodes[0])
        try:
            yield
        finally:
            prefer(None)

    def is_fast(self) -> npt.NDArray[np.bool_]:
        """(pages,) whether each page of the pool is in fast memory now."""
        return np.isin(self._paged.node_of_pages(), self._fast_nodes)

    @property
    def excess_bytes(self) -> int:
        """Fast memory that pages have beyond the limit, as others gave some back since it was filled."""
        return max(0, int(self.is_fast().sum()) * mmap.PAGESIZE - self._limit_bytes)

    def _nodes_between(self) -> list[int]:
        system, first = self._system, self._fast_nodes[0]
        farthest = max((system.distance(first, node) or 0 for node in self._slow_nodes), default=0)
        known = {*self._fast_nodes, *self._slow_nodes}
        others = (node.number for node in system.nodes if node.number not in known)
        return [node for node in others if (system.distance(first, node) or 0) <= farthest]

    def _give(self, size_bytes: int) -> int:
        """Leave so much more of fast memory to the pool; returns how much that was, as there may be no more."""
        given = 0
        for filler in self._fillers:
            before = filler.size_bytes
            filler.leave(size_bytes - given)
            given += before - filler.size_bytes
        return given

    def _take_back(self, size_bytes: int) -> int:
        """Free all pages, and fill so much more of fast memory before they are placed anew; returns how much it got."""
        self._paged.forget()
        return self.fill_up(size_bytes)

    def fill_up(self, size_bytes: int) -> int:
        """Fill up to so much more of fast memory with what is free there; returns how much."""
        taken = 0
        for filler in self._fillers:
            taken += filler.take(size_bytes - taken)
        return taken

    def check(self) -> None:
        """As `Tiers.check`, and the limit still holds.

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

    def paged_delay_ns(self, op_class: OpClass, traffic: PagedTraffic) -> int:
        """Nothing: slow pages are slow."""
        del op_class, traffic
        return 0

    def close(self) -> None:
        """Give fast memory back, put settings of Linux back, and free the pools."""
        for filler in (*self._fillers, *self._between):
            filler.close()
        self._stack.close()
        super().close()

    def _require_room(self) -> None:
        fast = sum(node.room_bytes for node in self._system.nodes_named(self._fast_nodes))
        slow = sum(node.room_bytes for node in self._system.nodes_named(self._slow_nodes))
        wanted_fast = min(self._limit_bytes, self._paged.size_bytes)
        wanted_slow = self._paged.size_bytes - wanted_fast + _LEFT_BYTES
        for nodes, room, wanted in ((self._fast_nodes, fast, wanted_fast), (self._slow_nodes, slow, wanted_slow)):
            if room < wanted:
                raise AutotmError(
                    f"pages need {wanted / 1e9:.3f} GB on memory node {', '.join(map(str, nodes))}, which has room for "
                    f"{room / 1e9:.3f} GB; take a smaller scale or batch, or another limit"
                )


def _tolerated(limit_bytes: int) -> int:
    """Pages that come and go between two looks."""
    return max(limit_bytes // 100, 1 << 20)


class BoundTiers(RealTiers):
    """As where Linux places pages, but without a limit: fast memory holds all of them."""

    def __init__(self, more_fast: Callable[[int], Pool], pool: NodePool, machine: Machine) -> None:
        super().__init__(more_fast, more_fast(0), pool, machine)

    def paged_delay_ns(self, op_class: OpClass, traffic: PagedTraffic) -> int:
        """Nothing: all pages are fast."""
        del op_class, traffic
        return 0
