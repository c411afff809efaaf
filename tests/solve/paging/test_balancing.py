"""NUMA balancing, simulated on made-up programs whose best placement is known: the limit, convergence, rates, seeds."""

from __future__ import annotations

import numpy as np
import pytest

from autotm.solve.paging import Balancing, BalancingRules, PageMap, StepCosts, balanced, touch

PAGE = 4096
HOT, COLD = 200, 2000
"""Pages that every step reads, and pages that only the first one touches: those come first, and take fast memory."""


def hot_and_cold(step_us: float = 50_000.0) -> tuple[PageMap, StepCosts]:
    """One kernel that reads the hot pages, each slow byte of which costs as much as in emulated Optane memory."""
    cold, hot = touch(0, COLD * PAGE, PAGE), touch(COLD * PAGE, HOT * PAGE, PAGE)
    pages = PageMap(PAGE, COLD + HOT, ((hot,),), before=(cold,))
    return pages, StepCosts((step_us,), ((2e-5,),), 3e-5, 8e-5)


def streaming(pages: int = 1000, kernels: int = 20) -> tuple[PageMap, StepCosts]:
    """Kernels that each pass over their own part of the pool, in turn."""
    part = pages // kernels
    touches = tuple((touch(number * part * PAGE, part * PAGE, PAGE),) for number in range(kernels))
    return PageMap(PAGE, pages, touches), StepCosts((5_000.0,) * kernels, ((2e-5,),) * kernels, 3e-5, 8e-5)


@pytest.mark.parametrize("seed", range(4))
def test_hot_pages_are_fast_after_two_passes_of_the_scan(seed: int) -> None:
    pages, costs = hot_and_cold()
    running = Balancing(pages, HOT + 50, costs, seed)
    assert not running.fast[COLD:].any(), "first touch gave all fast memory to the cold pages"
    while running.now_us < 2.5e6:
        running.kernel(0)
    assert running.fast[COLD:].all()
    slow_bytes, promoted, demoted = running.kernel(0)
    assert (slow_bytes, promoted, demoted) == ([0], 0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_the_steady_step_is_the_best_one_where_all_that_is_hot_fits(seed: int) -> None:
    pages, costs = hot_and_cold()
    found = balanced(pages, HOT + 50, costs, seed)
    assert found.is_steady
    assert found.slow_bytes == ((0,),)
    assert (found.promoted_bytes, found.demoted_bytes) == ((0,), (0,))


@pytest.mark.parametrize("capacity", [0, 1, 3, 17, 400, 999, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_fast_memory_never_holds_more_than_the_limit(capacity: int, seed: int) -> None:
    pages, costs = streaming()
    running, before = Balancing(pages, capacity, costs, seed), None
    for _ in range(100):
        for number in range(len(pages.kernels)):
            _, promoted, demoted = running.kernel(number)
            held = int(running.fast.sum())
            assert held <= capacity
            assert held <= running.most_fast_pages <= capacity
            if before is not None:
                assert held - before == (promoted - demoted) // PAGE, "pages are neither lost nor made"
            before = held


def test_the_same_seed_gives_the_same_pages_and_another_one_others() -> None:
    pages, costs = streaming()
    one, same, other = (balanced(pages, 300, costs, seed) for seed in (1, 1, 2))
    assert one == same
    assert one.promoted_bytes != other.promoted_bytes


def test_a_step_that_reads_more_than_fits_moves_pages_for_ever() -> None:
    pages, costs = streaming()
    found = balanced(pages, 300, costs, 0)
    assert sum(found.promoted_bytes) > 0
    assert sum(found.demoted_bytes) == pytest.approx(sum(found.promoted_bytes), rel=0.05)


def test_pages_are_promoted_no_faster_than_the_rate_limit() -> None:
    pages, costs = hot_and_cold()
    rules = BalancingRules(rate_bytes=20 * PAGE)
    running = Balancing(pages, HOT + 50, costs, 0, rules)
    while running.now_us < 4e6:
        running.kernel(0)
    assert 0 < int(running.fast[COLD:].sum()) <= 5 * 20


def test_a_page_touched_long_after_it_was_marked_is_not_hot() -> None:
    pages, costs = hot_and_cold(step_us=5e6)
    running = Balancing(pages, HOT + 50, costs, 0, BalancingRules(hot_us=1e5))
    for _ in range(6):
        running.kernel(0)
    # Scans mark just before the kernel touches, in the same moment: those are hot whatever the threshold.
    marked_before = running.fast[COLD:].copy()
    running._marked[COLD:] = np.where(running.fast[COLD:], np.inf, running.now_us - 2e5)
    running._next_scan_us = running.now_us + 1e9
    running.kernel(0)
    assert (running.fast[COLD:] == marked_before).all()


def test_steps_that_are_skipped_are_those_that_would_have_run() -> None:
    pages, costs = hot_and_cold(step_us=1_000.0)
    by_window, one_by_one = Balancing(pages, 100, costs, 3), Balancing(pages, 100, costs, 3)
    window = by_window.window()
    slow = 0
    while one_by_one.now_us < by_window.now_us - 500:
        slow += one_by_one.kernel(0)[0][0]
    assert window.steps > 1000
    assert slow == pytest.approx(float(window.slow[0][0]), rel=0.01)
    assert (by_window.fast == one_by_one.fast).mean() > 0.99


def test_a_program_without_tensors_has_no_pages() -> None:
    found = balanced(PageMap(PAGE, 0, ((),)), 0, StepCosts((10.0,), ((),), 1e-5, 1e-5), 0)
    assert found.slow_bytes == ((),)
