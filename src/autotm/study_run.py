"""One run of a study, by network, optimizer and limit."""

from __future__ import annotations

from pathlib import Path

from autotm.model.step import Limit
from autotm.stages import Context, run_stage
from autotm.study.setup import Study


def run_of_study(study: Study, context: Context, network: str, optimizer: str, limit: Limit) -> Path:
    """Verify and time a program of the study, as long as its scale says; returns where the record is.

    Raises:
        as `run_stage`.
    """
    paths = study.paths(network)
    record = paths.record(optimizer, limit)
    run_stage(
        context,
        study.scale.of_run(study.config.run),
        graph=paths.graph,
        library=paths.library,
        program=paths.program(optimizer, limit),
        plan=paths.plan(optimizer, limit),
        links=paths.links,
        profile=paths.profile,
        reference=paths.reference,
        record=record,
    )
    return record
