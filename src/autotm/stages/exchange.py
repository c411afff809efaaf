"""Stages that exchange files with other machines: a network's results, and the store of kernel times."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from autotm.model.errors import BadInputError, DamagedFileError, FileVersionError
from autotm.model.files import RESULTS, load, read_json, read_results, require_writable, write_atomically, write_results
from autotm.model.graph import Graph
from autotm.model.links import Links
from autotm.model.paths import Paths
from autotm.model.plan import Plan
from autotm.model.profile import read_profile, write_profile
from autotm.model.program import Program
from autotm.model.provenance import provenance
from autotm.model.record import Record
from autotm.stages.context import Context

if TYPE_CHECKING:
    from autotm.profile.store import Merged


# Measurements and plans of a network as one file, to be looked at, checked and compared elsewhere.
#
# The file is a zip of `manifest.json` (kind, format, the SHA-256 of each file, where they come from) and the files of
# the pipeline as they are, by their paths below the results. Machine code is not among them: it is of one machine.

_OF_A_PLAN = ("plan.json", "program.json", "record.json")
_TYPES: Mapping[str, tuple[str, type[Any]]] = {
    "links.json": ("links", Links), "graph.json": ("graph", Graph), "plan.json": ("plan", Plan),
    "program.json": ("program", Program), "record.json": ("record", Record),
}  # fmt: skip
_PROFILE, _TEXT_PROFILE = "profile.parquet", "profile.json"


@dataclass(frozen=True)
class Imported:
    """Files of an export by their fate: `added` were missing here, `replaced` differed, `kept` were the same."""

    added: tuple[Path, ...]
    replaced: tuple[Path, ...]
    kept: tuple[Path, ...]


def export_results_stage(context: Context, *, paths: Paths, file: Path) -> list[Path]:
    """Write links, step, profile, plans, programs and records of a network, all or none; return the paths.

    Raises:
        BadInputError: the network was not profiled on this machine at this scale.
    """
    first = [paths.links, paths.graph, paths.profile]
    if missing := [path for path in first if not path.exists()]:
        raise BadInputError(f"{missing[0]}: no such file; measure first: autotm profile {paths.network}")
    of_plans = [path for name in _OF_A_PLAN for path in sorted(paths.graph.parent.glob(f"*/*/{name}"))]
    contents = {path.relative_to(paths.results).as_posix(): path.read_bytes() for path in (*first, *of_plans)}
    write_results(file, contents, provenance(context.machine, context.seed))
    return [*first, *of_plans]


def import_results_stage(*, file: Path, results: Path, replaces: bool) -> Imported:
    """Put the files of an export below `results`; write none unless all can be read.

    Args:
        file: an export by `export_results_stage`.
        results: the folder that its files go to.
        replaces: whether to replace files that differ.

    Raises:
        DamagedFileError: no such file, no export, cut or changed.
        FileVersionError: another version of autotm made it, or a file in it.
        BadInputError: a file would be replaced, and `replaces` is false.
    """
    contents = _read(file)
    imported: dict[str, list[Path]] = {"added": [], "replaced": [], "kept": []}
    for name, content in contents.items():
        path = results / name
        there = path.read_bytes() if path.exists() else None
        imported["added" if there is None else "kept" if there == content else "replaced"].append(path)
    if imported["replaced"] and not replaces:
        raise BadInputError(
            f"{file}: {len(imported['replaced'])} of its files are there and differ, {imported['replaced'][0]} first; "
            "nothing was imported. Give another folder with --results, or --replace"
        )
    for name, content in contents.items():
        if (path := results / name) not in imported["kept"]:
            write_atomically(path, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
    return Imported(**{key: tuple(paths) for key, paths in imported.items()})


def _read(file: Path) -> dict[str, bytes]:
    """Read files by path below the results; refuse all if one is damaged. Convert a profile written without pyarrow."""
    contents = {}
    with tempfile.TemporaryDirectory(prefix="autotm-import-") as folder:
        for number, (name, content) in enumerate(read_results(file).items()):
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts or place.name not in {*_TYPES, _PROFILE, _TEXT_PROFILE}:
                raise RESULTS.damaged(file, f"{name} is no place below the results")
            copy = Path(folder, str(number), place.name)
            copy.parent.mkdir()
            copy.write_bytes(content)
            try:
                if place.name in _TYPES:
                    load(copy, *_TYPES[place.name])
                else:
                    profile = read_profile(copy)
            except DamagedFileError as error:
                if isinstance(error, FileVersionError):
                    text = f"{file}: {name} was {error.origin}; {RESULTS.remedy(file)}"
                    raise FileVersionError(text, error.origin) from None
                raise RESULTS.damaged(file, f"{name}: {str(error).split('; remove it')[0]}") from None
            if place.name == _TEXT_PROFILE:
                place, copy = place.with_name(_PROFILE), copy.with_name(_PROFILE)
                write_profile(copy, profile)
            contents[place.as_posix()] = copy.read_bytes()
    return contents


def imported_plans(imported: Imported) -> Iterator[str]:
    """Yield the network, optimizer and limit, as commands take them, of each plan of an import."""
    for path in sorted({*imported.added, *imported.replaced, *imported.kept}):
        if path.name == "plan.json":
            plan = read_json(path, "plan")["plan"]
            yield f"{path.parents[2].name} {plan['optimizer']} {plan['limit']}"


# The kernel store as one file, for other machines.


def export_store_stage(context: Context, *, store: Path, file: Path) -> Mapping[str, int]:
    """Write the kernel store's entries into one file; return how many there are of each kind."""
    from autotm.profile.store import KernelStore, export_store

    with KernelStore(store) as opened:
        return export_store(opened, file, provenance(context.machine, context.seed))


def import_store_stage(*, store: Path, file: Path) -> Merged:
    """Merge a file that `export_store_stage` wrote into the kernel store."""
    from autotm.profile.store import KernelStore, import_store

    require_writable(store)
    with KernelStore(store) as opened:
        return import_store(opened, file)
