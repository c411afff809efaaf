"""The commands `doctor`, `kernels`, `export`, `import`, `bundle` and `schema`."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

import click

from autotm.cli.command import Answer, answering
from autotm.cli.options import FILE, FOLDER, Placement, context_of, of_network, of_placement, of_study, paths_of
from autotm.model.config import StudyConfig
from autotm.model.errors import AutotmError, BadInputError
from autotm.stages.bundle import bundle_stage
from autotm.stages.control_flow import needed_kernels
from autotm.stages.exchange import (
    export_results_stage,
    export_store_stage,
    import_results_stage,
    import_store_stage,
    imported_plans,
)
from autotm.study.columns import columns
from autotm.study.setup import Study

log = logging.getLogger("autotm")


def _name(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    if name is not None and (not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name[0] == "."):
        raise click.BadParameter("letters, digits, '-', '_' and '.' only")
    return name


@click.command()
@click.option("--write", "name", metavar="NAME", callback=_name, help="Write a first machine file of that name, too.")
@click.option("--folder", type=FOLDER, default=Path("config/machines"), show_default=True, help="Where it goes.")
@click.option("--results", type=FOLDER, default=Path("results"), show_default=True, help="Where files would go.")
@answering
def doctor(name: str | None, folder: Path, results: Path) -> Answer:
    """Memories, cores, pages, compiler, GPU, packages. Exit status 1 where what nothing works without is missing."""
    from autotm.study.doctor import (  # noqa: PLC0415 - no other command needs what it looks at
        Use,
        findings,
        findings_text,
        slow_memories,
        write_machine_file,
    )

    diagnosis = findings(results)
    if name:
        write_machine_file(folder / f"{name}.yaml", slow_memories())
        log.info("%s: use it with --machine %s, or machine: %s in the study", folder / f"{name}.yaml", name, name)
    missing = [one for one in diagnosis if one.use is Use.MISSING]
    fault = BadInputError("; ".join(f"{one.what}: {one.found}: {one.why}" for one in missing)) if missing else None
    return Answer(diagnosis, findings_text(diagnosis), fault)


@click.group()
def kernels() -> None:
    """The kernel store holds timings of every kernel that was measured on a machine; `check` needs no store."""


@kernels.command("export")
@of_study
@click.argument("file", type=FILE)
@answering
def export_store(study: Study, file: Path) -> Answer:
    """Write the whole store to FILE, for `kernels import` elsewhere."""
    counts = export_store_stage(context_of(study), store=study.machine_paths.store, file=file)
    log.info("%s: %d timings written", file, counts["timings"])
    return Answer({"file": file, **counts})


@kernels.command("import")
@of_study
@click.argument("file", type=FILE)
@answering
def import_store(study: Study, file: Path) -> Answer:
    """Take over the timings in FILE that the store lacks."""
    merged = import_store_stage(store=study.machine_paths.store, file=file)
    log.info("%s: %d timings added, %d known before, %d skipped", file, merged.added, merged.kept, merged.skipped)
    return Answer(asdict(merged))


@kernels.command("check")
@of_study
@answering
def check_kernels(study: Study) -> Answer:
    """Tell which kernels the models with control flow need, and where the schedule of each comes from.

    Exit status 1 where one is missing, or no rule knows how to schedule it.
    """
    sizes, threads = study.scale.control_flow, study.config.control_flow.threads
    needed = needed_kernels(sizes, study.config.seed, threads)
    lines = [("model", "kernel", "schedule"), *((one.model, one.kernel, one.schedule or "missing") for one in needed)]
    missing = [f"{one.model}: {one.kernel}" for one in needed if one.is_missing]
    fault = AutotmError(f"{len(missing)} kernels have no schedule: {'; '.join(missing)}") if missing else None
    log.info("%d kernels of %d models, %d without a schedule", len(needed), len(sizes), len(missing))
    return Answer(needed, columns(lines, left=3), fault)


# The commands `export` and `import`.


@click.command()
@of_network
@click.argument("file", type=FILE)
@answering
def export(study: Study, network: str, file: Path) -> Answer:
    """FILE is a zip of the network's links.json, graph.json, profile.parquet and every plan, program and record."""
    written = export_results_stage(context_of(study), paths=paths_of(study, network), file=file)
    log.info("%s: %d files", file, len(written))
    return Answer({"file": file, "files": written})


@click.command("import")
@click.argument("file", type=FILE)
@click.option(
    "--results",
    type=FOLDER,
    default=Path("results"),
    show_default=True,
    metavar="FOLDER",
    help="Where files go: below it, each in its machine's folder.",
)
@click.option("--replace", "replaces", is_flag=True, help="Replace files that are there and differ.")
@answering
def import_(file: Path, results: Path, replaces: bool) -> Answer:
    """For looking, checking and comparing: a machine's own pipeline uses what it measured itself."""
    merged = import_results_stage(file=file, results=results, replaces=replaces)
    log.info("%d files added, %d replaced, %d were the same", *map(len, (merged.added, merged.replaced, merged.kept)))
    return Answer(asdict(merged), "\n".join(imported_plans(merged)))


@click.command()
@of_placement
@click.option("--to", "file", type=FILE, metavar="FILE", help="The archive.  [default: NETWORK-OPTIMIZER-LIMIT.tar.xz]")
@click.option("--python", help="Version of CPython on the host, such as 3.12; others than this one are downloaded.")
@click.option(
    "--gpu", default="h100", show_default=True, help="On a machine of kind cuda: the GPU whose facts decide tiles."
)
@answering
def bundle(placement: Placement, file: Path | None, python: str | None, gpu: str) -> Answer:
    """A program with its kernels, and what of Python's libraries runs them: one archive for a host without a compiler.

    There: tar xf FILE && python3 NETWORK-OPTIMIZER-LIMIT check; then run, or profile. What these write,
    `autotm import` takes in.
    """
    study, optimizer, limit = placement.study, placement.optimizer, placement.limit
    file = file or Path(f"{placement.network}-{optimizer}-{limit.slug}.tar.xz")
    built = bundle_stage(study, context_of(study), placement.paths, optimizer, limit, gpu=gpu, python=python, file=file)
    log.info("%s: %.1f MB, for CPython %s on %s", built.file, built.size_bytes / 1e6, built.python, built.machine)
    return Answer(built, f"tar xf {built.file.name} && python{built.python} {built.folder} check")


@click.command()
def schema() -> None:
    """Editors read it: defaults, limits and meanings of every key."""
    click.echo(json.dumps(StudyConfig.model_json_schema(), indent=1))
