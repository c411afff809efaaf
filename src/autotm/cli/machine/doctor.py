"""The command `doctor`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from autotm.cli.answer import Answer, answering
from autotm.cli.options import FOLDER
from autotm.model.files import BadInputError
from autotm.study.doctor import Use, findings, findings_text, found_slow, write_machine_file

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
    found = findings(results)
    if name:
        write_machine_file(folder / f"{name}.yaml", found_slow())
        log.info("%s: use it with --machine %s, or machine: %s in the study", folder / f"{name}.yaml", name, name)
    missing = [one for one in found if one.use is Use.MISSING]
    fault = BadInputError("; ".join(f"{one.what}: {one.found}: {one.why}" for one in missing)) if missing else None
    return Answer(found, findings_text(found), fault)
