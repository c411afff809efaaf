"""NUMA balancing for tiered memory (mode 2) with demotion, page by page over the accesses of a step that repeats.

A scan marks slow pages from time to time; the next touch of a marked page faults. If that comes soon after, the page is
hot, and moves to fast memory while there is room above the high watermark and the rate limit allows; where there is
none, kswapd is woken and moves the pages that were used least recently to slow memory, until the watermark for
promotion is free. Sources: Maruf et al., TPP, ASPLOS 2023 (arXiv 2206.02878), and what became of it in Linux:
kernel/sched/fair.c (`task_numa_work`, `should_numa_migrate_memory`), mm/migrate.c (`migrate_misplaced_folio`),
mm/vmscan.c (`demote_folio_list`, `pgdat_balanced`), Documentation/admin-guide/sysctl/{kernel,vm}.rst.

Simpler than Linux, mostly in its favour: kswapd knows exactly when a page was last used; the scan never slows down;
only pages of this step compete for fast memory; a fault costs nothing but the copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.solve.paging.first_touch import preferred
from autotm.solve.paging.pages import Fast, PageMap
from autotm.solve.paging.rules import BALANCING, BalancingRules
from autotm.solve.paging.times import StepCosts

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


@dataclass(frozen=True)
class BalancedPages:
    """Means over the last window of steps, bytes by kernel, and how it came to that."""

    slow_bytes: tuple[tuple[int, ...], ...]
    promoted_bytes: tuple[int, ...]
    demoted_bytes: tuple[int, ...]
    most_fast_pages: int
    steps: int
    is_steady: bool


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

    @property
    def pass_us(self) -> float:
        """Time in which everything is scanned once, where all of it is slow."""
        return self._period_us * math.ceil(self._pages.count / self._scan_pages)

    def window(self) -> _Window:
        """Steps for several passes of the scan."""
        kernels = len(self._pages.kernels)
        slow = [np.zeros(len(touches)) for touches in self._pages.kernels]
        found = _Window(0, 0.0, slow, np.zeros(kernels), np.zeros(kernels))
        end_us = self.now_us + _PASSES * self.pass_us
        while self.now_us < end_us or found.steps < _LEAST_STEPS:
            self._step(found, end_us)
        return found

    def _step(self, found: _Window, end_us: float) -> None:
        """One step, and as many like it as follow before the next scan: where nothing was marked, nothing changes."""
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
        found.steps += times
        found.step_us += times * step_us
        for number, (slow_bytes, promoted, demoted) in enumerate(counts):
            found.slow[number] += np.multiply(slow_bytes, times)
            found.promoted[number] += times * promoted
            found.demoted[number] += times * demoted

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
        """Touch marked pages: they lose their mark; returns those that are hot."""
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


def balanced(pages: PageMap, fast_pages: int, costs: StepCosts, seed: int) -> BalancedPages:
    """Run the step until its time is steady: two windows of steps in a row that differ by at most 1 %."""
    running, steps, before_us = Balancing(pages, fast_pages, costs, seed), 0, math.inf
    for _ in range(_MOST_WINDOWS):
        window = running.window()
        steps += window.steps
        is_steady = abs(window.mean_us - before_us) <= _SAME * window.mean_us
        if is_steady:
            break
        before_us = window.mean_us
    return BalancedPages(
        tuple(tuple(np.floor(each / window.steps).astype(np.int64).tolist()) for each in window.slow),
        tuple(np.round(window.promoted / window.steps).astype(np.int64).tolist()),
        tuple(np.round(window.demoted / window.steps).astype(np.int64).tolist()),
        running.most_fast_pages,
        steps,
        is_steady,
    )
