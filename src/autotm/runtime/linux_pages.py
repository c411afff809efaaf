"""Pages that Linux places while a plain step runs: placed at first touch, watched until they are steady, counted."""

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
"""Of steps between two looks, and looks at most: Linux scans a program's memory once a second at the fastest."""
_SAME = 0.01
"""Share of the pages in fast memory that may come and go in a window of steps that are steady."""

Fast = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Settled:
    """Where pages were when timing began.

    Attributes:
        fast: (pages,) whether each was in fast memory.
        by_node: pages by memory node.
        steps: run until then.
        is_steady: whether few pages came and went in the last of these.
        moved_bytes: promoted and demoted in the whole system until then.
    """

    fast: Fast
    by_node: dict[str, int]
    steps: int
    is_steady: bool
    moved_bytes: tuple[int, int]


@dataclass(frozen=True)
class LinuxPages:
    """Where Linux had a program's pages while it was timed.

    Attributes:
        before: pages by memory node before timing.
        pool: what each kernel found slow: the mean of both.
        promoted_bytes, demoted_bytes: that the whole system moved for each step.
    """

    before: dict[str, int]
    pool: PagedPool
    promoted_bytes: int
    demoted_bytes: int


def fill_and_settle(executor: Executor, others: Sequence[Tiers], seed: int, cpus: Sequence[int]) -> Settled | None:
    """Make all arguments what they are before the first step.

    Where Linux places pages, steps run before, until pages are where they stay: the first one touches them in a
    program's own order, others give pages that move the time to do so.

    Args:
        executor: of the plain step.
        others: memories that are open besides the executor's.
        seed: of the arguments.
        cpus: that fill them.

    Returns:
        Where pages are then; None where Linux does not place them.

    Raises:
        AutotmError: Linux cannot place them within the limit, or the system does not let this process ask for it.
    """
    settled = None
    if isinstance(executor.tiers, PolicyTiers):
        settled = _settle(executor, executor.tiers, others, seed, cpus)
        log.info("pages by memory node: %s", settled.by_node)
        if not settled.is_steady:
            log.warning("pages still moved after %d steps: times are of steps that are not steady", settled.steps)
    executor.arguments.fill(seed, cpus)
    return settled


def _settle(executor: Executor, tiers: PolicyTiers, others: Sequence[Tiers], seed: int, cpus: Sequence[int]) -> Settled:
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
    return Settled(tiers.is_fast(), tiers.slow.pages_by_node(), steps, is_steady, SystemMemory().moved_bytes)


def count_pages(settled: Settled | None, tiers: Tiers, graph: Graph, plan: Plan, timed_steps: int) -> LinuxPages | None:
    """Look for the pages again, once `timed_steps` were timed; None where Linux does not place them.

    Args:
        settled: as they were before.
        tiers: of the program.
        graph: the step with the implementations that run.
        plan: of the program.
        timed_steps: since then.

    Raises:
        AutotmError: pages moved that should not have.
    """
    if settled is None or not isinstance(tiers, PolicyTiers):
        return None
    assert plan.paged is not None
    promoted, demoted = (now - then for now, then in zip(SystemMemory().moved_bytes, settled.moved_bytes, strict=True))
    fast = tiers.is_fast()
    if not tiers.linux_moves_pages and (moved := int(np.count_nonzero(fast != settled.fast))):
        raise AutotmError(
            f"{moved} of {len(fast)} pages moved while {plan.optimizer} was timed, which never moves pages; what was "
            "measured is refused: look for what else moves them (autotm doctor), then run again"
        )
    offsets = {stay.tensor: offset for stay, offset in zip(plan.stays, plan.paged.offsets, strict=True)}
    both = [_slow_bytes(graph, offsets, one) for one in (settled.fast, fast)]
    pool = replace(
        plan.paged,
        page_bytes=mmap.PAGESIZE,
        fast_pages=plan.dram_limit_bytes // mmap.PAGESIZE,
        most_fast_pages=int(max(settled.fast.sum(), fast.sum())),
        slow_bytes=tuple(
            tuple((one + other) // 2 for one, other in zip(*kernel, strict=True)) for kernel in zip(*both, strict=True)
        ),
        promoted_bytes=(0,) * len(graph.kernels),
        demoted_bytes=(0,) * len(graph.kernels),
        steps=settled.steps,
        is_steady=settled.is_steady,
        placed_by="linux",
    )
    steps = max(timed_steps, 1)
    return LinuxPages(settled.by_node, pool, promoted // steps, demoted // steps)


def _slow_bytes(graph: Graph, offsets: dict[str, int], fast: Fast) -> list[tuple[int, ...]]:
    """By kernel, of each of its movable tensors by first slot, the bytes in pages that are not fast."""
    page_bytes = mmap.PAGESIZE
    # Slow bytes of the pool before each page.
    before = np.concatenate(([0], np.cumsum(np.where(fast, 0, page_bytes))))

    def below(end: int) -> int:
        page, rest = divmod(end, page_bytes)
        return int(before[page]) + (0 if not rest or fast[page] else rest)

    def of(name: str) -> int:
        return below(offsets[name] + graph.by_name[name].size_bytes) - below(offsets[name])

    return [tuple(of(name) for name in graph.slots_of(kernel)) for kernel in graph.kernels]
