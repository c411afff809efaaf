"""The commands that run a stage of the pipeline each: `calibrate`, `profile`, `solve`, `compile`, `run` and `check`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from autotm import stages
from autotm.cli.command import Answer, answering, file_answer
from autotm.cli.options import FILE, context_of, of_network, of_placement, of_study, paths_of
from autotm.model.limit import Limit
from autotm.study.setup import Study, require_compiler

# The commands `calibrate`, `solve`, `compile`, `run` and `check`.

log = logging.getLogger("autotm")


@click.command()
@of_study
@answering
def calibrate(study: Study) -> Answer:
    """Its answer is the file `links.json`."""
    require_compiler()
    links = study.machine_paths.links
    stages.calibrate_stage(context_of(study), study.config.profile.patience_s, links=links)
    return file_answer(links, "links")


@click.command()
@of_placement
@click.option("--write-mps", type=FILE, metavar="FILE", help="Write the integer program, too (.mps, .mps.gz).")
@answering
def solve(study: Study, network: str, optimizer: str, limit: str, write_mps: Path | None) -> Answer:
    """Its answer is the file `plan.json`."""
    paths, wanted = paths_of(study, network), Limit.parse(limit)
    given = stages.Given.of(paths)
    if write_mps:
        size = stages.export_program_stage(
            context_of(study), optimizer, wanted, study.config.solve, given, program=write_mps
        )
        log.info("%s: %d columns, %d rows, %d nonzeros", write_mps, size.columns, size.rows, size.nonzeros)
    plan = paths.plan(optimizer, wanted)
    stages.sweep_stage(context_of(study), optimizer, {wanted: plan}, study.config.solve, given)
    return file_answer(plan, "plan")


@click.command("compile")
@of_placement
@answering
def compile_(study: Study, network: str, optimizer: str, limit: str) -> Answer:
    """Its answer is the file `program.json`."""
    paths, wanted = paths_of(study, network), Limit.parse(limit)
    program = paths.program(optimizer, wanted)
    stages.compile_stage(
        context_of(study),
        stages.Given.of(paths),
        plan=paths.plan(optimizer, wanted),
        program=program,
    )
    return file_answer(program, "program")


@click.command()
@of_placement
@answering
def run(study: Study, network: str, optimizer: str, limit: str) -> Answer:
    """Its answer is the file `record.json`."""
    paths_of(study, network)
    record = stages.run_of_study(study, context_of(study), network, optimizer, Limit.parse(limit))
    return file_answer(record, "record")


@click.command()
@of_placement
@answering
def check(study: Study, network: str, optimizer: str, limit: str) -> Answer:
    """Shares no code with what makes them. A breach is a fault: exit status 1, and the rule that is broken."""
    paths, wanted = paths_of(study, network), Limit.parse(limit)
    stages.check_stage(
        context_of(study),
        stages.Given.of(paths),
        plan=paths.plan(optimizer, wanted),
        program=paths.program(optimizer, wanted),
    )
    told = {"network": network, "optimizer": optimizer, "limit": str(wanted), "legal": True}
    return Answer(told, f"plan and program of {network} {optimizer} {wanted} are legal")


# The command `profile`.


@click.command()
@of_network
@click.option(
    "--worst", type=click.IntRange(min=0), default=10, show_default=True, help="How many of the worst kernels to name."
)
@click.option("--csv", type=FILE, metavar="FILE", help="Write a row for each kernel there.")
@answering
def profile(study: Study, network: str, worst: int, csv: Path | None) -> Answer:
    """Ends with the share of the step's time by class of kernel, operation and schedule, against the machine's best."""
    from autotm.study.kernel_report import report_text, write_kernel_csv  # noqa: PLC0415 - imports pandas

    paths = paths_of(study, network)
    require_compiler()
    stages.profile_of_study(study, context_of(study), network)
    report, came_from = stages.kernel_report_stage(graph=paths.graph, profile=paths.profile, links=paths.links)
    if csv:
        write_kernel_csv(csv, report, came_from)
    data = {"provenance": came_from, "kernel_report": report}
    return Answer(data, report_text(report, study.machine.slug, worst))
