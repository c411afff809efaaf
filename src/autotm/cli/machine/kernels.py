"""The commands around the kernel store: `kernels list`, `kernels export` and `kernels import`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import click

from autotm import stages
from autotm.cli.answer import Answer, answering
from autotm.cli.completion import networks
from autotm.cli.options import FILE, context_of, of_study, paths_of
from autotm.study.setup import Study

log = logging.getLogger("autotm")

_ALL = "all"


@click.group()
def kernels() -> None:
    """The kernel store holds timings and schedules of every kernel that was measured on a machine."""


@kernels.command("list")
@of_study
@click.argument("network", shell_complete=networks)
@click.option("--missing", is_flag=True, help="Only kernels that lack a timing or a tuned schedule.")
@answering
def list_(study: Study, network: str, missing: bool) -> Answer:
    """List a step's kernels and what the store knows of them. NETWORK may be 'all': every one of the scale."""
    found = [
        _of_network(study, name, missing) for name in (sorted(study.scale.networks) if network == _ALL else [network])
    ]
    return Answer([one.data for one in found], "\n".join(one.text for one in found))


def _of_network(study: Study, network: str, only_missing: bool) -> Answer:
    from autotm.profile.tuning import table  # noqa: PLC0415  (imports TVM, which other commands need not wait for)

    paths, scale = paths_of(study, network), study.config.scale
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
    head = (
        f"{network} ({scale}) on {study.machine.slug}: {len(rows)} distinct kernels in {calls} calls, "
        f"{timed} timed, {tuned} tuned, {neither} neither"
    )
    shown = [row for row in rows if not (only_missing and row.is_timed and row.is_tuned)]
    data = {"network": network, "scale": scale, "kernels": [asdict(row) for row in shown]}
    return Answer(data, "\n".join([head, *([table(shown)] if shown else [])]))


@kernels.command("export")
@of_study
@click.argument("file", type=FILE)
@answering
def export(study: Study, file: Path) -> Answer:
    """Write the whole store to FILE, for `kernels import` elsewhere."""
    counts = stages.export_store_stage(context_of(study), store=study.machine_paths.store, file=file)
    log.info("%s: %d timings and %d tuned schedules written", file, counts["timings"], counts["schedules"])
    return Answer({"file": file, **counts})


@kernels.command("import")
@of_study
@click.argument("file", type=FILE)
@answering
def import_(study: Study, file: Path) -> Answer:
    """Take over what FILE holds and is better than what the store has."""
    found = stages.import_store_stage(store=study.machine_paths.store, file=file)
    log.info(
        "%s: %d entries added, %d replaced by better ones, %d kept as they were, %d skipped",
        *(file, found.added, found.replaced, found.kept, found.skipped),
    )
    return Answer(asdict(found))
