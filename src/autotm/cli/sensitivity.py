"""The command `autotm sensitivity`: do plans differ by more than noise?"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

from autotm import stages
from autotm.cli.study import context_of, paths_of, study_of
from autotm.model.step import Limit

log = logging.getLogger("autotm")


def add_command(commands: Any, network: argparse.ArgumentParser) -> None:
    """Add it to the parser's `commands`; `network` holds the options that commands on one network share."""
    text = "tell whether optimizers differ by more than the noise of the kernel times; needs their plans"
    command = commands.add_parser("sensitivity", parents=[network], help=text, description=text)
    command.add_argument("--limit", required=True, help="fast memory: a ratio slow:fast such as 4:1, or bytes")
    command.add_argument("--draws", type=int, default=20, help="how often the times are drawn (%(default)s)")
    command.add_argument(
        "--optimizers", nargs="+", default=["static", "synchronous"], help="whose plans (static synchronous)"
    )
    command.set_defaults(command=_sensitivity)


def _sensitivity(options: argparse.Namespace) -> None:
    from autotm.study.noise import describe  # noqa: PLC0415 - imports Pyomo, which other commands need not wait for

    study = study_of(options)
    paths, limit = paths_of(study, options.network), Limit.parse(options.limit)
    found = stages.sensitivity_stage(
        context_of(study),
        study.config.solve,
        options.draws,
        stages.Given.of(paths),
        plans=[paths.plan(optimizer, limit) for optimizer in options.optimizers],
        sensitivity=paths.sensitivity(limit),
    )
    sys.stdout.write(describe(found) + "\n")
    log.info("every draw is in %s", paths.sensitivity(limit))
