"""The command `tune`."""

from __future__ import annotations

import click

from autotm import stages
from autotm.cli.answer import Answer, answering
from autotm.cli.options import context_of, of_network, paths_of
from autotm.model.files import read_json
from autotm.study.setup import Study


@click.command()
@of_network
@click.option("--trials", type=click.IntRange(min=1), help="Schedules tried for each kernel, instead of the study's.")
@click.option("--kernels", default="*", show_default=True, metavar="PATTERN", help="Only these operations: 'conv2d*'.")
@answering
def tune(study: Study, network: str, trials: int | None, kernels: str) -> Answer:
    """Optional, and slow. What is found is kept in the kernel store, and used by the next profile."""
    paths, config = paths_of(study, network), study.config.tune
    stages.tune_stage(
        context_of(study),
        study.network(network),
        study.config.scale,
        config if trials is None else config.model_copy(update={"trials": trials}),
        study.scale.of_profile(study.config.profile),
        store=paths.store,
        report=paths.tuned,
        kernels=kernels,
    )
    return Answer(lambda: read_json(paths.tuned, "tuning"))
