"""The command `autotm profile`: compile a step, time its kernels, and tell where the time goes."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from autotm import stages
from autotm.cli.study import context_of, paths_of, study_of
from autotm.model.files import BadInputError
from autotm.study.setup import require_compiler

log = logging.getLogger("autotm")


def add_command(commands: Any, network: argparse.ArgumentParser) -> None:
    """Add it to the parser's `commands`; `network` holds the options that commands on one network share."""
    text = "compile a training step, time its kernels, and tell where the time goes against what the machine can do"
    command = commands.add_parser("profile", parents=[network], help=text, description=text)
    command.add_argument("--worst", type=int, default=10, help="how many of the worst kernels to name (%(default)s)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the whole report there")
    command.add_argument("--csv", type=Path, metavar="FILE", help="write a row for each kernel there")
    command.set_defaults(command=_profile)


def _profile(options: argparse.Namespace) -> None:
    from autotm.study.kernel_report import (  # noqa: PLC0415 - imports pandas: help and messages need not wait
        report_text,
        write_kernel_csv,
        write_report_json,
    )

    if options.worst < 0:
        raise BadInputError(f"--worst: {options.worst} is not allowed: give 0 or more")
    study = study_of(options)
    paths = paths_of(study, options.network)
    require_compiler()
    stages.profile_of_study(study, context_of(study), options.network)
    report, came_from = stages.kernel_report_stage(graph=paths.graph, profile=paths.profile, links=paths.links)
    sys.stdout.write(report_text(report, study.machine.slug, options.worst) + "\n")
    if options.json:
        write_report_json(options.json, report, came_from)
    if options.csv:
        write_kernel_csv(options.csv, report, came_from)
