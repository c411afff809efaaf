"""Stages that place tensors for a limit, assign addresses to a plan, and check both."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.model.config import SolveConfig
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.files import load, require_writable, save
from autotm.model.graph import Graph
from autotm.model.kernel_studies import Sensitivity
from autotm.model.limit import Limit, fixed_bytes
from autotm.model.links import Links
from autotm.model.machine import Machine
from autotm.model.paths import Paths
from autotm.model.plan import Plan, Refusal, Status
from autotm.model.profile import Profile
from autotm.model.program import Layout, Program
from autotm.model.provenance import provenance
from autotm.stages.context import Context, PlacementInputs
from autotm.study.setup import CACHED

if TYPE_CHECKING:
    from autotm.solve.options import SolveOptions
    from autotm.solve.placing import ProgramSize
    from autotm.solve.potential import Potential


log = logging.getLogger(__name__)

SERIES = ("0:1", "1:9", "1:3", "2:3", "1:1", "2:1", "3:1", "4:1", "6:1", "8:1", "12:1", "16:1", "32:1", "1:0")
"""Limits from all fast to none at all: close together where slow-downs begin to grow."""


def ilp_solve_stage(
    context: Context, optimizer: str, limit: Limit, config: SolveConfig, inputs: PlacementInputs, *, plan: Path
) -> None:
    """Place the tensors so that their offsets keep the limit; only what the independent checker accepts is written."""
    if optimizer == CACHED:
        require_real_cache(context.machine, [limit])
    came_from = provenance(context.machine, context.seed, options=config.model_dump())
    step, times, copies = inputs.read(context.counts)
    require_writable(plan)
    ((placed, _),) = place(step, times, copies, optimizer, [limit], options_of(context, config))
    save(plan, "plan", placed, came_from)
    tell_outcome(placed, config)


def place(
    step: Graph, times: Profile, copies: Links, optimizer: str, limits: Sequence[Limit], options: SolveOptions
) -> Iterator[tuple[Plan, Layout]]:
    """Yield a plan and its layout for each limit; the independent checker has accepted each plan.

    Raises:
        as `sweep_and_pack`; IllegalPlanError, which would be a bug of autotm.
    """
    from autotm.solve.placing import sweep_and_pack  # messages and help must not wait for the solver

    for placed, layout in sweep_and_pack(step, times, copies, optimizer, limits, options):
        check_plan(step, times, copies, placed, fast_operands_only=options.fast_operands_only)
        yield placed, layout


def place_each(
    step: Graph, times: Profile, copies: Links, optimizer: str, limits: Sequence[Limit] | None, options: SolveOptions
) -> Iterator[tuple[Plan, Layout] | Refusal]:
    """Yield a refusal with its reason for each limit that no placement keeps, then as `place` for the others.

    Without `limits`, place for the feasible ones of `SERIES`, from all fast down, and last, where some are infeasible,
    for the smallest feasible limit.

    Raises:
        as `place`, but for infeasible limits.
    """
    peak_bytes, io_bytes = step.peak_live_bytes, fixed_bytes(step)
    sizes: dict[Limit, int] = {}
    for limit in map(Limit.parse, SERIES) if limits is None else limits:
        try:
            sizes[limit] = limit.fast_bytes(peak_bytes, io_bytes)
        except InfeasibleLimitError as error:
            yield Refusal(limit, error.smallest_bytes, str(error))
    while sizes:
        try:
            for plan, layout in place(step, times, copies, optimizer, list(sizes), options):
                del sizes[plan.limit]
                yield plan, layout
        except InfeasibleLimitError as error:
            smallest = error.smallest_bytes
            short = [limit for limit, size in sizes.items() if smallest is None or size < smallest]
            if smallest is None or not short:
                raise
            for limit in short:
                del sizes[limit]
                why = f"no {optimizer} placement keeps limit {limit}; the smallest feasible limit is {smallest} bytes"
                if limits is not None:
                    yield Refusal(limit, smallest, why)
            if limits is None and smallest not in sizes.values():
                sizes[Limit(size_bytes=smallest)] = smallest


def require_real_cache(machine: Machine, limits: Sequence[Limit]) -> None:
    """Refuse limits that are not the size of the machine's real cache, where that is known.

    Raises:
        BadInputError: a limit differs; the text names limit, machine and the only feasible limit.
    """
    real = machine.cache_bytes
    for limit in limits:
        if real is not None and limit != Limit(size_bytes=real):
            raise BadInputError(
                f"{CACHED}, limit {limit}: machine {machine.name} is in memory mode, its cache has {real} bytes "
                f'whatever is asked; ask for limit "{Limit(size_bytes=real)}"'
            )


def export_program_stage(
    context: Context, optimizer: str, limit: Limit, config: SolveConfig, inputs: PlacementInputs, *, program: Path
) -> ProgramSize:
    """Write the integer program that `ilp_solve_stage` solves first, as MPS."""
    from autotm.solve.placing import export

    return export(*inputs.read(context.counts), optimizer, limit, options_of(context, config), program)


def potential_stage(context: Context, config: SolveConfig, paths: Paths, limit: Limit) -> Potential:
    """Bound the time that recomputation and a new order of kernels could save on the synchronous plan for a limit."""
    from autotm.solve.potential import potential
    from autotm.solve.problem import Problem

    placed = load(paths.plan("synchronous", limit), "plan", Plan)
    step, times, copies = PlacementInputs(paths).read(context.counts)
    check_plan(step, times, copies, placed, fast_operands_only=context.machine.fast_operands_only)
    return potential(Problem(step, times, copies, placed.limit, options_of(context, config)), placed)


def sensitivity_stage(
    context: Context, config: SolveConfig, draws: int, paths: Paths, optimizers: Sequence[str], limit: Limit
) -> Sensitivity:
    """Price plans for one limit, and make them anew, under resampled kernel times; every draw is written."""
    from autotm.study.sensitivity import measure_sensitivity

    came_from = provenance(context.machine, context.seed, options=config.model_dump(), draws=draws)
    step, times, copies = PlacementInputs(paths).read(context.counts)
    placed = [load(paths.plan(optimizer, limit), "plan", Plan) for optimizer in optimizers]
    for plan in placed:
        check_plan(step, times, copies, plan, fast_operands_only=context.machine.fast_operands_only)
    require_writable(paths.sensitivity(limit))
    sensitivity = measure_sensitivity(step, times, copies, placed, options_of(context, config), draws)
    save(paths.sensitivity(limit), "sensitivity", sensitivity, came_from)
    return sensitivity


def options_of(context: Context, config: SolveConfig) -> SolveOptions:
    """Return the solver's options, from the config, the random seed and the needs of the machine's kernels."""
    from autotm.solve.options import SolveOptions

    fast_only = context.machine.fast_operands_only
    return SolveOptions(**config.model_dump(), seed=context.seed, fast_operands_only=fast_only)


def tell_outcome(plan: Plan, config: SolveConfig) -> None:
    """Log how good the plan is, and which option to change where it misses the requested gap."""
    name, gap = f"{plan.optimizer}, limit {plan.limit}", f"{100 * plan.gap:.3g} % (asked: {100 * config.gap:.3g} %)"
    legal = "the plan is legal, and at most that much slower than the best"
    if plan.solver_gap is not None:
        legal += f" (at most {100 * plan.solver_gap:.3g} %, the solver claims, which nothing here can check)"
    if plan.status is Status.TIME_LIMIT:
        log.warning(
            "%s: the time limit of %g s ended the search at a gap of %s; %s; for a better one raise solve.time_limit_s",
            name,
            config.time_limit_s,
            gap,
            legal,
        )
    elif plan.status is Status.ABOVE_GAP:
        log.warning("%s: a gap of %s is left; %s; more fast memory or a wider solve.gap ends this", name, gap, legal)
    elif plan.status is Status.NOT_OPTIMIZED:
        log.info("%s: %.6g us predicted; nothing was optimized", name, plan.objective_us)
        if plan.paged is not None:
            log.info("%s: the placement of pages by Linux is %s", name, plan.paged.placed_by)
            if not plan.paged.is_steady:
                log.warning("%s: steps of %d simulated ones still differ by more than 1 %%", name, plan.paged.steps)
    else:
        log.info("%s: %.6g us predicted, proven within %s of the best", name, plan.objective_us, gap)


def compile_stage(context: Context, inputs: PlacementInputs, *, plan: Path, program: Path) -> None:
    """Give every stay an address and write the steps; check plan and program, whatever the origin of the plan."""
    came_from = provenance(context.machine, context.seed, plan_file=str(plan))
    placed = load(plan, "plan", Plan)
    step = inputs.step(placed.counts)
    check_plan(step, inputs.times, inputs.copies, placed, fast_operands_only=context.machine.fast_operands_only)
    compiled = program_of(step, placed)
    save(program, "program", compiled, came_from)
    log.info(
        "%d stays in pools of %.6g MB fast (limit %s) and %.6g MB slow memory; %d steps",
        *(len(placed.stays), compiled.fast_bytes / 1e6, placed.limit, compiled.slow_bytes / 1e6, len(compiled.steps)),
    )


def program_of(step: Graph, plan: Plan, layout: Layout | None = None) -> Program:
    """Compile a checked plan into a program and check that too; `layout` is the plan's, computed if None.

    Raises:
        IllegalPlanError: as `check_program`; a bug of autotm.
    """
    from autotm.layout.compile import compile_program
    from autotm.layout.packing import layout_of

    compiled = compile_program(step, plan, layout or layout_of(step, plan))
    check_program(step, plan, compiled)
    return compiled


def check_stage(context: Context, paths: Paths, optimizer: str, limit: Limit) -> None:
    """Check that plan and program are legal on the machine.

    Raises:
        IllegalPlanError: they are not; the text names the broken rule, and where.
    """
    inputs, placed = PlacementInputs(paths), load(paths.plan(optimizer, limit), "plan", Plan)
    step = inputs.step(placed.counts)
    check_plan(step, inputs.times, inputs.copies, placed, fast_operands_only=context.machine.fast_operands_only)
    check_program(step, placed, load(paths.program(optimizer, limit), "program", Program))
