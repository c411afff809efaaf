"""A sweep over limits on fast memory, from a network to a table: what is missing is made first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotm.model.config import MODELLED
from autotm.model.errors import BadInputError
from autotm.model.files import read_json, save
from autotm.model.limit import Limit
from autotm.model.machine import require_runnable
from autotm.model.plan import Refusal
from autotm.model.provenance import provenance
from autotm.model.record import Record
from autotm.stages.context import Context, PlacementInputs
from autotm.stages.profile import calibrate_stage, kernel_profile_stage
from autotm.stages.run import runs_of_study
from autotm.stages.solve import options_of, place_each, program_of, require_real_cache, tell_outcome
from autotm.study.setup import CACHED, Study, require_compiler, require_optimizer

if TYPE_CHECKING:
    from autotm.study.sweep import SweepResult


log = logging.getLogger(__name__)

SWEEP_S = 120.0
"""Seconds for the placements of a sweep, if the user does not say."""


def sweep_of_study(
    study: Study,
    context: Context,
    network: str,
    optimizer: str,
    limits: Sequence[Limit] | None,
    *,
    runs: bool,
    sweep_s: float = SWEEP_S,
) -> SweepResult[Path]:
    """Place a network of the study at each limit, run what was placed if asked, and put it together.

    Plans, programs and records are the files of the pipeline; the result's placements are the plans' paths. Copies and
    kernels are measured first where their files are not there, or are of other sizes or another version of one's own
    file.

    Args:
        study: the study.
        context: of its stages.
        network: of the zoo or of one's own.
        optimizer: that places.
        limits: None for a series from all fast down to the least that can be kept.
        runs: whether each program is verified and timed.
        sweep_s: seconds for the placements of all limits together; what is found by then is taken, with its gap.

    Raises:
        BadInputError: no such network or optimizer, or a modelled step should run.
        AutotmError: a stage failed.
    """
    from autotm.study.sweep import SweepPoint, SweepResult, sweep_table

    require_optimizer(optimizer)
    if runs:
        require_runnable(context.machine, optimizer)
    if optimizer == CACHED:
        real = context.machine.cache_bytes
        limits = [Limit(size_bytes=real)] if limits is None and real is not None else limits
        require_real_cache(context.machine, limits or ())
    _prepare(study, context, network, runs=runs)
    paths, config = study.paths(network), study.config.solve
    came_from = provenance(context.machine, context.seed, options={**config.model_dump(), "sweep_s": sweep_s})
    step, times, copies = PlacementInputs(paths).read(context.counts)
    points, refused, plans = [], [], []
    for outcome in place_each(
        step, times, copies, optimizer, limits, replace(options_of(context, config), sweep_s=sweep_s)
    ):
        if isinstance(outcome, Refusal):
            log.warning("limit %s: %s", outcome.limit, outcome.why)
            refused.append(outcome)
            continue
        placed, layout = outcome
        tell_outcome(placed, config)
        limit = placed.limit
        plan, program = paths.plan(optimizer, limit), program_of(step, placed, layout)
        save(plan, "plan", placed, came_from)
        save(paths.program(optimizer, limit), "program", program, {**came_from, "plan_file": str(plan)})
        plans.append(plan)
        points.append((placed, program))
    records: Sequence[Record | None] = [None] * len(points)
    if runs and points:
        with closing(runs_of_study(study, context, network)) as stage:
            records = stage.run_all([plan for plan, _ in points])
    results = [SweepPoint(*point, record) for point, record in zip(points, records, strict=True)]
    return SweepResult(sweep_table(step, times, optimizer, results, refused, came_from), tuple(plans))


def _prepare(study: Study, context: Context, network: str, *, runs: bool) -> None:
    """Measure copies and kernels unless their files exist and are of this network."""
    source, paths = study.network(network), study.paths(network)
    if study.config.scale.endswith(MODELLED):
        if runs:
            raise BadInputError(f"scale {study.config.scale}: its steps are modelled and cannot run; leave out --run")
        return
    wanted = [paths.graph, paths.profile, *([paths.library] if runs else [])]
    if paths.links.exists() and all(path.exists() for path in wanted):
        said = read_json(paths.graph, "graph")["provenance"]
        if all(said.get(key, value) == value for key, value in source.provenance.items()):  # as far as the file says
            return
    require_compiler()
    if not paths.links.exists():
        log.info("measuring copies first")
        calibrate_stage(context, study.config.profile.patience_s, links=paths.links)
    log.info("compiling %s and timing its kernels first", network)
    kernel_profile_stage(context, source, study.scale.of_profile(study.config.profile), paths)
