"""What was measured and placed for a network as one file, to be looked at, checked and compared elsewhere.

The file is a zip of `manifest.json` (kind, format, the SHA-256 of each file, where they come from) and the files of the
pipeline as they are, by their paths below the results. Machine code is not among them: it is of one machine.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from autotm.model.files import BadInputError, DamagedFileError, load, read_json, write_atomically
from autotm.model.machine import provenance
from autotm.model.measurement import Links, Record, read_profile
from autotm.model.plan import Plan, Program
from autotm.model.step import Graph
from autotm.model.study import Paths
from autotm.stages.context import Context

KIND = "results export"
FORMAT = 1
_MANIFEST = "manifest.json"
_OF_A_PLAN = ("plan.json", "program.json", "record.json")
_TYPES: Mapping[str, tuple[str, type[Any]]] = {
    "links.json": ("links", Links), "graph.json": ("graph", Graph), "plan.json": ("plan", Plan),
    "program.json": ("program", Program), "record.json": ("record", Record),
}  # fmt: skip
_PROFILE = "profile.parquet"


@dataclass(frozen=True)
class Imported:
    """What became of the files of an export: `added` were not there, `replaced` were others, `kept` were the same."""

    added: tuple[Path, ...]
    replaced: tuple[Path, ...]
    kept: tuple[Path, ...]


def export_results_stage(context: Context, *, paths: Paths, file: Path) -> list[Path]:
    """Write links, step, profile, plans, programs and records of a network, whole or not at all; returns which.

    Raises:
        BadInputError: the network was not profiled on this machine at this scale.
    """
    first = [paths.links, paths.graph, paths.profile]
    if missing := [path for path in first if not path.exists()]:
        raise BadInputError(f"{missing[0]}: no such file; measure first: autotm profile {paths.network}")
    of_plans = [path for name in _OF_A_PLAN for path in sorted(paths.graph.parent.glob(f"*/*/{name}"))]
    contents = {path.relative_to(paths.results).as_posix(): path.read_bytes() for path in (*first, *of_plans)}
    manifest = {
        "kind": KIND,
        "format": FORMAT,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        "provenance": provenance(context.machine, context.seed),
    }

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
            for name, content in contents.items():
                archive.writestr(name, content)

    write_atomically(file, write)
    return [*first, *of_plans]


def import_results_stage(*, file: Path, results: Path, replaces: bool) -> Imported:
    """Put the files of an export below `results`; each is read first, and nothing is written where one is not sound.

    Args:
        file: what `export_results_stage` wrote.
        results: the folder that they go to.
        replaces: whether files that are there and differ give way.

    Raises:
        DamagedFileError: no such file, no export, cut or changed, or made by another version of autotm.
        BadInputError: a file is there, and another one.
    """
    contents = _read(file)
    _require_readable(file, contents)
    found: dict[str, list[Path]] = {"added": [], "replaced": [], "kept": []}
    for name, content in contents.items():
        path = results / name
        there = path.read_bytes() if path.exists() else None
        found["added" if there is None else "kept" if there == content else "replaced"].append(path)
    if found["replaced"] and not replaces:
        raise BadInputError(
            f"{file}: {len(found['replaced'])} of its files are there and differ, {found['replaced'][0]} first; "
            "nothing was imported. Give another folder with --results, or --replace"
        )
    for name, content in contents.items():
        if (path := results / name) not in found["kept"]:
            write_atomically(path, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
    return Imported(**{key: tuple(paths) for key, paths in found.items()})


def _read(file: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            wanted = manifest["files"] if isinstance(manifest, dict) and manifest.get("kind") == KIND else None
            contents = {name: archive.read(name) for name in wanted or ()}
    except FileNotFoundError:
        raise DamagedFileError(f"{file}: no such file; make it with: autotm export NETWORK {file}") from None
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, TypeError) as error:
        raise _damaged(file, f"it cannot be read ({error})") from None
    if wanted is None:
        raise _damaged(file, f"it is not a {KIND}")
    if manifest.get("format") != FORMAT:
        raise _damaged(file, f"it is of format {manifest.get('format')}, this autotm reads {FORMAT}")
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != wanted[name]:
            raise _damaged(file, f"{name} is not what was exported")
        if not _is_below(name):
            raise _damaged(file, f"{name} is no place below the results")
    return contents


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.name in {*_TYPES, _PROFILE}


def _require_readable(file: Path, contents: Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="autotm-import-") as folder:
        for number, (name, content) in enumerate(contents.items()):
            path = Path(folder, str(number), PurePosixPath(name).name)
            write_atomically(path, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
            try:
                _load(path)
            except DamagedFileError as error:
                raise _damaged(file, f"{name}: {str(error).split('; remove it')[0]}") from None


def _load(path: Path) -> None:
    if path.name == _PROFILE:
        read_profile(path)
        return
    kind, value_type = _TYPES[path.name]
    load(path, kind, value_type)


def _damaged(file: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(
        f"{file}: damaged {KIND}: {reason}; nothing was imported. Export it again where it comes from: "
        f"autotm export NETWORK {file.name}"
    )


def imported_plans(found: Imported) -> Iterator[tuple[Path, str, str, str]]:
    """Each plan that is there now: its path, and network, optimizer and limit as commands take them."""
    for path in sorted({*found.added, *found.replaced, *found.kept}):
        if path.name == "plan.json":
            plan = read_json(path, "plan")["plan"]
            yield path, path.parents[2].name, plan["optimizer"], plan["limit"]
