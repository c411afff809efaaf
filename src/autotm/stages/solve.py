"""The stages that place tensors: files in, plans out, and what the user is told about them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotm.check import check_plan
from autotm.model.files import BadInputError, load, save
from autotm.model.machine import Machine, provenance
from autotm.model.measurement import Links, Profile, Sensitivity, read_profile
from autotm.model.plan import Plan, Status
from autotm.model.step import Graph, Limit, counting
from autotm.model.study import Paths, SolveConfig
from autotm.stages.context import Context
from autotm.study.setup import CACHED

if TYPE_CHECKING:
    from autotm.solve import Potential, ProgramSize, SolveOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Given:
    """The files that a placement is made from."""

    graph: Path
    profile: Path
    links: Path

    @classmethod
    def of(cls, paths: Paths) -> Given:
        """The files of a network."""
        return cls(paths.graph, paths.profile, paths.links)


def ilp_solve_stage(
    context: Context, optimizer: str, limit: Limit, config: SolveConfig, given: Given, *, plan: Path
) -> None:
    """Place the tensors so that their offsets keep the limit; only what the independent checker accepts is written."""
    sweep_stage(context, optimizer, {limit: plan}, config, given)


def sweep_stage(
    context: Context, optimizer: str, plans: Mapping[Limit, Path], config: SolveConfig, given: Given
) -> None:
    """What `ilp_solve_stage` does, for each limit; each plan is written as soon as its offsets are there."""
    if optimizer == CACHED:
        _require_real_cache(context.machine, plans)
    came_from = provenance(context.machine, context.seed, options=config.model_dump())
    step, times, copies = _read(context, given)
    found = place(step, times, copies, optimizer, list(plans), _options(context, config))
    for path, placed in zip(plans.values(), found, strict=True):
        save(path, "plan", placed, came_from)
        _tell_outcome(placed, config)


def place(
    step: Graph, times: Profile, copies: Links, optimizer: str, limits: Sequence[Limit], options: SolveOptions
) -> Iterator[Plan]:
    """Plans for the limits, each with offsets that keep its limit and accepted by the independent checker.

    Raises:
        as `sweep_and_pack`; IllegalPlanError, which would be a fault of ours.
    """
    from autotm.solve import sweep_and_pack  # messages and help must not wait for the solver

    for placed, _ in sweep_and_pack(step, times, copies, optimizer, limits, options):
        check_plan(step, times, copies, placed)
        yield placed


def _require_real_cache(machine: Machine, limits: Iterable[Limit]) -> None:
    """Refuse limits that are not the size of the machine's real cache, where that is known.

    Raises:
        BadInputError: names limit, machine and the one limit there is.
    """
    real = machine.cache_bytes
    for limit in limits:
        if real is not None and limit != Limit(size_bytes=real):
            raise BadInputError(
                f"{CACHED}, limit {limit}: machine {machine.name} is in memory mode, its cache has {real} bytes "
                f'whatever is asked; ask for limit "{Limit(size_bytes=real)}"'
            )


def export_program_stage(
    context: Context, optimizer: str, limit: Limit, config: SolveConfig, given: Given, *, program: Path
) -> ProgramSize:
    """Write the integer program that `ilp_solve_stage` solves first, as MPS."""
    from autotm.solve import export

    return export(*_read(context, given), optimizer, limit, _options(context, config), program)


def potential_stage(context: Context, config: SolveConfig, given: Given, *, plan: Path) -> Potential:
    """What recomputation and another order of kernels could save at most, against a plan that moves tensors."""
    from autotm.solve import Problem, potential

    placed, (step, times, copies) = load(plan, "plan", Plan), _read(context, given)
    check_plan(step, times, copies, placed)
    return potential(Problem(step, times, copies, Limit.parse(placed.limit), _options(context, config)), placed)


def sensitivity_stage(
    context: Context, config: SolveConfig, draws: int, given: Given, *, plans: Sequence[Path], sensitivity: Path
) -> Sensitivity:
    """Price plans for one limit, and make them anew, under resampled kernel times; every draw is written."""
    from autotm.study.noise import measure_sensitivity

    came_from = provenance(context.machine, context.seed, options=config.model_dump(), draws=draws)
    step, times, copies = _read(context, given)
    placed = [load(plan, "plan", Plan) for plan in plans]
    for plan in placed:
        check_plan(step, times, copies, plan)
    found = measure_sensitivity(step, times, copies, placed, _options(context, config), draws)
    save(sensitivity, "sensitivity", found, came_from)
    return found


def _read(context: Context, given: Given) -> tuple[Graph, Profile, Links]:
    step = counting(load(given.graph, "graph", Graph), context.counts)
    return step, read_profile(given.profile), load(given.links, "links", Links)


def _options(context: Context, config: SolveConfig) -> SolveOptions:
    from autotm.solve import SolveOptions

    return SolveOptions(**config.model_dump(), seed=context.seed)


def _tell_outcome(plan: Plan, config: SolveConfig) -> None:
    """Say how good the plan is, and what to change where it is not as good as asked."""
    what, gap = f"{plan.optimizer}, limit {plan.limit}", f"{100 * plan.gap:.3g} % (asked: {100 * config.gap:.3g} %)"
    legal = "the plan is legal, and at most that much slower than the best"
    if plan.solver_gap is not None:
        legal += f" (at most {100 * plan.solver_gap:.3g} %, the solver claims, which nothing here can check)"
    if plan.status is Status.TIME_LIMIT:
        log.warning(
            "%s: the time limit of %g s ended the search at a gap of %s; %s; for a better one raise solve.time_limit_s",
            what,
            config.time_limit_s,
            gap,
            legal,
        )
    elif plan.status is Status.ABOVE_GAP:
        log.warning("%s: a gap of %s is left; %s; more fast memory or a wider solve.gap ends this", what, gap, legal)
    elif plan.status is Status.NOT_OPTIMIZED:
        log.info("%s: %.6g us predicted; nothing was optimized", what, plan.objective_us)
    else:
        log.info("%s: %.6g us predicted, proven within %s of the best", what, plan.objective_us, gap)
