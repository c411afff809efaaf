"""The command `autotm sweep`: how little fast memory a step needs."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from autotm import stages
from autotm.cli.study import context_of, study_of
from autotm.model.files import BadInputError
from autotm.model.step import Limit

log = logging.getLogger("autotm")


def add_command(commands: Any, network: argparse.ArgumentParser, optimizer_help: str) -> None:
    """Add it to the parser's `commands`; `network` holds the options that commands on one network share."""
    text = "tell how little fast memory a step needs: plans for a series of limits, as a table and a picture"
    command = commands.add_parser("sweep", parents=[network], help=text, description=text)
    command.add_argument("optimizer", nargs="?", default="synchronous", help=f"{optimizer_help} (%(default)s)")
    command.add_argument(
        "--limits",
        nargs="+",
        metavar="LIMIT",
        help="such as 8:1 4:1 4500MB or 8:1,4:1; without it a series from all fast down to the least possible",
    )
    command.add_argument("--run", action="store_true", help="verify and time each plan, too")
    command.add_argument("--folder", type=Path, help="where sweep.csv, .pdf and .png go, instead of the results")
    command.set_defaults(command=_sweep)


def _sweep(options: argparse.Namespace) -> None:
    study = study_of(options)
    limits = None if options.limits is None else limits_in(options.limits)
    found = stages.sweep_of_study(
        study, context_of(study), options.network, options.optimizer, limits, runs=options.run
    )
    files = found.write(options.folder or study.paths(options.network).sweep(options.optimizer), study.config.style)
    sys.stdout.write(f"{found}\n")
    log.info("%s", f"{files.csv}, {files.pdf.name}, {files.png.name}" if found.placements else files.csv)


def limits_in(words: list[str]) -> list[Limit]:
    """Limits between spaces or commas, each once.

    Raises:
        BadInputError: one is no limit, or there is none.
    """
    texts = [text for word in words for text in word.split(",") if text.strip()]
    if not texts:
        raise BadInputError("--limits: none given; give some such as 8:1,4:1, or leave it out for a series")
    return list(dict.fromkeys(map(Limit.parse, texts)))
