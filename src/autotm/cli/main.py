"""The commands: each stage of the pipeline alone, on the same files as the rules."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from autotm import stages
from autotm.cli import kernels, profile, records, sensitivity, solve, sweep
from autotm.cli.study import context_of, paths_of, study_of
from autotm.model.files import AutotmError
from autotm.model.machine import keep_to_allocation
from autotm.model.step import Counts, Limit
from autotm.model.study import StudyConfig
from autotm.study.setup import require_compiler

log = logging.getLogger("autotm")

_OPTIMIZER = "static, synchronous, asynchronous, numa (first touch), memory-mode (2LM), all-fast, all-slow"
_INTERRUPTED = 130
"""What a shell reports for a command that Ctrl-C ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 a fault that its message tells how to mend, 130 Ctrl-C."""
    options = _parser().parse_args(arguments)
    level = logging.DEBUG if options.verbose else logging.INFO
    logging.basicConfig(level=level, format="autotm: %(message)s", stream=sys.stderr)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # It tells of every table of every font.
    keep_to_allocation()
    try:
        options.command(options)
    except AutotmError as error:
        log.error("%s", error)  # noqa: TRY400 - the message is all a user needs
        return 1
    except KeyboardInterrupt:
        log.error("interrupted; files are written whole or not at all")  # noqa: TRY400 - as above
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="autotm", description=sys.modules["autotm"].__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="log what happens in detail")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    study = argparse.ArgumentParser(add_help=False)
    study.add_argument("--config", type=Path, default=Path("config/config.yaml"), help="the study (%(default)s)")
    study.add_argument("--results", type=Path, default=Path("results"), help="where files go (%(default)s)")
    study.add_argument("--scale", help="instead of the study's scale")
    study.add_argument("--machine", help="instead of the study's machine")
    study.add_argument("--threads", type=int, help="instead of the study's kernel threads")
    study.add_argument("--counts", choices=list(Counts), help="instead of what the study's limits count")
    network = argparse.ArgumentParser(add_help=False, parents=[study])
    network.add_argument("network", help="a network of the zoo or of your own, e.g. inception_v4 or my_mlp")
    placed = argparse.ArgumentParser(add_help=False, parents=[network])
    placed.add_argument("optimizer", help=_OPTIMIZER)
    placed.add_argument("limit", help="fast memory: a ratio slow:fast such as 8:1, or bytes such as 4500MB")

    for name, command, parent, text in (
        ("calibrate", _calibrate, study, "measure the copies between the machine's memories"),
        ("compile", _compile, placed, "give the tensors of a plan their addresses"),
        ("run", _run, placed, "verify and time a program"),
        ("check", _check, placed, "tell whether plan and program are legal"),
    ):
        commands.add_parser(name, parents=[parent], help=text, description=text).set_defaults(command=command)
    profile.add_command(commands, network)
    solve.add_commands(commands, placed, network)
    sweep.add_command(commands, network, _OPTIMIZER)
    kernels.add_commands(commands, study, network)
    sensitivity.add_command(commands, network)
    records.add_commands(commands, study)
    schema = commands.add_parser("schema", help="print the JSON schema of the study (config/schema.json)")
    schema.set_defaults(command=_schema)
    return parser


def _calibrate(options: argparse.Namespace) -> None:
    require_compiler()
    study = study_of(options)
    stages.calibrate_stage(context_of(study), study.config.profile.patience_s, links=study.machine_paths.links)


def _compile(options: argparse.Namespace) -> None:
    study = study_of(options)
    paths, limit = paths_of(study, options.network), Limit.parse(options.limit)
    stages.compile_stage(
        context_of(study),
        graph=paths.graph,
        profile=paths.profile,
        links=paths.links,
        plan=paths.plan(options.optimizer, limit),
        program=paths.program(options.optimizer, limit),
    )


def _run(options: argparse.Namespace) -> None:
    study = study_of(options)
    paths_of(study, options.network)
    stages.run_of_study(study, context_of(study), options.network, options.optimizer, Limit.parse(options.limit))


def _check(options: argparse.Namespace) -> None:
    study = study_of(options)
    paths, limit = paths_of(study, options.network), Limit.parse(options.limit)
    stages.check_stage(
        graph=paths.graph,
        profile=paths.profile,
        links=paths.links,
        plan=paths.plan(options.optimizer, limit),
        program=paths.program(options.optimizer, limit),
    )
    log.info("plan and program of %s %s %s are legal", options.network, options.optimizer, limit)


def _schema(_: argparse.Namespace) -> None:
    sys.stdout.write(json.dumps(StudyConfig.model_json_schema(), indent=1) + "\n")
