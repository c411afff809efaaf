"""A plan whose offsets fit its limit.

The search gives up sets of stays that do not fit together (`layout/conflict.py`) while that is worth its time; where
the offsets still need more than the limit, a smaller limit is solved for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotm.layout import StepPacking, pack
from autotm.model.files import InfeasibleLimitError
from autotm.model.measurement import Links, Profile
from autotm.model.plan import LRU_PAGING, RUN_RIVALS, Layout, Plan, Status
from autotm.model.step import ALIGNMENT_BYTES, Graph, Limit
from autotm.solve.problem import Allowance, SolveOptions
from autotm.solve.registry import solve, sweep

log = logging.getLogger(__name__)

_FIRST_MARGIN, _FURTHER = 0.0005, 3
"""Share of the limit that is taken off first, and how many times as much each time after that.

What is missing is mostly a few hundred bytes beside holes that are a little too small; a little less in fast memory,
and the holes suffice. After eight times nothing is left of the limit, and nothing has to be packed.
"""
_PAGING_MARGIN = 0.005
"""As `_FIRST_MARGIN`, for paging: its holes are some percent of the limit, since nobody chose what is there."""
_SOLVING = 0.7
"""Of the time for a sweep, the part for its plans; the rest is for those whose offsets do not fit."""


def fits(plan: Plan, layout: Layout) -> bool:
    """Whether the fast pool keeps the limit of `plan`; a ratio 0:n means no limit and allows fragmentation."""
    return layout.fast_bytes <= plan.dram_limit_bytes or Limit.parse(plan.limit).is_unlimited


def solve_and_pack(
    graph: Graph, profile: Profile, links: Links, optimizer: str, limit: Limit, options: SolveOptions | None = None
) -> tuple[Plan, Layout]:
    """Solve, pack, and where the offsets exceed the limit solve again for less, until they do not.

    The plan returned states its offsets, and is one for the limit that was asked: its bound is that of the first
    attempt, which holds for every placement within the limit, and its objective and gap are those of the plan that
    fits.

    Raises:
        as `solve`; InfeasibleLimitError, too, where what has to be fast cannot be packed into the limit.
    """
    return next(sweep_and_pack(graph, profile, links, optimizer, [limit], options))


def sweep_and_pack(
    graph: Graph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limits: Sequence[Limit],
    options: SolveOptions | None = None,
) -> Iterator[tuple[Plan, Layout]]:
    """As `solve_and_pack` for each limit, from plans that share one model, within `options.sweep_s` for all of them.

    Raises:
        as `solve_and_pack`.
    """
    packing, options, begun = StepPacking(graph), options or SolveOptions(), time.perf_counter()
    solving = replace(options, sweep_s=_SOLVING * options.sweep_s)
    plans = sweep(graph, profile, links, optimizer, limits, solving, packing)
    allowance = Allowance(options.sweep_s, len(limits), begun)
    for first in plans:
        allowed_s = allowance.next_s()
        packing.end_s = time.perf_counter() + allowed_s
        again = replace(options, sweep_s=allowed_s)
        fitted = _rival if first.optimizer in RUN_RIVALS else _fitted
        yield fitted(graph, profile, links, first, again, packing)


def _fitted(
    graph: Graph, profile: Profile, links: Links, first: Plan, options: SolveOptions, packing: StepPacking
) -> tuple[Plan, Layout]:
    """The first plan if its offsets keep the limit, else one for a smaller limit whose offsets do.

    A plan within the asked gap of the smaller limit's bound may be outside that of the first; it is then searched once
    more, closer.
    """
    plan, layout = _packed(graph, first, packing)
    attempts, margin, limit_bytes = first.attempts_s, _FIRST_MARGIN, first.dram_limit_bytes
    while not fits(first, layout):
        if not limit_bytes:
            raise _unpackable(first, layout, "no limit is smaller")
        excess, limit_bytes = layout.fast_bytes - first.dram_limit_bytes, _less(first.dram_limit_bytes, margin)
        log.info("packing needs %d bytes more than the limit; solving again for %d bytes", excess, limit_bytes)
        try:
            plan = solve(graph, profile, links, first.optimizer, Limit(size_bytes=limit_bytes), options, packing)
        except InfeasibleLimitError as error:
            raise _unpackable(first, layout, f"a smaller limit is infeasible: {error}") from None
        plan, layout = _packed(graph, plan, packing)
        attempts += plan.attempts_s
        margin *= _FURTHER
    asked = _as_asked(first, plan, attempts, options.gap)
    if asked.status is Status.ABOVE_GAP and (closer := _closer_gap(first, plan, options.gap)) > 0:
        log.info("the plan that fits is %.3g %% from the bound; solving again for less", 100 * asked.gap)
        limit = Limit(size_bytes=limit_bytes)
        again = solve(graph, profile, links, first.optimizer, limit, replace(options, gap=closer), packing)
        attempts += again.attempts_s
        again, packed = _packed(graph, again, packing)
        if again.objective_us < plan.objective_us and fits(first, packed):
            plan, layout = again, packed
        asked = _as_asked(first, plan, attempts, options.gap)
    return asked, layout


def _rival(
    graph: Graph, profile: Profile, links: Links, first: Plan, options: SolveOptions, packing: StepPacking
) -> tuple[Plan, Layout]:
    """The first plan, whether or not its offsets keep the limit; of paging, one that has less memory, if its do.

    Paging counts bytes, and knows of no holes between them; an allocator keeps some memory back for these.
    """
    packing.end_s = min(packing.end_s, time.perf_counter() + options.time_limit_s)
    plan, layout = kept = _packed(graph, first, packing)
    attempts, margin = first.attempts_s, _PAGING_MARGIN
    while first.optimizer == LRU_PAGING and not fits(first, layout):
        if margin >= 1:
            return kept
        limit = Limit(size_bytes=_less(first.dram_limit_bytes, margin))
        plan, layout = _packed(graph, solve(graph, profile, links, first.optimizer, limit, options, packing), packing)
        attempts += plan.attempts_s
        margin *= _FURTHER
    return _as_asked(first, plan, attempts, options.gap), layout


def _less(limit_bytes: int, share: float) -> int:
    return max(0, int(limit_bytes * (1 - share))) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def _packed(graph: Graph, plan: Plan, packing: StepPacking) -> tuple[Plan, Layout]:
    """The plan with its offsets."""
    layout = pack(graph, plan, packing.place)
    return (plan if plan.one_pool else replace(plan, offsets=layout.offsets)), layout


def _closer_gap(first: Plan, plan: Plan, asked: float) -> float:
    """The gap to its own bound at which `plan` would be within the asked one of the first attempt's.

    0 or less where no search at the smaller limit could prove it, or the one that was made did not end well.
    """
    if plan.status not in {Status.OPTIMAL, Status.WITHIN_GAP} or first.bound_us <= 0:
        return 0.0
    return 1 - (1 - asked) * plan.bound_us / first.bound_us


def _as_asked(first: Plan, plan: Plan, attempts: tuple[tuple[float, float], ...], target: float) -> Plan:
    if len(attempts) == len(first.attempts_s):
        return plan
    if first.status is Status.NOT_OPTIMIZED:
        return replace(plan, limit=first.limit, dram_limit_bytes=first.dram_limit_bytes, attempts_s=attempts)
    asked = replace(
        plan,
        limit=first.limit,
        dram_limit_bytes=first.dram_limit_bytes,
        bound_us=min(first.bound_us, plan.objective_us),
        certificate=first.certificate,
        solver_bound_us=first.solver_bound_us,
        attempts_s=attempts,
        build_s=sum(build for build, _ in attempts),
        solve_s=sum(solve for _, solve in attempts),
    )
    if asked.gap > target:
        timed_out = plan.status is Status.TIME_LIMIT
        return replace(asked, status=Status.TIME_LIMIT if timed_out else Status.ABOVE_GAP)
    return replace(asked, status=Status.OPTIMAL if asked.gap == 0 else Status.WITHIN_GAP)


def _unpackable(first: Plan, layout: Layout, why: str) -> InfeasibleLimitError:
    return InfeasibleLimitError(
        f"limit {first.limit}: what has to be fast fits {first.dram_limit_bytes} bytes, but its offsets need "
        f"{layout.fast_bytes}, and {why}; give a limit of at least {layout.fast_bytes} bytes",
        layout.fast_bytes,
    )
