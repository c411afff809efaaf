"""The stages that run a program: verified and timed, or traced call by call."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

from autotm.check import check_program
from autotm.model.files import hash_of, load, save
from autotm.model.machine import provenance
from autotm.model.measurement import Links, StepTrace, read_profile
from autotm.model.plan import Plan, Program
from autotm.model.step import Graph, Limit, counting
from autotm.model.study import RunConfig
from autotm.stages.context import Context
from autotm.study.setup import Study

log = logging.getLogger(__name__)


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


def trace_stage(
    context: Context,
    rounds: int,
    patience_s: float,
    *,
    graph: Path,
    library: Path,
    program: Path,
    plan: Path,
    links: Path,
    trace: Path,
) -> StepTrace:
    """Check the program once more, run steps of it with the clock read between all calls, and write one as a trace.

    Raises:
        DamagedFileError: a file cannot be read.
        AutotmError: kernels run on fewer threads than the machine asks for, or the system does not give the memory.
    """
    from autotm.kernels.library import KernelLibrary
    from autotm.runtime import Session
    from autotm.study.view import write_trace

    context = context.to_measure()
    step, placed = load(graph, "graph", Graph), load(plan, "plan", Plan)
    compiled = load(program, "program", Program)
    counted = counting(step, placed.counts)
    check_program(counted, placed, compiled)
    machine = context.machine
    came_from = provenance(machine, context.seed, plan_hash=hash_of(placed), program_hash=hash_of(compiled))
    came_from["tier_reality"] = machine.reality_of(cached=placed.cached is not None)
    session = Session(
        step,
        KernelLibrary.load(library),
        compiled,
        placed.counts,
        machine,
        load(links, "links", Links),
        context.devices_dir,
        context.seed,
    )
    with closing(session):
        found = session.trace(rounds, patience_s)
    if found.disturbed:
        log.warning("%s: others held the cores in every round: its times are too long; the file says so", trace)
    write_trace(trace, counted.computed_by(compiled.implementations), compiled, found, came_from)
    return found
