"""A plan whose offsets fit its limit: where packing needs more than the limit, the limit is shaved and solved again.

Where the same tensors come back at every smaller limit, the one of those in the way that is cheapest to have in slow
memory is put there, and the limit that was asked is solved again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotm.layout.pack import pack
from autotm.model.errors import AutotmError, InfeasibleLimitError
from autotm.model.graph import ALIGNMENT_BYTES, Graph, Role
from autotm.model.limit import Limit
from autotm.model.link import Links
from autotm.model.plan import Plan, Status
from autotm.model.profile import Profile
from autotm.model.program import Layout
from autotm.model.tier import Tier
from autotm.solve import SolveOptions, solve, sweep

log = logging.getLogger(__name__)

_ATTEMPTS = 5
_FIRST_SHAVE = 0.0005
"""Least share of the limit that the first shave takes; each further one takes twice as much, up to 0.8 %.

The excess alone is often a few hundred bytes: taking no more leads back to the same tensors and the same offsets.
"""
_MOST_BANISHED = 24
"""Tensors put into slow memory for the sake of the offsets; two or three were enough wherever any were needed."""


def fits(plan: Plan, layout: Layout) -> bool:
    """Whether the fast pool keeps the limit of `plan`; a ratio 0:n means no limit and allows fragmentation."""
    return layout.fast_bytes <= plan.dram_limit_bytes or is_unlimited(plan)


def is_unlimited(plan: Plan) -> bool:
    """Whether the limit is a ratio 0:n: everything may be fast."""
    return Limit.parse(plan.limit).slow == 0


def solve_and_pack(
    graph: Graph, profile: Profile, links: Links, optimizer: str, limit: Limit, options: SolveOptions | None = None
) -> tuple[Plan, Layout]:
    """Solve, pack, and where the offsets exceed the limit solve again, as this module says.

    The plan returned is one for the limit that was asked: its bound is that of the first attempt, which holds for every
    placement within the limit, and its objective and gap are those of the plan that fits.

    Raises:
        as `solve`; AutotmError when no attempt fits.
    """
    return fitted(graph, profile, links, solve(graph, profile, links, optimizer, limit, options), options)


def sweep_and_pack(
    graph: Graph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limits: Sequence[Limit],
    options: SolveOptions | None = None,
) -> Iterator[tuple[Plan, Layout]]:
    """As `solve_and_pack` for each limit, from plans that share one model.

    Raises:
        as `solve_and_pack`.
    """
    for first in sweep(graph, profile, links, optimizer, limits, options):
        yield fitted(graph, profile, links, first, options)


def fitted(
    graph: Graph, profile: Profile, links: Links, first: Plan, options: SolveOptions | None = None
) -> tuple[Plan, Layout]:
    """The first plan if its offsets keep the limit, else one for a smaller limit whose offsets do.

    A plan within the asked gap of the smaller limit's bound may be outside that of the first; it is then searched once
    more, closer.

    Raises:
        as `solve_and_pack`.
    """
    plan, layout, limit_bytes = first, _pack(graph, first), first.dram_limit_bytes
    attempts, options = first.attempts_s, options or SolveOptions()
    for attempt in range(_ATTEMPTS + _MOST_BANISHED):
        if fits(first, layout):
            break
        if attempt < _ATTEMPTS:
            excess = layout.fast_bytes - first.dram_limit_bytes
            least = int(first.dram_limit_bytes * _FIRST_SHAVE * 2**attempt)
            shaved = min(limit_bytes - excess, first.dram_limit_bytes - least)
            limit_bytes = max(0, shaved) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
            log.info("packing needs %d bytes more than the limit; solving again for %d bytes", excess, limit_bytes)
        else:
            banished = _least_missed(graph, layout, first.dram_limit_bytes, options)
            if banished is None:
                break
            limit_bytes = first.dram_limit_bytes
            options = replace(options, fixed={**options.fixed, banished: Tier.PMEM})
            log.info("packing needs more than every smaller limit; solving again with '%s' in slow memory", banished)
        try:
            plan = solve(graph, profile, links, first.optimizer, Limit(size_bytes=limit_bytes), options)
        except InfeasibleLimitError as error:
            raise _unpackable(first, layout, f"a smaller limit is infeasible: {error}") from None
        layout = _pack(graph, plan)
        attempts += plan.attempts_s
    if not fits(first, layout):
        raise _unpackable(first, layout, "neither smaller limits nor fewer fast tensors helped")
    asked = _as_asked(first, plan, attempts, options.gap)
    if asked.status is Status.ABOVE_GAP and (closer := _closer_gap(first, plan, options.gap)) > 0:
        log.info("the plan that fits is %.3g %% from the bound; solving again for less", 100 * asked.gap)
        limit = Limit(size_bytes=limit_bytes)
        again = solve(graph, profile, links, first.optimizer, limit, replace(options, gap=closer))
        attempts += again.attempts_s
        packed = _pack(graph, again)
        if again.objective_us < plan.objective_us and fits(first, packed):
            plan, layout = again, packed
        asked = _as_asked(first, plan, attempts, options.gap)
    return asked, layout


def _closer_gap(first: Plan, plan: Plan, asked: float) -> float:
    """The gap to its own bound at which `plan` would be within the asked one of the first attempt's.

    0 or less where no search at the smaller limit could prove it, or the one that was made did not end well.
    """
    if plan.status not in {Status.OPTIMAL, Status.WITHIN_GAP} or first.bound_us <= 0:
        return 0.0
    return 1 - (1 - asked) * plan.bound_us / first.bound_us


def _least_missed(graph: Graph, layout: Layout, limit_bytes: int, options: SolveOptions) -> str | None:
    """Of the fast tensors that share time with the highest one, and take as much as is short, that with least traffic.

    Traffic is bytes times users: what slow memory would have to bear. None where no such tensor may be slow.
    """
    if options.fast_operands_only:
        return None
    # Workspaces of implementations are no tensors of the graph, and come and go with their kernels.
    fast = [
        (offset + graph.by_name[stay.tensor].allocated_bytes, stay)
        for stay, offset in zip(layout.stays, layout.offsets, strict=True)
        if stay.tier is Tier.DRAM and stay.tensor in graph.by_name
    ]
    if not fast:
        return None
    top, highest = max(fast, key=lambda found: found[0])
    short = top - limit_bytes
    movable = {tensor.name for tensor in graph.movable if tensor.role is not Role.WORKSPACE and tensor.held is None}
    near = {stay.tensor for _, stay in fast if stay.start < highest.end and highest.start < stay.end} & movable
    tensors = [graph.by_name[name] for name in sorted(near)]
    enough = [tensor for tensor in tensors if tensor.allocated_bytes >= short] or tensors
    if not enough:
        return None
    return min(enough, key=lambda tensor: tensor.allocated_bytes * len(tensor.users)).name


def _pack(graph: Graph, plan: Plan) -> Layout:
    return pack(graph.computed_by(plan.implementations), plan)


def _as_asked(first: Plan, plan: Plan, attempts: tuple[tuple[float, float], ...], target: float) -> Plan:
    if plan is first:
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


def _unpackable(first: Plan, layout: Layout, why: str) -> AutotmError:
    return AutotmError(
        f"limit {first.limit}: the plan fits {first.dram_limit_bytes} bytes, but its offsets need {layout.fast_bytes}, "
        f"and {why}; give a limit of at least {layout.fast_bytes} bytes"
    )
