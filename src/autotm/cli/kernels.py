"""The commands around the kernel store: `autotm tune` and `autotm kernels`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from autotm import stages
from autotm.cli.study import context_of, paths_of, study_of
from autotm.model.files import BadInputError
from autotm.study.setup import Study

log = logging.getLogger("autotm")

_ALL = "all"


def add_commands(commands: Any, study: argparse.ArgumentParser, network: argparse.ArgumentParser) -> None:
    """Add both to the parser's `commands`; `study` and `network` hold the options that all commands share."""
    text = "search better schedules for a step's kernels (optional, and slow)"
    tune = commands.add_parser("tune", parents=[network], help=text, description=text)
    tune.add_argument("--trials", type=int, help="schedules tried for each kernel, instead of the study's")
    tune.add_argument("--kernels", default="*", metavar="PATTERN", help="only these operations, e.g. 'conv2d*'")
    tune.set_defaults(command=_tune)
    text = "list a step's kernels and what the kernel store knows of them; export the store, import another one"
    kernels = commands.add_parser("kernels", parents=[study], help=text, description=text)
    kernels.add_argument("what", help="a network, 'all' networks of the scale, 'export' or 'import'")
    kernels.add_argument("file", nargs="?", type=Path, help="the file to export to or to import")
    kernels.add_argument("--missing", action="store_true", help="only kernels that lack a timing or a tuned schedule")
    kernels.set_defaults(command=_kernels)


def _tune(options: argparse.Namespace) -> None:
    study = study_of(options)
    paths = paths_of(study, options.network)
    config = study.config.tune
    if options.trials is not None:
        if options.trials < 1:
            raise BadInputError(f"--trials: {options.trials} is not allowed: give 1 or more")
        config = config.model_copy(update={"trials": options.trials})
    stages.tune_stage(
        context_of(study),
        study.network(options.network),
        study.config.scale,
        config,
        study.scale.of_profile(study.config.profile),
        store=paths.store,
        report=paths.tuned,
        kernels=options.kernels,
    )


def _kernels(options: argparse.Namespace) -> None:
    study = study_of(options)
    if options.what in ("export", "import"):
        if options.file is None:
            raise BadInputError(f"kernels {options.what}: give the file: autotm kernels {options.what} FILE")
        (_export if options.what == "export" else _import)(study, options.file)
        return
    if options.file is not None:
        raise BadInputError(f"kernels: '{options.file}' is one word too many; give a network, or export or import FILE")
    for network in sorted(study.scale.networks) if options.what == _ALL else [options.what]:
        _list(study, network, only_missing=options.missing)


def _list(study: Study, network: str, *, only_missing: bool) -> None:
    from autotm.profile.tuning import table  # noqa: PLC0415  (imports TVM, which other commands need not wait for)

    paths = paths_of(study, network)
    scale = study.config.scale
    rows = stages.coverage_stage(
        context_of(study),
        study.network(network),
        scale,
        study.config.tune.min_gain,
        store=paths.store,
        profile=paths.profile,
    )
    calls, timed, tuned = (
        sum(values) for values in zip(*((r.calls, r.is_timed, r.is_tuned) for r in rows), strict=True)
    )
    neither = sum(not (row.is_timed or row.is_tuned) for row in rows)
    sys.stdout.write(
        f"{network} ({scale}) on {study.machine.slug}: {len(rows)} distinct kernels in {calls} calls, "
        f"{timed} timed, {tuned} tuned, {neither} neither\n"
    )
    shown = [row for row in rows if not (only_missing and row.is_timed and row.is_tuned)]
    if shown:
        sys.stdout.write(table(shown) + "\n")


def _export(study: Study, file: Path) -> None:
    counts = stages.export_store_stage(context_of(study), store=study.machine_paths.store, file=file)
    log.info("%s: %d timings and %d tuned schedules written", file, counts["timings"], counts["schedules"])


def _import(study: Study, file: Path) -> None:
    found = stages.import_store_stage(store=study.machine_paths.store, file=file)
    log.info(
        "%s: %d entries added, %d replaced by better ones, %d kept as they were, %d skipped",
        *(file, found.added, found.replaced, found.kept, found.skipped),
    )
