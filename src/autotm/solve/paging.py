"""A plain step under Linux, simulated: addresses by first fit, pages by first touch, and how they move later."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from autotm.model.cache import PagedPool
from autotm.model.graph import ChosenGraph, Graph, Kernel, configuration, slow_traffic
from autotm.solve.problem import Problem


class Heap:
    """`size_bytes` of memory as allocators see it: free stretches of addresses, joined with neighbours when freed."""

    def __init__(self, size_bytes: int) -> None:
        self._free = [(0, size_bytes)] if size_bytes else []

    def take(self, size_bytes: int, *, best_fit: bool) -> int | None:
        """Take a block in the smallest large enough stretch (`best_fit`), or in the lowest; None without one."""
        fitting = [stretch for stretch in self._free if stretch[1] - stretch[0] >= size_bytes]
        if not fitting:
            return None
        start, end = min(fitting, key=lambda stretch: stretch[1] - stretch[0]) if best_fit else fitting[0]
        self._free.remove((start, end))
        if start + size_bytes < end:
            insort(self._free, (start + size_bytes, end))
        return start

    def free(self, start: int, size_bytes: int) -> None:
        """Give a block back."""
        end = start + size_bytes
        before = next((stretch for stretch in self._free if stretch[1] == start), None)
        after = next((stretch for stretch in self._free if stretch[0] == end), None)
        for stretch in (before, after):
            if stretch is not None:
                self._free.remove(stretch)
        insort(self._free, (before[0] if before else start, after[1] if after else end))


def at_birth(graph: Graph, capacity_bytes: int | None = None, *, best_fit: bool = False) -> dict[str, int]:
    """Return an offset for every movable tensor that fits when it is born; without `capacity_bytes`, all do.

    The last kernel to use a tensor frees its bytes.
    """
    births = sorted(graph.movable, key=lambda tensor: tensor.live.start)
    heap = Heap(sum(tensor.allocated_bytes for tensor in births) if capacity_bytes is None else capacity_bytes)
    offsets: dict[str, int] = {}
    deaths: list[tuple[int, int, int]] = []
    for tensor in births:
        while deaths and deaths[0][0] <= tensor.live.start:
            heap.free(*deaths.pop(0)[1:])
        offset = heap.take(tensor.allocated_bytes, best_fit=best_fit)
        if offset is not None:
            offsets[tensor.name] = offset
            insort(deaths, (tensor.live.stop, offset, tensor.allocated_bytes))
    return offsets


def first_fit(graph: Graph) -> tuple[dict[str, int], int]:
    """Return an offset for each movable tensor, and their bytes: first fit in execution order, as nGraph did."""
    offsets = at_birth(graph)
    return offsets, max((offsets[one.name] + one.allocated_bytes for one in graph.movable), default=0)


PAGE_BYTES = 4096
MOST_PAGES = 1 << 16
"""A pool of more pages than this (256 MiB of 4 KiB each) is simulated with larger ones, which move as a whole."""

Fast = npt.NDArray[np.bool_]
"""(pages,) whether each is in fast memory."""


@dataclass(frozen=True, slots=True)
class Touch:
    """A kernel's pass over one tensor: pages [first, stop) of the pool hold its bytes.

    Attributes:
        first, stop: pages.
        size_bytes: of the tensor.
        head_bytes, tail_bytes: of the first and of the last page that belong to others.
        pages: those that the kernel touches: all, or of a table that is looked up in as many as it has rows looked up,
            evenly spread.
    """

    first: int
    stop: int
    size_bytes: int
    head_bytes: int
    tail_bytes: int
    pages: slice | npt.NDArray[np.int64]

    def slow_bytes(self, fast: Fast, page_bytes: int) -> int:
        """Return the bytes of the tensor in slow pages."""
        if self.stop == self.first:
            return 0
        slow_pages = self.stop - self.first - int(np.count_nonzero(fast[self.first : self.stop]))
        of_others = (0 if fast[self.first] else self.head_bytes) + (0 if fast[self.stop - 1] else self.tail_bytes)
        return slow_pages * page_bytes - of_others


@dataclass(frozen=True)
class PageMap:
    """A pool cut into pages, and which of them each kernel touches.

    Attributes:
        page_bytes: of a page.
        count: of pages in the pool.
        kernels: the touches of each kernel, a movable tensor each, by first slot.
        before: touches that fill the step's arguments before it runs for the first time.
    """

    page_bytes: int
    count: int
    kernels: tuple[tuple[Touch, ...], ...]
    before: tuple[Touch, ...] = ()

    @classmethod
    def of(cls, graph: Graph, offsets: Mapping[str, int], pool_bytes: int, page_bytes: int | None = None) -> PageMap:
        """Return the pages of a pool.

        Args:
            graph: the step with the implementations that run.
            offsets: of every movable tensor in the pool, bytes.
            pool_bytes: its size.
            page_bytes: of a page; by default the least that gives no more than `MOST_PAGES`.
        """
        size = page_bytes or PAGE_BYTES
        while page_bytes is None and pool_bytes > size * MOST_PAGES:
            size *= 2
        filled = [tensor for tensor in graph.movable if tensor.producer is None and tensor.held is not None]
        return cls(
            size,
            -(-pool_bytes // size),
            tuple(
                tuple(
                    touch(offsets[name], graph.by_name[name].size_bytes, size, _touched_bytes(graph, kernel, name))
                    for name in graph.slots_of(kernel)
                )
                for kernel in graph.kernels
            ),
            tuple(touch(offsets[tensor.name], tensor.size_bytes, size) for tensor in filled),
        )


def touch(start: int, size_bytes: int, page_bytes: int, touched_bytes: int | None = None) -> Touch:
    """Return a pass over the pool's bytes [start, start + size_bytes), `touched_bytes` of them touched (None: all)."""
    first, stop = start // page_bytes, -(-(start + size_bytes) // page_bytes) if size_bytes else start // page_bytes
    pages: slice | npt.NDArray[np.int64] = slice(first, stop)
    if touched_bytes is not None and touched_bytes < size_bytes:
        wanted = min(stop - first, -(-touched_bytes // page_bytes))
        pages = first + np.arange(wanted) * (stop - first) // max(wanted, 1)
    return Touch(first, stop, size_bytes, start - first * page_bytes, stop * page_bytes - start - size_bytes, pages)


def _touched_bytes(graph: Graph, kernel: Kernel, tensor: str) -> int:
    reads, writes = slow_traffic(graph, kernel, configuration(graph, kernel, {tensor}))
    return max(*reads, *writes, 0, 0)


# Memory policies that choose a page's node when it is first touched, and never again.
#
# `MPOL_PREFERRED` takes the preferred node while it has room, then the next; `MPOL_INTERLEAVE` deals the pages of a
# mapping out in turn, by their place in it; `MPOL_WEIGHTED_INTERLEAVE` (Linux 6.9) deals each node as many in turn as
# its weight. A node without room passes its page on. Sources: set_mempolicy(2); Documentation/admin-
# guide/mm/numa_memory_policy.rst; mm/mempolicy.c.

_WEIGHTINESS = 32
"""mm/mempolicy.c: weights of all nodes add up to about this, before common factors are taken out."""


def touch_order(pages: PageMap) -> npt.NDArray[np.int64]:
    """Return the pages in the order in which a program first touches them: its arguments, then kernel by kernel."""
    everything = np.arange(pages.count)
    touched = [everything[each.pages] for each in chain(pages.before, *pages.kernels)]
    distinct, first = np.unique(np.concatenate([*touched, everything]), return_index=True)
    return distinct[np.argsort(first, kind="stable")]


def preferred(pages: PageMap, fast_pages: int) -> Fast:
    """Return whether each page is fast (pages,): the first ones touched are, until fast memory is full."""
    fast = np.zeros(pages.count, np.bool_)
    fast[touch_order(pages)[:fast_pages]] = True
    return fast


def interleaved(pages: PageMap, fast_pages: int, weights: tuple[int, int]) -> Fast:
    """Return whether each page is fast (pages,): in turn `weights[0]` pages are fast and `weights[1]` are slow.

    When fast memory is full, the pages that are touched later are slow.
    """
    order = touch_order(pages)
    dealt = order[order % sum(weights) < weights[0]]
    fast = np.zeros(pages.count, np.bool_)
    fast[dealt[:fast_pages]] = True
    return fast


def unmoved(pages: PageMap, fast_pages: int, weights: tuple[int, int] | None) -> PagedPool:
    """Return a pool, without addresses, whose pages stay: dealt by weights, or in fast memory until it is full."""
    fast = preferred(pages, fast_pages) if weights is None else interleaved(pages, fast_pages, weights)
    slow_bytes = tuple(tuple(each.slow_bytes(fast, pages.page_bytes) for each in touches) for touches in pages.kernels)
    still = (0,) * len(slow_bytes)
    return PagedPool(
        (), 0, pages.page_bytes, fast_pages, int(fast.sum()), weights, slow_bytes, still, still, 1, is_steady=True
    )


def interleave_weights(fast_bytes_per_s: float, slow_bytes_per_s: float) -> tuple[int, int]:
    """Return the weights that Linux 6.16 sets for two nodes of these bandwidths (`reduce_interleave_weights`).

    Each node gets its share of 32, rounded down, at least 1; then the greatest common factor is taken out.
    """
    both = fast_bytes_per_s + slow_bytes_per_s
    fast, slow = (max(1, int(_WEIGHTINESS * each / both)) for each in (fast_bytes_per_s, slow_bytes_per_s))
    shared = math.gcd(fast, slow)
    return fast // shared, slow // shared


@dataclass(frozen=True)
class StepCosts:
    """The times of a step whose operands are partly slow: of its kernels, and of copies of pages, in microseconds.

    Attributes:
        base_us: time of each kernel with every operand fast.
        slow_us_per_byte: by kernel and movable tensor, the time that a slow byte of the tensor adds: the time that the
            whole tensor adds when it alone is slow, divided by its bytes.
        promote_us_per_byte, demote_us_per_byte: time per byte of pages that move to fast and to slow memory, which is
            that of the largest blocking copy measured.
    """

    base_us: tuple[float, ...]
    slow_us_per_byte: tuple[tuple[float, ...], ...]
    promote_us_per_byte: float
    demote_us_per_byte: float

    @classmethod
    def of(cls, problem: Problem, graph: ChosenGraph) -> StepCosts:
        """Derive the costs from the profile and the links; `graph` is the step with the implementations that run.

        Raises:
            AutotmError: the profile lacks a kernel or a configuration.
        """
        profile, links = problem.profile, problem.links
        return cls(
            tuple(map(profile.base_us, graph.kernels)),
            tuple(
                tuple(
                    profile.extra_us(graph, kernel, name) / max(graph.by_name[name].size_bytes, 1)
                    for name in graph.slots_of(kernel)
                )
                for kernel in graph.kernels
            ),
            *(link.points[-1][1] / link.points[-1][0] / 1e3 for link in (links.to_fast, links.to_slow)),
        )

    def kernel_us(self, kernel: int, slow_bytes: Sequence[float], promoted: float = 0, demoted: float = 0) -> float:
        """Time of a kernel with so many bytes of each tensor slow, and of the pages that move meanwhile.

        Promotion is done by the thread that touches a page, demotion by a kernel thread, for which the step's threads
        leave no core: both are waited for. Faults, page tables and flushes of translations cost nothing here.
        """
        extra_us = sum(size * rate for size, rate in zip(slow_bytes, self.slow_us_per_byte[kernel], strict=True))
        moved_us = promoted * self.promote_us_per_byte + demoted * self.demote_us_per_byte
        return self.base_us[kernel] + extra_us + moved_us


@dataclass(frozen=True, slots=True)
class BalancingRules:
    """NUMA balancing in mode 2 (`NUMA_BALANCING_MEMORY_TIERING`) with demotion, at the defaults of Linux 6.1 and later.

    Attributes:
        scan_bytes: that one scan marks at most (`scan_size_mb`, kernel/sched/fair.c, `task_numa_work`); of the address
            space it passes over eight times as many at most.
        scan_period_us: in which everything is scanned once, at the fastest (`scan_period_min_ms`).
        least_period_us: between two scans (`task_scan_min`, `MAX_SCAN_WINDOW`).
        hot_us: a page is hot if it is touched within this time of being marked (`hot_threshold_ms`; the kernel adapts
            it once a minute, upwards while the rate limit is far off: here it stays).
        rate_bytes: of promotion candidates in a second (`numa_balancing_promote_rate_limit_MBps`).
        watermark_share: of fast memory between two watermarks (`watermark_scale_factor`, a ten-thousandth each):
            pages are promoted while more than two of these are free, and demoted until three are (`WMARK_PROMO`).
        plenty_bytes, plenty_share: where the greater of these is free beyond the watermarks, any page that faults
            counts as hot (`pgdat_free_space_enough`).
    """

    scan_bytes: int = 256 << 20
    scan_period_us: float = 1e6
    least_period_us: float = 1e5
    hot_us: float = 1e6
    rate_bytes: int = 65536 << 20
    watermark_share: float = 10 / 10_000
    plenty_bytes: int = 1 << 30
    plenty_share: float = 1 / 16


BALANCING = BalancingRules()


# NUMA balancing for tiered memory (mode 2) with demotion, page by page over the accesses of a step that repeats.
#
# A scan marks slow pages from time to time; the next touch of a marked page faults. If that comes soon after, the
# page is hot, and moves to fast memory while there is room above the high watermark and the rate limit allows; where
# there is none, kswapd is woken and moves the pages that were used least recently to slow memory, until the watermark
# for promotion is free. Sources: Maruf et al., TPP, ASPLOS 2023 (arXiv 2206.02878), and what became of it in Linux:
# kernel/sched/fair.c (`task_numa_work`, `should_numa_migrate_memory`), mm/migrate.c (`migrate_misplaced_folio`),
# mm/vmscan.c (`demote_folio_list`, `pgdat_balanced`), Documentation/admin-guide/sysctl/{kernel,vm}.rst.
#
# Simpler than Linux, mostly in its favour: kswapd knows exactly when a page was last used; the scan never slows down;
# only pages of this step compete for fast memory; a fault costs nothing but the copy.

_SECOND_US = 1e6
_SAME = 0.01
"""Two windows of steps whose mean times differ by no more are steady."""
_PASSES, _LEAST_STEPS, _MOST_WINDOWS = 4, 4, 16
"""Passes of the scan over everything, and steps, in a window at least; windows at most."""


@dataclass
class _Window:
    """Sums over steps: microseconds, and bytes by kernel."""

    steps: int
    step_us: float
    slow: list[npt.NDArray[np.float64]]
    promoted: npt.NDArray[np.float64]
    demoted: npt.NDArray[np.float64]

    @property
    def mean_us(self) -> float:
        return self.step_us / self.steps


class Balancing:
    """The pages of one program while it runs.

    Attributes:
        fast: (pages,) whether each is in fast memory.
        most_fast_pages: that fast memory held at most.
        now_us: since the first step.
    """

    def __init__(
        self, pages: PageMap, fast_pages: int, costs: StepCosts, seed: int, rules: BalancingRules = BALANCING
    ) -> None:
        """Place pages as they are first touched; `seed` says when the first scan comes, and where it begins."""
        self._pages, self._costs, self._rules = pages, costs, rules
        self._capacity = fast_pages
        mark = max(1, math.ceil(fast_pages * rules.watermark_share))
        self._high, self._promo = 2 * mark, 3 * mark
        self.fast: Fast = preferred(pages, max(0, fast_pages - mark))
        self._free = fast_pages - int(self.fast.sum())
        self.most_fast_pages = fast_pages - self._free
        self._marked = np.full(pages.count, np.inf)
        self._used = np.full(pages.count, -1.0)
        self.now_us = 0.0
        draw = np.random.default_rng(seed)
        self._scan_pages = max(1, rules.scan_bytes // pages.page_bytes)
        windows = math.ceil(pages.count / self._scan_pages)
        self._period_us = max(rules.least_period_us, rules.scan_period_us / max(windows, 1))
        self._next_scan_us = draw.uniform(0, self._period_us)
        self._scan_at = int(draw.integers(max(pages.count, 1)))
        self._second_us, self._candidates = 0.0, 0
        self._is_quiet = True

    def window(self) -> _Window:
        """Simulate steps for several passes of the scan; return what they add up to."""
        kernels = len(self._pages.kernels)
        slow = [np.zeros(len(touches)) for touches in self._pages.kernels]
        window = _Window(0, 0.0, slow, np.zeros(kernels), np.zeros(kernels))
        pass_us = self._period_us * math.ceil(self._pages.count / self._scan_pages)
        end_us = self.now_us + _PASSES * pass_us
        while self.now_us < end_us or window.steps < _LEAST_STEPS:
            self._step(window, end_us)
        return window

    def _step(self, window: _Window, end_us: float) -> None:
        """Simulate a step, and those like it before the next scan: where nothing was marked, nothing changes."""
        start_us, self._is_quiet = self.now_us, True
        counts = [self.kernel(number) for number in range(len(self._pages.kernels))]
        step_us = self.now_us - start_us
        times = 1
        if self._is_quiet and step_us > 0:
            until_us = min(self._next_scan_us, max(end_us, self.now_us))
            times += max(0, int((until_us - self.now_us) / step_us))
            skipped_us = (times - 1) * step_us
            self.now_us += skipped_us
            self._used[self._used >= start_us] += skipped_us
        elif step_us <= 0:
            self.now_us = max(self.now_us, self._next_scan_us)
        window.steps += times
        window.step_us += times * step_us
        for number, (slow_bytes, promoted, demoted) in enumerate(counts):
            window.slow[number] += np.multiply(slow_bytes, times)
            window.promoted[number] += times * promoted
            window.demoted[number] += times * demoted

    def kernel(self, number: int) -> tuple[list[int], int, int]:
        """Run one kernel: slow bytes of each tensor, promoted and demoted bytes."""
        if self.now_us >= self._next_scan_us:
            self._scan()
        touches, size = self._pages.kernels[number], self._pages.page_bytes
        hot = []
        for each in touches:
            marked = self._marked[each.pages]
            if (marked < np.inf).any():
                hot.append(self._faults(np.arange(self._pages.count)[each.pages], marked))
            self._used[each.pages] = self.now_us
        budget = int(self._costs.base_us[number] / max(self._costs.demote_us_per_byte * size, 1e-12))
        promoted, demoted = self._promote(np.unique(np.concatenate(hot)), budget) if hot else (0, 0)
        slow_bytes = [each.slow_bytes(self.fast, size) for each in touches]
        moved = promoted * size, demoted * size
        self.now_us += max(0.0, self._costs.kernel_us(number, slow_bytes, *moved))
        return slow_bytes, *moved

    def _scan(self) -> None:
        """Mark the next slow pages; the scan ends at the end of the pool, and begins there anew the next time."""
        self._is_quiet = False
        self._next_scan_us = self.now_us + self._period_us
        start = self._scan_at
        stop = min(self._pages.count, start + 8 * self._scan_pages)
        slow = start + np.flatnonzero(~self.fast[start:stop])
        if len(slow) > self._scan_pages:
            slow, stop = slow[: self._scan_pages], int(slow[self._scan_pages])
        fresh = slow[np.isinf(self._marked[slow]) & (self._used[slow] >= 0)]
        self._marked[fresh] = self.now_us
        self._scan_at = 0 if stop >= self._pages.count else stop

    def _faults(self, pages: npt.NDArray[np.int64], marked: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Touch marked pages, which lose their mark; return those that are hot."""
        self._is_quiet = False
        faulted = marked < np.inf
        self._marked[pages[faulted]] = np.inf
        plenty = max(self._rules.plenty_bytes // self._pages.page_bytes, int(self._capacity * self._rules.plenty_share))
        if self._free > self._promo + plenty:
            return pages[faulted]
        return pages[faulted & (self.now_us - marked < self._rules.hot_us)]

    def _promote(self, hot: npt.NDArray[np.int64], budget: int) -> tuple[int, int]:
        """Move hot pages to fast memory, and others away for them; `budget` pages are what kswapd can move meanwhile.

        Returns:
            pages promoted and demoted.
        """
        if self.now_us - self._second_us > _SECOND_US:
            self._second_us, self._candidates = self.now_us, 0
        allowed = max(0, self._rules.rate_bytes // self._pages.page_bytes - self._candidates)
        self._candidates += len(hot)
        hot = hot[~self.fast[hot]][:allowed]
        demoted = 0
        if len(hot) > self._free - self._high:
            demoted = self._demote(min(budget, len(hot) + self._promo - self._free))
        taken = hot[: max(0, self._free - self._high)]
        self.fast[taken] = True
        self._free -= len(taken)
        self.most_fast_pages = max(self.most_fast_pages, self._capacity - self._free)
        return len(taken), demoted

    def _demote(self, wanted: int) -> int:
        """Move the fast pages that were used least recently to slow memory, but none in use now; returns how many."""
        candidates = np.flatnonzero(self.fast & (self._used < self.now_us))
        wanted = min(wanted, len(candidates))
        if wanted <= 0:
            return 0
        oldest = candidates[np.argsort(self._used[candidates], kind="stable")[:wanted]]
        self.fast[oldest] = False
        self._free += wanted
        return wanted


def balanced(pages: PageMap, fast_pages: int, costs: StepCosts, seed: int) -> PagedPool:
    """Run the step until its time is steady: two windows of steps in a row that differ by at most 1 %.

    Returns a pool without addresses.
    """
    running, steps, before_us = Balancing(pages, fast_pages, costs, seed), 0, math.inf
    for _ in range(_MOST_WINDOWS):
        window = running.window()
        steps += window.steps
        is_steady = abs(window.mean_us - before_us) <= _SAME * window.mean_us
        if is_steady:
            break
        before_us = window.mean_us
    return PagedPool(
        *((), 0, pages.page_bytes, fast_pages, running.most_fast_pages, None),
        tuple(tuple(np.floor(each / window.steps).astype(np.int64).tolist()) for each in window.slow),
        tuple(np.round(window.promoted / window.steps).astype(np.int64).tolist()),
        tuple(np.round(window.demoted / window.steps).astype(np.int64).tolist()),
        steps,
        is_steady,
    )
