"""The command `sweep`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from autotm import stages
from autotm.cli.answer import Answer, answering
from autotm.cli.completion import optimizers
from autotm.cli.options import FOLDER, OPTIMIZERS, context_of, of_network, words
from autotm.model.step import Limit
from autotm.study.setup import Study

log = logging.getLogger("autotm")


def _limits(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[Limit] | None:
    if not texts:
        return None
    if not (found := [word for text in texts for word in words(text)]):
        raise click.BadParameter("none given; give some such as 8:1,4:1, or leave it out for a series")
    return list(dict.fromkeys(map(Limit.parse, found)))


@click.command(epilog=f"Optimizers: {OPTIMIZERS}.")
@of_network
@click.argument("optimizer", default="synchronous", shell_complete=optimizers)
@click.option(
    "--limits",
    multiple=True,
    metavar="LIMITS",
    callback=_limits,
    help="Such as 8:1,4:1,4500MB; without it a series from all fast down to the least possible.",
)
@click.option("--run", "runs", is_flag=True, help="Verify and time each plan, too.")
@click.option(
    "--time-limit",
    "sweep_s",
    type=click.FloatRange(min=0, min_open=True),
    default=stages.SWEEP_S,
    show_default=True,
    help="Seconds for the placements of all limits together; the plans found by then are taken, with their gaps.",
)
@click.option("--folder", type=FOLDER, help="Where sweep.csv, .pdf and .png go, instead of the results.")
@answering
def sweep(
    study: Study,
    network: str,
    optimizer: str,
    limits: list[Limit] | None,
    runs: bool,
    sweep_s: float,
    folder: Path | None,
) -> Answer:
    """Plans for a series of limits, as a table, an answer and a picture. What is not measured yet is measured first.

    Without OPTIMIZER: synchronous.
    """
    found = stages.sweep_of_study(study, context_of(study), network, optimizer, limits, runs=runs, sweep_s=sweep_s)
    files = found.write(folder or study.paths(network).sweep(optimizer), study.config.style)
    log.info("%s", f"{files.csv}, {files.pdf.name}, {files.png.name}" if found.placements else files.csv)
    data = {
        "rows": found.table.to_dict("records"),
        "answers": found.answers if found.placements else [],
        "csv": files.csv,
    }
    return Answer(data, str(found))
