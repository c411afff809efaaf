"""Plans by an optimizer's name, plans whose offsets fit their limit, and the integer program as a file."""

from __future__ import annotations

import gzip
import importlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyomo.core as pyo

from autotm.layout.addresses import StepPacking
from autotm.layout.packing import layout_of
from autotm.model.errors import BadInputError, InfeasibleLimitError, unknown_name
from autotm.model.files import write_atomically
from autotm.model.graph import ALIGNMENT_BYTES, CountedGraph
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.plan import LRU_PAGING, RUN_RIVALS, Plan, Status
from autotm.model.profile import Profile
from autotm.model.program import Layout
from autotm.solve.highs import Matrix, mps_of
from autotm.solve.optimizer import Optimizer
from autotm.solve.options import OPTIMIZERS, SolveOptions, TimeBudget
from autotm.solve.problem import Problem


def solve(
    graph: CountedGraph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limit: Limit,
    options: SolveOptions | None = None,
) -> Plan:
    """Place the step's tensors within the limit.

    Args:
        graph: the step.
        profile: all-fast and one-slow times of its kernels.
        links: copy times between the tiers.
        optimizer: one of `optimizer_names()`.
        limit: the fast-memory budget.
        options: gap, time limit, seed, and restrictions of the machine.

    Returns:
        A plan that keeps the limit, with its proven bound and gap.

    Raises:
        BadInputError: unknown optimizer, or one that needs slow operands, which the machine's kernels cannot use.
        InfeasibleLimitError: the restrictions need more fast memory than the limit.
        AutotmError: the profile lacks a time, or HiGHS failed.
    """
    return optimizer_named(optimizer).solve(Problem(graph, profile, links, limit, options or SolveOptions()))


def optimizer_named(name: str) -> Optimizer:
    """Return the optimizer with the name that users ask for.

    Raises:
        BadInputError: there is none.
    """
    if name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)
    module, _, class_name = OPTIMIZERS[name].partition(":")
    optimizer: Optimizer = getattr(importlib.import_module(module), class_name)()
    return optimizer


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
    """Return whether the fast pool keeps the limit of `plan`; a ratio 0:n means no limit and allows fragmentation."""
    return layout.fast_bytes <= plan.dram_limit_bytes or plan.limit.is_unlimited


def solve_and_pack(
    graph: CountedGraph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limit: Limit,
    options: SolveOptions | None = None,
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
    graph: CountedGraph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limits: Sequence[Limit],
    options: SolveOptions | None = None,
) -> Iterator[tuple[Plan, Layout]]:
    """Solve and pack for each limit, from plans that share one model, within `options.sweep_s` for all of them.

    Before offsets are considered, no plan is slower than one for less fast memory.

    Raises:
        as `solve_and_pack`.
    """
    # The search gives up sets of stays that do not fit together while that is worth its time; where the offsets still
    # need more than the limit, a smaller limit is solved for.
    packing, options, begun = StepPacking(graph), options or SolveOptions(), time.perf_counter()
    solving = replace(options, sweep_s=_SOLVING * options.sweep_s)
    problem, method = Problem(graph, profile, links, limits[0], solving, packing), optimizer_named(optimizer)
    plans = method.sweep(problem, limits)
    budget = TimeBudget(options.sweep_s, len(limits), begun)
    fitted = _rival if optimizer in RUN_RIVALS else _fitted
    for first in plans:
        allowed_s = budget.next_s()
        packing.end_s = time.perf_counter() + allowed_s
        yield fitted(method, problem.at(first.limit, replace(options, sweep_s=allowed_s)), packing, first)


def _fitted(method: Optimizer, problem: Problem, packing: StepPacking, first: Plan) -> tuple[Plan, Layout]:
    """Return the first plan if its offsets keep the limit, else one for a smaller limit whose offsets do.

    A plan within the asked gap of the smaller limit's bound may be outside that of the first; it is then searched once
    more, closer.
    """
    plan, layout = _packed(problem.graph, first, packing)
    attempts, margin, limit_bytes = first.attempts_s, _FIRST_MARGIN, first.dram_limit_bytes
    while not fits(first, layout):
        if not limit_bytes:
            raise _unpackable(first, layout, "no limit is smaller")
        excess, limit_bytes = layout.fast_bytes - first.dram_limit_bytes, _less(first.dram_limit_bytes, margin)
        log.info("packing needs %d bytes more than the limit; solving again for %d bytes", excess, limit_bytes)
        try:
            plan = method.solve(problem.at(Limit(size_bytes=limit_bytes)))
        except InfeasibleLimitError as error:
            raise _unpackable(first, layout, f"a smaller limit is infeasible: {error}") from None
        plan, layout = _packed(problem.graph, plan, packing)
        attempts += plan.attempts_s
        margin *= _FURTHER
    options = problem.options
    asked = _as_asked(first, plan, attempts, options.gap)
    # The gap to its own bound at which a plan would be within the asked one of the first attempt's. None is positive
    # where no search at the smaller limit could prove it.
    closer = 1 - (1 - options.gap) * plan.bound_us / first.bound_us if first.bound_us > 0 else 0.0
    has_ended_well = plan.status in {Status.OPTIMAL, Status.WITHIN_GAP}
    if asked.status is Status.ABOVE_GAP and has_ended_well and closer > 0:
        log.info("the plan that fits is %.3g %% from the bound; solving again for less", 100 * asked.gap)
        again = method.solve(problem.at(Limit(size_bytes=limit_bytes), replace(options, gap=closer)))
        attempts += again.attempts_s
        again, packed = _packed(problem.graph, again, packing)
        if again.objective_us < plan.objective_us and fits(first, packed):
            plan, layout = again, packed
        asked = _as_asked(first, plan, attempts, options.gap)
    return asked, layout


def _rival(method: Optimizer, problem: Problem, packing: StepPacking, first: Plan) -> tuple[Plan, Layout]:
    """Return the first plan, whether or not its offsets keep the limit; of paging, one that has less memory, if its do.

    Paging counts bytes, and knows of no holes between them; an allocator keeps some memory back for these.
    """
    packing.end_s = min(packing.end_s, time.perf_counter() + problem.options.time_limit_s)
    plan, layout = with_holes = _packed(problem.graph, first, packing)
    attempts, margin = first.attempts_s, _PAGING_MARGIN
    while first.optimizer == LRU_PAGING and not fits(first, layout):
        if margin >= 1:
            return with_holes
        limit = Limit(size_bytes=_less(first.dram_limit_bytes, margin))
        plan, layout = _packed(problem.graph, method.solve(problem.at(limit)), packing)
        attempts += plan.attempts_s
        margin *= _FURTHER
    return _as_asked(first, plan, attempts, problem.options.gap), layout


def _less(limit_bytes: int, share: float) -> int:
    return max(0, int(limit_bytes * (1 - share))) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def _packed(graph: CountedGraph, plan: Plan, packing: StepPacking) -> tuple[Plan, Layout]:
    """Return the plan with its offsets."""
    layout = layout_of(graph, plan, packing.place)
    return (plan if plan.one_pool else replace(plan, offsets=layout.offsets)), layout


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
        solver_bound_us=None if first.solver_bound_us is None else min(first.solver_bound_us, plan.objective_us),
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
        f"limit {first.limit}: tensors that must be fast fit {first.dram_limit_bytes} bytes; with fragmentation their "
        f"offsets need {layout.fast_bytes}, and {why}; give a limit of at least {layout.fast_bytes} bytes",
        layout.fast_bytes,
    )


@dataclass(frozen=True)
class ProgramSize:
    """Size of an integer program, and the microseconds of a unit of its objective; zeros where nothing is to solve."""

    columns: int
    rows: int
    nonzeros: int
    us_per_unit: float


def export(
    graph: CountedGraph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limit: Limit,
    options: SolveOptions | None = None,
    path: Path | None = None,
) -> ProgramSize:
    """Write the program that `solve` would solve for these arguments as MPS, gzipped where `path` ends in `.gz`.

    Returns its size; without `path`, only that.

    Rows and columns have the names of `docs/formulation.md`, with flows and gadgets counted from 0. The objective,
    constant included, is in units of `us_per_unit`.

    Raises:
        as `solve`; BadInputError where there is no program to write.
    """
    problem = Problem(graph, profile, links, limit, options or SolveOptions())
    model = optimizer_named(optimizer).program(problem)
    if model is None:
        if path is not None:
            raise BadInputError(
                f"'{optimizer}' at limit {limit} needs no integer program: everything is decided without one; "
                "ask for a tighter limit, or an optimizer that searches (static, synchronous)"
            )
        return ProgramSize(0, 0, 0, 0.0)
    matrix = Matrix(model)
    lp = matrix.program()
    if path is not None:
        text = mps_of(matrix, lp)
        content = gzip.compress(text, mtime=0) if path.suffix == ".gz" else text
        write_atomically(path, lambda temporary: temporary.write_bytes(content))
    nonzeros = len(lp.a_matrix_.value_)
    return ProgramSize(len(matrix.variables), len(matrix.constraints), nonzeros, pyo.value(model.us_per_unit))
