"""The command `profile`."""

from __future__ import annotations

from pathlib import Path

import click

from autotm import stages
from autotm.cli.answer import Answer, answering
from autotm.cli.options import FILE, context_of, of_network, paths_of
from autotm.study.kernel_report import report_text, write_kernel_csv
from autotm.study.setup import Study, require_compiler


@click.command()
@of_network
@click.option(
    "--worst", type=click.IntRange(min=0), default=10, show_default=True, help="How many of the worst kernels to name."
)
@click.option("--csv", type=FILE, metavar="FILE", help="Write a row for each kernel there.")
@answering
def profile(study: Study, network: str, worst: int, csv: Path | None) -> Answer:
    """Ends with the share of the step's time by class of kernel, operation and schedule, against the machine's best."""
    paths = paths_of(study, network)
    require_compiler()
    stages.profile_of_study(study, context_of(study), network)
    report, came_from = stages.kernel_report_stage(graph=paths.graph, profile=paths.profile, links=paths.links)
    if csv:
        write_kernel_csv(csv, report, came_from)
    data = {"provenance": came_from, "kernel_report": report}
    return Answer(data, report_text(report, study.machine.slug, worst))
