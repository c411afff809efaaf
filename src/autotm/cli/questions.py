"""The commands that answer questions about a step or about two files, and those about the study's records."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import click

from autotm.api.fits import fits_of_file
from autotm.cli.command import Answer, answering
from autotm.cli.options import (
    FILE,
    FOLDER,
    LIMIT,
    OPTIMIZERS,
    Placement,
    context_of,
    of_network,
    of_placement,
    of_study,
    optimizers,
    paths_of,
    words,
)
from autotm.model.errors import BadInputError
from autotm.model.limit import Limit
from autotm.stages.figures import placed_of
from autotm.stages.run import disturbed_before, disturbed_records
from autotm.stages.run import remeasure as remeasure_records
from autotm.stages.solve import potential_stage, sensitivity_stage
from autotm.stages.sweep import SWEEP_S, sweep_of_study
from autotm.study.setup import CONVENTIONAL, Study, require_optimizer

log = logging.getLogger("autotm")

# Questions about a step, and about two files.


def _limits(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[Limit] | None:
    if not texts:
        return None
    if not (limits := [word for text in texts for word in words(text)]):
        raise click.BadParameter("none given; give some such as 8:1,4:1, or leave it out for a series")
    return list(dict.fromkeys(map(Limit.parse, limits)))


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
    default=SWEEP_S,
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
    result = sweep_of_study(study, context_of(study), network, optimizer, limits, runs=runs, sweep_s=sweep_s)
    csv, *pictures = result.write(folder or study.paths(network).sweep(optimizer), study.config.style)
    log.info("%s", ", ".join([str(csv), *(picture.name for picture in pictures)]))
    answers = result.answers if result.placements else []
    return Answer({"rows": result.table.to_dict("records"), "answers": answers, "csv": csv}, str(result))


@click.command()
@of_placement
@click.argument("tensor", required=False)
@click.option("--most", type=click.IntRange(min=1), default=10, show_default=True, help="How many kernels to name.")
@answering
def explain(placement: Placement, tensor: str | None, most: int) -> Answer:
    """The plan has a program. Without TENSOR: the kernels at which the limit binds, and what 1 MB more would save.

    With TENSOR: where it lives, what its uses, its bytes and its moves cost there, and what other residencies would.
    """
    from autotm.study.explain import explain_limit, explain_tensor, tensor_text  # noqa: PLC0415 - imports a solver

    placed = placed_of(placement.paths, placement.optimizer, placement.limit)
    if tensor is None:
        of_limit = explain_limit(placed)
        return Answer(of_limit, of_limit.text(most))
    of_tensor = explain_tensor(placed, tensor)
    return Answer(of_tensor, tensor_text(of_tensor))


@click.command()
@click.argument("first", type=FILE, metavar="A")
@click.argument("second", type=FILE, metavar="B")
@click.option("--most", type=click.IntRange(min=1), default=10, show_default=True, help="How many differences to name.")
@answering
def compare(first: Path, second: Path, most: int) -> Answer:
    """A and B are two plan.json, or two record.json."""
    from autotm.study.explain import compare as compare_files  # noqa: PLC0415 - imports a solver

    comparison = compare_files(first, second)
    return Answer(comparison, comparison.text(most))


@click.command()
@of_network
@click.argument("limit", type=LIMIT)
@answering
def potential(study: Study, network: str, limit: Limit) -> Answer:
    """Bounds beside the synchronous plan for LIMIT, which was solved before."""
    bounds = potential_stage(context_of(study), study.config.solve, paths_of(study, network), limit)
    proven, recomputation = bounds.gain(bounds.bound_us), bounds.gain(bounds.recomputation_us)
    text = (
        f"synchronous {limit}: {bounds.objective_us:.6g} us predicted, proven within {proven:.2%}\n"
        f"recomputing could save at most {recomputation:.2%}, any order of kernels at most "
        f"{bounds.gain(bounds.any_order_us):.2%} (bounds; they may be far from reachable)"
    )
    return Answer(bounds, text)


@click.command()
@of_network
@click.option(
    "--limit",
    type=LIMIT,
    required=True,
    help="Fast memory: a ratio slow:fast such as 4:1, a share such as 0.2x, or bytes.",
)
@click.option("--draws", type=click.IntRange(min=1), default=20, show_default=True, help="How often times are drawn.")
@click.option("--optimizers", "names", default="static,synchronous", show_default=True, help="Whose plans.")
@answering
def sensitivity(study: Study, network: str, limit: Limit, draws: int, names: str) -> Answer:
    """Plans that were solved before are priced, and made anew, under resampled kernel times."""
    from autotm.study.sensitivity import describe  # noqa: PLC0415 - imports a solver

    paths, optimizers = paths_of(study, network), words(names)
    for optimizer in optimizers:
        require_optimizer(optimizer)
    sensitivity_of_plans = sensitivity_stage(context_of(study), study.config.solve, draws, paths, optimizers, limit)
    log.info("every draw is in %s", paths.sensitivity(limit))
    return Answer(sensitivity_of_plans, describe(sensitivity_of_plans))


# Records of the study.


@click.command()
@of_study
@click.option("--csv", type=FILE, metavar="FILE", help="Write the table there.")
@click.option("--parquet", type=FILE, metavar="FILE", help="Write the table there.")
@answering
def records(study: Study, csv: Path | None, parquet: Path | None) -> Answer:
    """It covers the study's workloads and figures; without a file it is printed as CSV."""
    from autotm.study.records import table_of_runs, write_runs  # noqa: PLC0415 - imports pandas

    wanted = study.configured_records()
    there = [path for path in wanted if path.exists()]
    if not there:
        raise BadInputError(
            f"none of the study's {len(wanted)} records is there; make the first: snakemake {wanted[0]}"
        )
    table = table_of_runs(there)
    files = [path for path in (csv, parquet) if path is not None]
    for path in files:
        write_runs(table, path)
    log.info("%d of the study's %d records are there", len(there), len(wanted))
    return Answer(table.to_dict("records"), "" if files else table.to_csv(index=False).removesuffix("\n"))


@click.command()
@of_study
@click.option("--workload", default=CONVENTIONAL, show_default=True, help="A workload of the study.")
@answering
def describe(study: Study, workload: str) -> Answer:
    """The published numbers stand beside the study's; missing records are named, and how to make them."""
    from autotm.study.records import describe as describe_workload  # noqa: PLC0415 - imports pandas

    text = describe_workload(study, workload)
    return Answer({"workload": workload, "lines": text.splitlines()}, text)


@click.command()
@of_study
@click.option("--list", "only_lists", is_flag=True, help="Only tell which records those are.")
@answering
def remeasure(study: Study, only_lists: bool) -> Answer:
    """A record is replaced when its new one is there."""
    disturbed, before = disturbed_records(study), disturbed_before(study)
    paths, left = [record.path for record in disturbed], len(disturbed)
    if disturbed and not only_lists:
        left = remeasure_records(context_of(study), disturbed)
        log.info("%d of %d are sound now; snakemake draws their figures again", len(disturbed) - left, len(disturbed))
    elif not disturbed:
        log.info("no record of the study is marked as disturbed")
    if before:
        names = " ".join(map(str, before))
        log.warning(
            "others held the cores, too, while what plans are made from was measured: %s. To measure it again, with "
            "what depends on it: rm %s, then snakemake as before",
            *(names, names),
        )
    data = {"disturbed": paths, "still_disturbed": left, "measured_while_disturbed": before}
    return Answer(data, "\n".join(map(str, paths)) if only_lists else "")


@click.command()
@of_study
@click.option(
    "--logs", type=FOLDER, default=Path("logs"), show_default=True, metavar="FOLDER", help="Where jobs left benchmarks."
)
@answering
def costs(study: Study, logs: Path) -> Answer:
    """The table has a row a figure; `figures` counts the jobs that figures share once."""
    from autotm.study.costs import costs as costs_of  # noqa: PLC0415 - imports pandas
    from autotm.study.costs import table_of_costs  # noqa: PLC0415 - as above

    table = costs_of(study, logs)
    if missing := table[-1].jobs - table[-1].known_jobs:
        log.warning("%d jobs left no benchmark in %s: they ran elsewhere or before, or not at all", missing, logs)
    return Answer([asdict(cost) for cost in table], table_of_costs(table))


@click.command()
@click.argument("address", metavar="FILE:FUNCTION")
@click.option("--budget", metavar="SIZE", help="Whether the step fits, such as 8GB; or else the device's memory.")
@click.option("--device", metavar="NAME", help="A GPU of config/devices/gpu whose times are modelled, such as h200.")
@click.option("--page", type=FILE, metavar="FILE", help="Where tensors are in the plan within the budget, as .html.")
@answering
def fits(address: str, budget: str | None, device: str | None, page: Path | None) -> Answer:
    """Nothing is allocated, and no GPU is needed.

    The function returns the arguments of `autotm.fits` as a dict: module, inputs, loss, optimizer, targets.
    """
    file, _, name = address.rpartition(":")
    if not file or not name:
        raise click.UsageError(f"'{address}' is not FILE:FUNCTION, such as model.py:llama")
    found = fits_of_file(Path(file), name, budget, device, page)
    return Answer(found, str(found))
