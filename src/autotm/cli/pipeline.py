"""The commands that run a stage of the pipeline each, and those that write pictures of a plan."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from statistics import median

import click

from autotm.cli.command import Answer, answering, file_answer
from autotm.cli.options import FILE, FOLDER, Placement, context_of, of_network, of_placement, of_study
from autotm.model.cores import PATIENCE_S
from autotm.model.graph import Tier
from autotm.stages.context import PlacementInputs
from autotm.stages.figures import placed_of
from autotm.stages.profile import calibrate_stage, kernel_profile_stage, kernel_report_stage
from autotm.stages.run import runs_of_study, trace_stage
from autotm.stages.solve import check_stage, compile_stage, export_program_stage, ilp_solve_stage
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
    calibrate_stage(context_of(study), study.config.profile.patience_s, links=links)
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

    source, paths = study.network(network), study.paths(network)
    require_compiler()
    kernel_profile_stage(context_of(study), source, study.scale.of_profile(study.config.profile), paths)
    report, came_from = kernel_report_stage(paths)
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
    context, inputs = context_of(study), PlacementInputs(placement.paths)
    if write_mps:
        size = export_program_stage(context, optimizer, limit, study.config.solve, inputs, program=write_mps)
        log.info("%s: %d columns, %d rows, %d nonzeros", write_mps, size.columns, size.rows, size.nonzeros)
    ilp_solve_stage(context, optimizer, limit, study.config.solve, inputs, plan=placement.plan)
    return file_answer(placement.plan, "plan")


@click.command("compile")
@of_placement
@answering
def compile_(placement: Placement) -> Answer:
    """Its answer is the file `program.json`."""
    inputs, program = PlacementInputs(placement.paths), placement.program
    compile_stage(context_of(placement.study), inputs, plan=placement.plan, program=program)
    return file_answer(program, "program")


@click.command()
@of_placement
@answering
def run(placement: Placement) -> Answer:
    """Its answer is the file `record.json`."""
    with closing(runs_of_study(placement.study, context_of(placement.study), placement.network)) as runs:
        record = runs.run(placement.optimizer, placement.limit)
    return file_answer(record, "record")


@click.command()
@of_placement
@answering
def check(placement: Placement) -> Answer:
    """Shares no code with what makes them. A breach is a fault: exit status 1, and the rule that is broken."""
    check_stage(context_of(placement.study), placement.paths, placement.optimizer, placement.limit)
    legal = {"network": placement.network, "optimizer": placement.optimizer, "limit": str(placement.limit)}
    return Answer(legal | {"legal": True}, f"plan and program of {placement} are legal")


# Pictures of a plan.


@click.command()
@of_placement
@click.option("--to", type=FILE, metavar="FILE", help="The page, instead of view.html beside the plan.")
@answering
def view(placement: Placement, to: Path | None) -> Answer:
    """The page is one file, opened in a browser; it asks nothing of any network."""
    from autotm.study.view.page import write_page  # noqa: PLC0415 - imports seaborn

    paths, optimizer, limit = placement.paths, placement.optimizer, placement.limit
    page = to or paths.view(optimizer, limit)
    write_page(placed_of(paths, optimizer, limit, with_record=True), page)
    log.info("%s: open it in a browser; it needs nothing else", page)
    return Answer({"page": page})


@click.command()
@of_placement
@click.option("--folder", type=FOLDER, help="Where stays_fast.csv and stays_slow.csv go, instead of the results.")
@answering
def stays(placement: Placement, folder: Path | None) -> Answer:
    """Columns: id,lower,upper,size,offset."""
    from autotm.study.placed import write_stays  # noqa: PLC0415 - imports pandas

    files = placement.paths.stays(placement.optimizer, placement.limit)
    if folder:
        files = {tier: folder / file.name for tier, file in files.items()}
    write_stays(placed_of(placement.paths, placement.optimizer, placement.limit), files)
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
    paths, optimizer, limit = placement.paths, placement.optimizer, placement.limit
    file = to or paths.trace(optimizer, limit)
    traced = trace_stage(context_of(placement.study), steps, PATIENCE_S, paths, optimizer, limit, file)
    log.info(
        "%s: a step of %.4g ms measured, %+.2g %% by reading the clock between calls; open it at ui.perfetto.dev",
        *(file, 1e3 * median(traced.traced_s), 100 * traced.overhead),
    )
    return Answer({"trace": file, "traced_s": traced.traced_s, "overhead": traced.overhead})
