"""Pages that Linux places while a plain step runs: run it until few pages move, and count those in fast memory."""

from __future__ import annotations

import logging
import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autotm.memory.linux.policy_tiers import PolicyTiers
from autotm.memory.tiers import Tiers
from autotm.model.cache import PagedPool
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph
from autotm.model.plan import Plan
from autotm.model.system import SystemMemory
from autotm.runtime.executor import Executor

log = logging.getLogger(__name__)

_WINDOW_S, _LEAST_STEPS, _MOST_WINDOWS = 4.0, 4, 16
"""Seconds and steps of a window at least, and windows at most: Linux scans a program's memory once a second at most."""
_SAME = 0.01
"""Share of the pages in fast memory that may come and go in a window of steps that are steady."""

Fast = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PageState:
    """The places of pages when timing began.

    Attributes:
        fast: (pages,) whether each was in fast memory.
        by_node: pages by memory node.
        steps: number of steps run before.
        is_steady: whether few pages moved in the last window of these steps.
        moved_bytes: promoted and demoted in the whole system before.
    """

    fast: Fast
    by_node: dict[str, int]
    steps: int
    is_steady: bool
    moved_bytes: tuple[int, int]


@dataclass(frozen=True)
class LinuxPages:
    """The places of a program's pages while it was timed.

    Attributes:
        before: pages by memory node before timing.
        pool: slow bytes of each kernel, the mean of those before and after.
        promoted_bytes, demoted_bytes: bytes that the whole system moved for each step.
    """

    before: dict[str, int]
    pool: PagedPool
    promoted_bytes: int
    demoted_bytes: int


def fill_arguments(executor: Executor, others: Sequence[Tiers], seed: int, cpus: Sequence[int]) -> PageState | None:
    """Fill all arguments with their values before the first step.

    Where Linux places pages, steps run first, until few pages move: the first step touches them in the program's order,
    later ones give pages time to move.

    Args:
        executor: of the plain step.
        others: memories open at the same time.
        seed: of the arguments.
        cpus: that fill them.

    Returns:
        The places of pages then; None where Linux does not place them.

    Raises:
        AutotmError: Linux cannot place pages within the limit, or the system does not let this process ask for it.
    """
    initial = None
    if isinstance(executor.tiers, PolicyTiers):
        initial = _run_until_steady(executor, executor.tiers, others, seed, cpus)
        log.info("pages by memory node: %s", initial.by_node)
        if not initial.is_steady:
            log.warning("pages still moved after %d steps: times are of steps that are not steady", initial.steps)
    executor.arguments.fill(seed, cpus)
    return initial


def _run_until_steady(
    executor: Executor, tiers: PolicyTiers, others: Sequence[Tiers], seed: int, cpus: Sequence[int]
) -> PageState:
    def touch() -> None:
        executor.arguments.fill(seed, cpus)
        executor.step()

    with tiers.only_pages_of_the_pool():
        steps = tiers.place(touch, *others)
    is_steady = not tiers.linux_moves_pages
    for _ in range(0 if is_steady else _MOST_WINDOWS):
        before, least = tiers.is_fast(), steps + _LEAST_STEPS
        end_s = time.monotonic() + _WINDOW_S
        while time.monotonic() < end_s or steps < least:
            executor.step()
            steps += 1
        if excess := tiers.excess_bytes:
            tiers.fill_up(excess)
        elif np.count_nonzero(before != tiers.is_fast()) <= _SAME * max(1, int(before.sum())):
            is_steady = True
            break
    tiers.check()
    return PageState(tiers.is_fast(), tiers.slow.pages_by_node(), steps, is_steady, SystemMemory().moved_bytes)


def count_pages(before: PageState | None, tiers: Tiers, graph: Graph, plan: Plan, step_count: int) -> LinuxPages | None:
    """Read the places of pages again after `step_count` timed steps; return None where Linux does not place them.

    Args:
        before: the places of pages before these steps.
        tiers: of the program.
        graph: the step with the implementations that run.
        plan: of the program.
        step_count: number of steps timed since then.

    Raises:
        AutotmError: pages moved that should not have.
    """
    if before is None or not isinstance(tiers, PolicyTiers):
        return None
    assert plan.paged is not None
    promoted, demoted = (now - then for now, then in zip(SystemMemory().moved_bytes, before.moved_bytes, strict=True))
    fast = tiers.is_fast()
    if not tiers.linux_moves_pages and (moved := int(np.count_nonzero(fast != before.fast))):
        raise AutotmError(
            f"{moved} of {len(fast)} pages moved while {plan.optimizer} was timed, which never moves pages; what was "
            "measured is refused: look for what else moves them (autotm doctor), then run again"
        )
    offsets = {stay.tensor: offset for stay, offset in zip(plan.stays, plan.paged.offsets, strict=True)}
    both = [_slow_bytes(graph, offsets, one) for one in (before.fast, fast)]
    pool = replace(
        plan.paged,
        page_bytes=mmap.PAGESIZE,
        fast_pages=plan.dram_limit_bytes // mmap.PAGESIZE,
        most_fast_pages=int(max(before.fast.sum(), fast.sum())),
        slow_bytes=tuple(
            tuple((one + other) // 2 for one, other in zip(*kernel, strict=True)) for kernel in zip(*both, strict=True)
        ),
        promoted_bytes=(0,) * len(graph.kernels),
        demoted_bytes=(0,) * len(graph.kernels),
        steps=before.steps,
        is_steady=before.is_steady,
        placed_by="linux",
    )
    steps = max(step_count, 1)
    return LinuxPages(before.by_node, pool, promoted // steps, demoted // steps)


def _slow_bytes(graph: Graph, offsets: dict[str, int], fast: Fast) -> list[tuple[int, ...]]:
    """Return, by kernel and movable tensor in order of first slots, the bytes in pages that are not fast."""
    page_bytes = mmap.PAGESIZE
    # Slow bytes of the pool before each page.
    before = np.concatenate(([0], np.cumsum(np.where(fast, 0, page_bytes))))

    def below(end: int) -> int:
        page, rest = divmod(end, page_bytes)
        return int(before[page]) + (0 if not rest or fast[page] else rest)

    def of(name: str) -> int:
        return below(offsets[name] + graph.by_name[name].size_bytes) - below(offsets[name])

    return [tuple(of(name) for name in graph.slots_of(kernel)) for kernel in graph.kernels]
