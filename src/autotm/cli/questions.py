"""The commands that answer questions: `sweep`, `explain`, `compare`, `potential` and `sensitivity`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import click

from autotm import stages
from autotm.cli.command import Answer, answering
from autotm.cli.options import (
    FILE,
    FOLDER,
    OPTIMIZERS,
    context_of,
    of_network,
    of_placement,
    optimizers,
    paths_of,
    words,
)
from autotm.model.limit import Limit
from autotm.study.setup import Study, require_optimizer

# The command `sweep`.

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


# The command `explain`.


@click.command()
@of_placement
@click.argument("tensor", required=False)
@click.option("--most", type=click.IntRange(min=1), default=10, show_default=True, help="How many kernels to name.")
@answering
def explain(study: Study, network: str, optimizer: str, limit: str, tensor: str | None, most: int) -> Answer:
    """Of a plan with a program. Without TENSOR: the kernels at which the limit binds, and what 1 MB more would save.

    With TENSOR: where it lives, what its uses, its bytes and its moves cost there, and what other residencies would.
    """
    from autotm.study.explain import explain_limit, explain_tensor, tensor_text  # noqa: PLC0415 - imports a solver

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


# The command `compare`.


@click.command()
@click.argument("first", type=FILE, metavar="A")
@click.argument("second", type=FILE, metavar="B")
@click.option("--most", type=click.IntRange(min=1), default=10, show_default=True, help="How many differences to name.")
@answering
def compare(first: Path, second: Path, most: int) -> Answer:
    """A and B are two plan.json, or two record.json."""
    from autotm.study.explain import compare as compare_files  # noqa: PLC0415 - imports a solver

    found = compare_files(first, second)
    return Answer(found, found.text(most))


# The command `potential`.


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


# The command `sensitivity`.


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
    from autotm.study.sensitivity import describe  # noqa: PLC0415 - imports a solver

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
