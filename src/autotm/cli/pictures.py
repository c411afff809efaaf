"""The commands `view`, `stays` and `trace`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click

from autotm import stages
from autotm.cli.command import Answer, answering
from autotm.cli.options import FILE, FOLDER, context_of, of_placement, paths_of
from autotm.model.cores import PATIENCE_S
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.study.setup import Study

log = logging.getLogger("autotm")


def _given(study: Study, network: str, optimizer: str, limit: Limit) -> dict[str, Path]:
    """The files that a plan is shown from, by the names that stages give them."""
    paths = paths_of(study, network)
    given = asdict(stages.Given.of(paths))
    return given | {"plan": paths.plan(optimizer, limit), "program": paths.program(optimizer, limit)}


@click.command()
@of_placement
@click.option("--to", type=FILE, metavar="FILE", help="The page, instead of view.html beside the plan.")
@answering
def view(study: Study, network: str, optimizer: str, limit: str, to: Path | None) -> Answer:
    """The page is one file, opened in a browser; it asks nothing of any network."""
    wanted = Limit.parse(limit)
    given, paths = _given(study, network, optimizer, wanted), study.paths(network)
    page = to or paths.view(optimizer, wanted)
    stages.view_stage(**given, record=paths.record(optimizer, wanted), page=page)
    log.info("%s: open it in a browser; it needs nothing else", page)
    return Answer({"page": page})


@click.command()
@of_placement
@click.option("--folder", type=FOLDER, help="Where stays_fast.csv and stays_slow.csv go, instead of the results.")
@answering
def stays(study: Study, network: str, optimizer: str, limit: str, folder: Path | None) -> Answer:
    """Columns: id,lower,upper,size,offset."""
    wanted = Limit.parse(limit)
    given, files = _given(study, network, optimizer, wanted), study.paths(network).stays(optimizer, wanted)
    if folder:
        files = {tier: folder / file.name for tier, file in files.items()}
    stages.stays_stage(**given, files=files)
    log.info("%s, %s: id,lower,upper,size,offset", files[Tier.DRAM], files[Tier.PMEM])
    return Answer({"fast": files[Tier.DRAM], "slow": files[Tier.PMEM]})


@click.command()
@of_placement
@click.option("--to", type=FILE, metavar="FILE", help="The trace, instead of trace.json beside the plan.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Measured; the median one is written."
)
@answering
def trace(study: Study, network: str, optimizer: str, limit: str, to: Path | None, steps: int) -> Answer:
    """A trace for ui.perfetto.dev or chrome://tracing."""
    wanted = Limit.parse(limit)
    given, paths = _given(study, network, optimizer, wanted), study.paths(network)
    file = to or paths.trace(optimizer, wanted)
    del given["profile"]
    found = stages.trace_stage(context_of(study), steps, PATIENCE_S, **given, library=paths.library, trace=file)
    log.info(
        "%s: a step of %.4g ms measured, %+.2g %% by reading the clock between calls; open it at ui.perfetto.dev",
        *(file, 1e3 * median(found.traced_s), 100 * found.overhead),
    )
    return Answer({"trace": file, "traced_s": found.traced_s, "overhead": found.overhead})
