"""The command `bundle`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from autotm import stages
from autotm.cli.answer import Answer, answering
from autotm.cli.options import FILE, context_of, of_placement, paths_of
from autotm.model.step import Limit
from autotm.study.setup import Study

log = logging.getLogger("autotm")


@click.command()
@of_placement
@click.option("--to", "file", type=FILE, metavar="FILE", help="The archive.  [default: NETWORK-OPTIMIZER-LIMIT.tar.xz]")
@click.option("--python", help="Version of CPython on the host, such as 3.12; others than this one are downloaded.")
@click.option(
    "--gpu", default="h100", show_default=True, help="On a machine of kind cuda: the GPU whose facts decide tiles."
)
@answering
def bundle(
    study: Study, network: str, optimizer: str, limit: str, file: Path | None, python: str | None, gpu: str
) -> Answer:
    """A program with its kernels, and what of Python's libraries runs them: one archive for a host without a compiler.

    There: tar xf FILE && python3 NETWORK-OPTIMIZER-LIMIT check; then run, or profile. What these write,
    `autotm import` takes in.
    """
    parsed = Limit.parse(limit)
    made = stages.bundle_stage(
        context_of(study),
        study.scale.of_run(study.config.run),
        study.scale.of_profile(study.config.profile),
        paths=paths_of(study, network),
        optimizer=optimizer,
        limit=parsed,
        network=study.network(network),
        machine_file=study.config_dir / "machines" / f"{study.machine.name}.yaml",
        gpu=gpu,
        python=python,
        file=file or Path(f"{network}-{optimizer}-{parsed.slug}.tar.xz"),
    )
    log.info("%s: %.1f MB, for CPython %s on %s", made.file, made.size_bytes / 1e6, made.python, made.machine)
    return Answer(made, f"tar xf {made.file.name} && python{made.python} {made.folder} check")
