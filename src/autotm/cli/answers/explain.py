"""The command `explain`."""

from __future__ import annotations

from dataclasses import asdict

import click

from autotm import stages
from autotm.cli.answer import Answer, answering
from autotm.cli.options import of_placement, paths_of
from autotm.model.step import Limit
from autotm.study.explain import explain_limit, explain_tensor, tensor_text
from autotm.study.setup import Study


@click.command()
@of_placement
@click.argument("tensor", required=False)
@click.option("--most", type=click.IntRange(min=1), default=10, show_default=True, help="How many kernels to name.")
@answering
def explain(study: Study, network: str, optimizer: str, limit: str, tensor: str | None, most: int) -> Answer:
    """Of a plan with a program. Without TENSOR: the kernels at which the limit binds, and what 1 MB more would save.

    With TENSOR: where it lives, what its uses, its bytes and its moves cost there, and what other residencies would.
    """
    paths, wanted = paths_of(study, network), Limit.parse(limit)
    given = asdict(stages.Given.of(paths))
    placed = stages.placed_of(
        **given, plan=paths.plan(optimizer, wanted), program=paths.program(optimizer, wanted), record=None
    )
    if tensor is None:
        binding = explain_limit(placed)
        return Answer(binding, binding.text(most))
    found = explain_tensor(placed, tensor)
    return Answer(found, tensor_text(found))
