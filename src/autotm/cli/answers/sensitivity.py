"""The command `sensitivity`."""

from __future__ import annotations

import logging

import click

from autotm import stages
from autotm.cli.answer import Answer, answering
from autotm.cli.options import context_of, of_network, paths_of, words
from autotm.model.step import Limit
from autotm.study.noise import describe
from autotm.study.setup import Study, require_optimizer

log = logging.getLogger("autotm")


@click.command()
@of_network
@click.option(
    "--limit", required=True, help="Fast memory: a ratio slow:fast such as 4:1, a share such as 0.2x, or bytes."
)
@click.option("--draws", type=click.IntRange(min=1), default=20, show_default=True, help="How often times are drawn.")
@click.option("--optimizers", default="static,synchronous", show_default=True, help="Whose plans.")
@answering
def sensitivity(study: Study, network: str, limit: str, draws: int, optimizers: str) -> Answer:
    """Plans that were solved before are priced, and made anew, under resampled kernel times."""
    paths, wanted = paths_of(study, network), Limit.parse(limit)
    for optimizer in words(optimizers):
        require_optimizer(optimizer)
    found = stages.sensitivity_stage(
        context_of(study),
        study.config.solve,
        draws,
        stages.Given.of(paths),
        plans=[paths.plan(optimizer, wanted) for optimizer in words(optimizers)],
        sensitivity=paths.sensitivity(wanted),
    )
    log.info("every draw is in %s", paths.sensitivity(wanted))
    return Answer(found, describe(found))
