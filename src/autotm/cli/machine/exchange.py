"""The commands `export` and `import`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import click

from autotm import stages
from autotm.cli.answer import Answer, answering
from autotm.cli.options import FILE, FOLDER, context_of, of_network, paths_of
from autotm.study.setup import Study

log = logging.getLogger("autotm")


@click.command()
@of_network
@click.argument("file", type=FILE)
@answering
def export(study: Study, network: str, file: Path) -> Answer:
    """FILE is a zip of the network's links.json, graph.json, profile.parquet and every plan, program and record."""
    written = stages.export_results_stage(context_of(study), paths=paths_of(study, network), file=file)
    log.info("%s: %d files", file, len(written))
    return Answer({"file": file, "files": written})


@click.command("import")
@click.argument("file", type=FILE)
@click.option(
    "--results",
    type=FOLDER,
    default=Path("results"),
    show_default=True,
    metavar="FOLDER",
    help="Where files go: below it, each in its machine's folder.",
)
@click.option("--replace", "replaces", is_flag=True, help="Replace files that are there and differ.")
@answering
def import_(file: Path, results: Path, replaces: bool) -> Answer:
    """For looking, checking and comparing: a machine's own pipeline uses what it measured itself."""
    found = stages.import_results_stage(file=file, results=results, replaces=replaces)
    log.info("%d files added, %d replaced, %d were the same", *map(len, (found.added, found.replaced, found.kept)))
    plans = [f"{network} {optimizer} {limit}" for _, network, optimizer, limit in stages.imported_plans(found)]
    return Answer(asdict(found), "\n".join(plans))
