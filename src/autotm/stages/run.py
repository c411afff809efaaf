"""The stage that verifies and times a program."""

from __future__ import annotations

from pathlib import Path

from autotm.check import check_program
from autotm.model.files import hash_of, load, save
from autotm.model.machine import provenance
from autotm.model.measurement import Links, read_profile
from autotm.model.plan import Plan, Program
from autotm.model.step import Graph, Limit, counting
from autotm.model.study import RunConfig
from autotm.stages.context import Context
from autotm.study.setup import Study


def run_stage(
    context: Context,
    config: RunConfig,
    *,
    graph: Path,
    library: Path,
    program: Path,
    plan: Path,
    profile: Path,
    links: Path,
    reference: Path,
    record: Path,
) -> None:
    """Check the program once more, verify its results against the plain step, time it, and write the record."""
    from autotm.kernels.library import KernelLibrary
    from autotm.runtime import RunOptions, run

    context = context.to_measure()
    came_from = provenance(context.machine, context.seed, options=config.model_dump())
    step, placed = load(graph, "graph", Graph), load(plan, "plan", Plan)
    compiled = load(program, "program", Program)
    check_program(counting(step, placed.counts), placed, compiled)
    measured = run(
        step,
        KernelLibrary.load(library),
        compiled,
        placed,
        context.machine,
        load(links, "links", Links),
        read_profile(profile),
        RunOptions(**config.model_dump(), seed=context.seed),
        context.devices_dir,
        reference,
    )
    came_from["tier_reality"] = measured.tier_reality
    save(record, "record", measured, came_from | {"plan_hash": hash_of(placed), "program_hash": hash_of(compiled)})


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
