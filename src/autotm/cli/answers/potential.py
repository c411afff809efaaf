"""The command `potential`."""

from __future__ import annotations

import click

from autotm import stages
from autotm.cli.answer import Answer, answering
from autotm.cli.options import context_of, of_network, paths_of
from autotm.model.step import Limit
from autotm.study.setup import Study


@click.command()
@of_network
@click.argument("limit")
@answering
def potential(study: Study, network: str, limit: str) -> Answer:
    """Bounds beside the synchronous plan for LIMIT, which was solved before."""
    paths, wanted = paths_of(study, network), Limit.parse(limit)
    plan = paths.plan("synchronous", wanted)
    found = stages.potential_stage(context_of(study), study.config.solve, stages.Given.of(paths), plan=plan)
    return Answer(
        found,
        f"synchronous {wanted}: {found.objective_us:.6g} us predicted, proven within {found.gain(found.bound_us):.2%}\n"
        f"recomputing could save at most {found.gain(found.recomputation_us):.2%}, "
        f"any order of kernels at most {found.gain(found.any_order_us):.2%} (bounds; they may be far from reachable)",
    )
