"""The commands that run a stage of the pipeline each, and those that write pictures of a plan."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click

from autotm import stages
from autotm.cli.command import Answer, answering, file_answer
from autotm.cli.options import FILE, FOLDER, Placement, context_of, of_network, of_placement, of_study, paths_of
from autotm.model.cores import PATIENCE_S
from autotm.model.graph import Tier
from autotm.study.setup import Study, require_compiler

log = logging.getLogger("autotm")

# Stages of the pipeline.


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


@click.command()
@of_placement
@click.option("--write-mps", type=FILE, metavar="FILE", help="Write the integer program, too (.mps, .mps.gz).")
@answering
def solve(placement: Placement, write_mps: Path | None) -> Answer:
    """Its answer is the file `plan.json`."""
    study, optimizer, limit = placement.study, placement.optimizer, placement.limit
    context, given = context_of(study), stages.PlacementInputs.of(placement.paths)
    if write_mps:
        size = stages.export_program_stage(context, optimizer, limit, study.config.solve, given, program=write_mps)
        log.info("%s: %d columns, %d rows, %d nonzeros", write_mps, size.columns, size.rows, size.nonzeros)
    stages.sweep_stage(context, optimizer, {limit: placement.plan}, study.config.solve, given)
    return file_answer(placement.plan, "plan")


@click.command("compile")
@of_placement
@answering
def compile_(placement: Placement) -> Answer:
    """Its answer is the file `program.json`."""
    given, program = stages.PlacementInputs.of(placement.paths), placement.program
    stages.compile_stage(context_of(placement.study), given, plan=placement.plan, program=program)
    return file_answer(program, "program")


@click.command()
@of_placement
@answering
def run(placement: Placement) -> Answer:
    """Its answer is the file `record.json`."""
    study = placement.study
    record = stages.run_of_study(study, context_of(study), placement.network, placement.optimizer, placement.limit)
    return file_answer(record, "record")


@click.command()
@of_placement
@answering
def check(placement: Placement) -> Answer:
    """Shares no code with what makes them. A breach is a fault: exit status 1, and the rule that is broken."""
    given = stages.PlacementInputs.of(placement.paths)
    stages.check_stage(context_of(placement.study), given, plan=placement.plan, program=placement.program)
    legal = {"network": placement.network, "optimizer": placement.optimizer, "limit": str(placement.limit)}
    return Answer(legal | {"legal": True}, f"plan and program of {placement} are legal")


# Pictures of a plan.


def _files(placement: Placement) -> dict[str, Path]:
    """Return the files that a plan is shown from, by the parameters of stages."""
    return asdict(stages.PlacementInputs.of(placement.paths)) | {"plan": placement.plan, "program": placement.program}


@click.command()
@of_placement
@click.option("--to", type=FILE, metavar="FILE", help="The page, instead of view.html beside the plan.")
@answering
def view(placement: Placement, to: Path | None) -> Answer:
    """The page is one file, opened in a browser; it asks nothing of any network."""
    paths, optimizer, limit = placement.paths, placement.optimizer, placement.limit
    page = to or paths.view(optimizer, limit)
    stages.view_stage(**_files(placement), record=paths.record(optimizer, limit), page=page)
    log.info("%s: open it in a browser; it needs nothing else", page)
    return Answer({"page": page})


@click.command()
@of_placement
@click.option("--folder", type=FOLDER, help="Where stays_fast.csv and stays_slow.csv go, instead of the results.")
@answering
def stays(placement: Placement, folder: Path | None) -> Answer:
    """Columns: id,lower,upper,size,offset."""
    files = placement.paths.stays(placement.optimizer, placement.limit)
    if folder:
        files = {tier: folder / file.name for tier, file in files.items()}
    stages.stays_stage(**_files(placement), files=files)
    log.info("%s, %s: id,lower,upper,size,offset", files[Tier.FAST], files[Tier.SLOW])
    return Answer({"fast": files[Tier.FAST], "slow": files[Tier.SLOW]})


@click.command()
@of_placement
@click.option("--to", type=FILE, metavar="FILE", help="The trace, instead of trace.json beside the plan.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Measured; the median one is written."
)
@answering
def trace(placement: Placement, to: Path | None, steps: int) -> Answer:
    """A trace for ui.perfetto.dev or chrome://tracing."""
    paths, files = placement.paths, _files(placement)
    file = to or paths.trace(placement.optimizer, placement.limit)
    del files["profile"]
    context = context_of(placement.study)
    traced = stages.trace_stage(context, steps, PATIENCE_S, **files, library=paths.library, trace=file)
    log.info(
        "%s: a step of %.4g ms measured, %+.2g %% by reading the clock between calls; open it at ui.perfetto.dev",
        *(file, 1e3 * median(traced.traced_s), 100 * traced.overhead),
    )
    return Answer({"trace": file, "traced_s": traced.traced_s, "overhead": traced.overhead})
