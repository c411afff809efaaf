"""The stage beside the pipeline that asks how far plans depend on the noise of what they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotm.check import check_plan
from autotm.model.counting import counting
from autotm.model.files import load, save
from autotm.model.graph import Graph
from autotm.model.link import Links
from autotm.model.plan import Plan
from autotm.model.profile_file import read_profile
from autotm.model.provenance import provenance
from autotm.model.sensitivity import Sensitivity
from autotm.model.study_config import SolveConfig
from autotm.solve import SolveOptions
from autotm.stages import Context
from autotm.study.sensitivity import measure_sensitivity


def sensitivity_stage(
    context: Context,
    config: SolveConfig,
    draws: int,
    *,
    graph: Path,
    profile: Path,
    links: Path,
    plans: Sequence[Path],
    sensitivity: Path,
) -> Sensitivity:
    """Price plans for one limit, and make them anew, under resampled kernel times; every draw is written."""
    came_from = provenance(context.machine, context.seed, options=config.model_dump(), draws=draws)
    step = counting(load(graph, "graph", Graph), context.counts)
    times, copies = read_profile(profile), load(links, "links", Links)
    options = SolveOptions(**config.model_dump(), seed=context.seed)
    placed = [load(plan, "plan", Plan) for plan in plans]
    for plan in placed:
        check_plan(step, times, copies, plan)
    found = measure_sensitivity(step, times, copies, placed, options, draws)
    save(sensitivity, "sensitivity", found, came_from)
    return found
