"""The kernel store as one file, so that what one machine timed is known on another.

The file is a zip of `manifest.json` (kind, versions, hash of the contents, where they come from) and one text file per
table, a JSON list per line. Timings of another processor keep their own context and so never stand for this one's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotm.model.errors import DamagedFileError, made_by_another
from autotm.model.files import write_atomically
from autotm.profile.store import KernelStore, writing

log = logging.getLogger(__name__)

KIND = "kernel store export"
FORMAT = 1
"""Version of the file's make-up; that of the entries stands beside each table."""
SCHEMAS = {"contexts": 1, "timings": 2}
"""The tables that are exchanged, and the version of the entries in each; other tables of a file are ignored."""
_MANIFEST = "manifest.json"
_TYPES: Mapping[str, type] = {"TEXT": str, "INTEGER": int}

_SIGNED = ("beyond_ns",)
"""Columns of numbers that may be below zero."""

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Merged:
    """What became of the timings of an imported file.

    Attributes:
        added: were unknown.
        kept: the store has one already.
        skipped: of another version, or not what an entry should be.
    """

    added: int = 0
    kept: int = 0
    skipped: int = 0

    def plus(self, **more: int) -> Merged:
        """With some numbers raised."""
        return Merged(**{name: value + more.get(name, 0) for name, value in vars(self).items()})


def export_store(store: KernelStore, path: Path, provenance: Mapping[str, Any]) -> dict[str, int]:
    """Write every entry of `store` to `path`, whole or not at all; returns the number of entries by table."""
    texts, counts = {}, {}
    for table in SCHEMAS:
        rows = store.connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608
        texts[table] = "".join(json.dumps(row) + "\n" for row in rows)
        counts[table] = len(rows)
    manifest = {
        "kind": KIND,
        "format": FORMAT,
        "contents_hash": _hash(texts),
        "tables": {name: {"schema": schema, "entries": counts[name]} for name, schema in SCHEMAS.items()},
        "provenance": dict(provenance),
    }

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
            for name, text in texts.items():
                archive.writestr(f"{name}.jsonl", text)

    write_atomically(path, write)
    return counts


def import_store(store: KernelStore, path: Path) -> Merged:
    """Merge the entries of `path` into `store`, all or, if killed, none; timings in the store stay.

    Raises:
        DamagedFileError: no such file, not an export, cut or changed.
        FileVersionError: it is of another format.
    """
    manifest, texts = _read(path)
    counts = Merged()
    with writing(store.connection):
        for table, schema in SCHEMAS.items():
            described = manifest["tables"].get(table, {"schema": schema, "entries": 0})
            if described["schema"] != schema:
                log.warning("%s: %s of schema %s are skipped, not %s", path, table, described["schema"], schema)
                counts = counts.plus(skipped=described["entries"])
                continue
            for row in _rows(store.connection, table, texts.get(table, "")):
                counts = _merge(store.connection, table, row, counts)
    return counts


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            names = [name for name in archive.namelist() if name != _MANIFEST]
            texts = {name.removesuffix(".jsonl"): archive.read(name).decode() for name in names}
    except FileNotFoundError:
        raise DamagedFileError(f"{path}: no such file; make it with: autotm kernels export {path}") from None
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError) as error:
        raise _damaged(path, f"it cannot be read ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise _damaged(path, f"it is not a {KIND}")
    if type(found := manifest.get("format")) is not int:
        raise _damaged(path, f"its format is {found!r}")
    if found != FORMAT:
        raise made_by_another(path, found, FORMAT, _again(path), "format")
    if manifest.get("contents_hash") != _hash(texts):
        raise _damaged(path, "its contents are not those that were exported")
    return manifest, texts


def _damaged(path: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(f"{path}: damaged kernel store export: {reason}; {_again(path)}")


def _again(path: Path) -> str:
    return f"nothing was imported. Export it again where it comes from: autotm kernels export {path.name}"


def _hash(texts: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name}\n{texts[name]}".encode())
    return digest.hexdigest()


def _rows(connection: sqlite3.Connection, table: str, text: str) -> Iterator[Row | None]:
    """Each line of a table as a row, or None where it is none."""
    columns = [
        (_TYPES[kind], bool(needed), name in _SIGNED)
        for _, name, kind, needed, *_ in connection.execute(f"PRAGMA table_info({table})")
    ]
    for line in text.splitlines():
        row = json.loads(line)
        fits = len(row) == len(columns) and all(
            (value is None and not needed) or (type(value) is kind and (kind is str or signed or value >= 0))
            for value, (kind, needed, signed) in zip(row, columns, strict=True)
        )
        yield tuple(row) if fits else None


def _merge(connection: sqlite3.Connection, table: str, row: Row | None, counts: Merged) -> Merged:
    if row is None:
        return counts.plus(skipped=1)
    marks = ", ".join("?" * len(row))
    added = connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row).rowcount  # noqa: S608
    if table == "contexts":
        return counts
    return counts.plus(added=1) if added else counts.plus(kept=1)
