"""The commands that place tensors within one limit, and bound what placement cannot give."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TypeAlias

from autotm import stages
from autotm.cli.study import context_of, paths_of, study_of
from autotm.model.step import Limit

log = logging.getLogger("autotm")

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - it has no public name


def add_commands(commands: Commands, placed: argparse.ArgumentParser, network: argparse.ArgumentParser) -> None:
    """Add `solve` and `potential`."""
    text = "place a step's tensors within a limit"
    solve = commands.add_parser("solve", parents=[placed], help=text, description=text)
    solve.add_argument("--write-mps", type=Path, metavar="FILE", help="write the integer program, too (.mps, .mps.gz)")
    solve.set_defaults(command=_solve)
    text = "bound what recomputing tensors, or another order of kernels, could save beside the synchronous plan"
    potential = commands.add_parser("potential", parents=[network], help=text, description=text)
    potential.add_argument("limit", help="of a synchronous plan that was solved before")
    potential.set_defaults(command=_potential)


def _solve(options: argparse.Namespace) -> None:
    study = study_of(options)
    paths, limit = paths_of(study, options.network), Limit.parse(options.limit)
    given = stages.Given.of(paths)
    if options.write_mps:
        size = stages.export_program_stage(
            context_of(study), options.optimizer, limit, study.config.solve, given, program=options.write_mps
        )
        log.info("%s: %d columns, %d rows, %d nonzeros", options.write_mps, size.columns, size.rows, size.nonzeros)
    plans = {limit: paths.plan(options.optimizer, limit)}
    stages.sweep_stage(context_of(study), options.optimizer, plans, study.config.solve, given)


def _potential(options: argparse.Namespace) -> None:
    study = study_of(options)
    paths, limit = paths_of(study, options.network), Limit.parse(options.limit)
    given = stages.Given.of(paths)
    plan = paths.plan("synchronous", limit)
    found = stages.potential_stage(context_of(study), study.config.solve, given, plan=plan)
    sys.stdout.write(
        f"synchronous {limit}: {found.objective_us:.6g} us predicted, proven within {found.gain(found.bound_us):.2%}\n"
        f"recomputing could save at most {found.gain(found.recomputation_us):.2%}, "
        f"any order of kernels at most {found.gain(found.any_order_us):.2%} (bounds; they may be far from reachable)\n"
    )
