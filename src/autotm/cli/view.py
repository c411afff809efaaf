"""The commands that show a plan to other eyes: `autotm view`, `autotm stays` and `autotm trace`."""

from __future__ import annotations

import argparse
import logging
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from autotm import stages
from autotm.cli.study import context_of, paths_of, study_of
from autotm.model.files import BadInputError
from autotm.model.machine import PATIENCE_S
from autotm.model.step import Limit, Tier
from autotm.study.setup import Study, require_optimizer

log = logging.getLogger("autotm")


def add_commands(commands: Any, placed: argparse.ArgumentParser) -> None:
    """Add them to the parser's `commands`; `placed` holds the options that commands on one plan share."""
    text = "write one page that shows where each tensor of a plan is when, to be opened in a browser"
    view = commands.add_parser("view", parents=[placed], help=text, description=text)
    view.add_argument("--to", type=Path, metavar="FILE", help="the page, instead of view.html beside the plan")
    view.set_defaults(command=_view)
    text = "write the buffers of a plan's two pools as MiniMalloc and OmniMalloc read them"
    stays = commands.add_parser("stays", parents=[placed], help=text, description=text)
    stays.add_argument("--folder", type=Path, help="where stays_fast.csv and stays_slow.csv go, instead of the results")
    stays.set_defaults(command=_stays)
    text = "run a program, and write one measured step as a trace for Perfetto or chrome://tracing"
    trace = commands.add_parser("trace", parents=[placed], help=text, description=text)
    trace.add_argument("--to", type=Path, metavar="FILE", help="the trace, instead of trace.json beside the plan")
    trace.add_argument("--steps", type=int, default=5, help="measured steps; the median one is written (%(default)s)")
    trace.set_defaults(command=_trace)


def _given(study: Study, options: argparse.Namespace) -> tuple[dict[str, Path], Limit]:
    """The files that a plan is shown from, by the names that stages give them."""
    require_optimizer(options.optimizer)
    paths, limit = paths_of(study, options.network), Limit.parse(options.limit)
    given = asdict(stages.Given.of(paths))
    places = {"plan": paths.plan(options.optimizer, limit), "program": paths.program(options.optimizer, limit)}
    return given | places, limit


def _view(options: argparse.Namespace) -> None:
    study = study_of(options)
    given, limit = _given(study, options)
    paths = study.paths(options.network)
    page = options.to or paths.view(options.optimizer, limit)
    stages.view_stage(**given, record=paths.record(options.optimizer, limit), page=page)
    log.info("%s: open it in a browser; it needs nothing else", page)


def _stays(options: argparse.Namespace) -> None:
    study = study_of(options)
    given, limit = _given(study, options)
    files = study.paths(options.network).stays(options.optimizer, limit)
    if options.folder:
        files = {tier: options.folder / file.name for tier, file in files.items()}
    stages.stays_stage(**given, files=files)
    log.info("%s, %s: id,lower,upper,size,offset", files[Tier.DRAM], files[Tier.PMEM])


def _trace(options: argparse.Namespace) -> None:
    if options.steps < 1:
        raise BadInputError(f"--steps: {options.steps} is not allowed: give 1 or more")
    study = study_of(options)
    given, limit = _given(study, options)
    paths = study.paths(options.network)
    trace = options.to or paths.trace(options.optimizer, limit)
    del given["profile"]
    found = stages.trace_stage(
        context_of(study), options.steps, PATIENCE_S, **given, library=paths.library, trace=trace
    )
    log.info(
        "%s: a step of %.4g ms measured, %+.2g %% by reading the clock between calls; open it at ui.perfetto.dev",
        *(trace, 1e3 * median(found.traced_s), 100 * found.overhead),
    )
