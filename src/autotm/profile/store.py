"""The kernel store: timings of kernels kept across networks, limits and runs; and as a file, for other machines."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

from autotm.model.errors import AutotmError
from autotm.model.files import Archive
from autotm.model.profile import Timing

# The store itself. It is a cache: deleting it costs time, never truth.

log = logging.getLogger(__name__)

_VERSION = 2  # of the tables below; a store of another one is refused
_TABLE = """
CREATE TABLE IF NOT EXISTS timings (
  context TEXT NOT NULL, identity TEXT NOT NULL, implementation TEXT NOT NULL, configuration TEXT NOT NULL,
  delay_ns INTEGER NOT NULL, min_ns INTEGER NOT NULL, median_ns INTEGER NOT NULL, lower_quartile_ns INTEGER NOT NULL,
  upper_quartile_ns INTEGER NOT NULL, repeats INTEGER NOT NULL, beyond_ns INTEGER, beyond_error_ns INTEGER NOT NULL,
  default_identity TEXT, disturbed INTEGER NOT NULL, measured TEXT NOT NULL,
  PRIMARY KEY (context, identity, implementation, configuration, delay_ns)
) WITHOUT ROWID
"""
_CONTEXTS = "CREATE TABLE IF NOT EXISTS contexts (context TEXT PRIMARY KEY, description TEXT NOT NULL) WITHOUT ROWID"
_SELECT = """
SELECT min_ns, median_ns, lower_quartile_ns, upper_quartile_ns, repeats, beyond_ns, beyond_error_ns, default_identity,
  disturbed FROM timings
WHERE context = ? AND identity = ? AND implementation = ? AND configuration = ? AND delay_ns = ?
"""
_INSERT = "INSERT OR REPLACE INTO timings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class StoreKey:
    """Key of a timing: all that the timing depends on.

    `identity` covers code, shapes and dtypes; `delay_ns` is the emulated wait that is part of the time; `context` is
    the hash of all that is common to a profile: tier, target, threads, cores, processor, TVM, way of timing.
    """

    context: str
    identity: str
    implementation: str
    configuration: str
    delay_ns: int


class KernelStore:
    """One SQLite file, which nodes may share. A `put` is a transaction that survives kills. Close it, or use `with`.

    Attributes:
        connection: the open database.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the store at `path`; a damaged one is set aside and replaced by an empty one.

        One in a read-only folder can be read.

        Raises:
            AutotmError: there is none and none can be made, or others do not let go of it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.connection = _open(path)
        except sqlite3.OperationalError as error:
            raise _unusable(path, error) from error
        except sqlite3.DatabaseError as error:
            _set_aside(path, str(error))
            self.connection = _open(path)

    def get(self, key: StoreKey) -> Timing | None:
        """Return the timing stored under `key`, if any."""
        row = self.connection.execute(_SELECT, astuple(key)).fetchone()
        return None if row is None else Timing(*row[:-1], disturbed=bool(row[-1]))

    def put(self, timings: Mapping[StoreKey, Timing]) -> None:
        """Store all of `timings` or, if killed, none; older ones of the same key are replaced."""
        measured = dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds")
        rows = [(*astuple(key), *astuple(timing), measured) for key, timing in timings.items()]
        with _writing(self.connection):
            self.connection.executemany(_INSERT, rows)

    def describe(self, context: str, description: str) -> None:
        """Keep the readable text behind a context hash."""
        with _writing(self.connection):
            self.connection.execute("INSERT OR REPLACE INTO contexts VALUES (?, ?)", (context, description))

    def close(self) -> None:
        """Write everything out and let go of the file."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Open a transaction: all that is written within it stays, or, if it fails (AutotmError) or is killed, nothing."""
    try:
        with connection:
            yield
    except sqlite3.OperationalError as error:
        raise _unusable(connection.execute("PRAGMA database_list").fetchone()[2], error) from error


def _unusable(path: object, error: sqlite3.OperationalError) -> AutotmError:
    """Return the error of a full disk, a read-only folder or a lock that is never let go."""
    return AutotmError(
        f"{path}: the kernel store cannot be used: {error}; what it held is as it was. Free some space, or make its "
        "folder writable, then give the same command again"
    )


def _set_aside(path: Path, reason: str) -> None:
    """Rename a damaged store, with its journal, to `*.damaged-TIME`."""
    stamp = dt.datetime.now(tz=dt.UTC).strftime("%Y%m%dT%H%M%S%f")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in ("", "-journal", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    log.warning(
        "%s: damaged kernel store (%s), set aside as %s; its kernels will be timed again", path, reason, aside.name
    )


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=60)
    try:
        if not _has_tables(connection):
            # Not WAL, which needs memory that all processes share: nodes of a cluster share the folder only.
            connection.execute("PRAGMA journal_mode = DELETE")
            with connection:
                connection.execute(_TABLE)
                connection.execute(_CONTEXTS)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _has_tables(connection: sqlite3.Connection) -> bool:
    """Return whether all tables are there; sqlite3.DatabaseError if the file is damaged, or of another version."""
    verdict, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("quick_check", "user_version"))
    if verdict != "ok":
        raise sqlite3.DatabaseError(str(verdict))
    if version not in {0, _VERSION}:
        raise sqlite3.DatabaseError(f"it is of version {version}, this autotm reads {_VERSION}")
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return version == _VERSION and tables >= {"timings", "contexts"}


# The store as one file, so that what one machine timed is known on another: a zip of `manifest.json` (kind, versions,
# hash of the contents, where they come from) and one text file per table, a JSON list per line. Timings of another
# processor keep their own context and so never stand for this one's.

_EXPORT = Archive("kernel store export", 1, "kernels export")
"""Its format is that of the file's make-up; that of the entries stands beside each table."""
SCHEMAS = {"contexts": 1, "timings": 2}
"""The tables that are exchanged, and the version of the entries in each; other tables of a file are ignored."""
_TYPES: Mapping[str, type] = {"TEXT": str, "INTEGER": int}

_SIGNED = ("beyond_ns",)
"""Columns of numbers that may be below zero."""


@dataclass(frozen=True)
class Merged:
    """Numbers of timings of an imported file, by what became of them.

    Attributes:
        added: timings that were unknown.
        kept: timings that the store had already.
        skipped: timings of another version, or that are not what an entry should be.
    """

    added: int = 0
    kept: int = 0
    skipped: int = 0


def export_store(store: KernelStore, path: Path, provenance: Mapping[str, Any]) -> dict[str, int]:
    """Write every entry of `store` to `path`, whole or not at all; return the number of entries by table."""
    texts, tables = {}, {}
    for table, schema in SCHEMAS.items():
        rows = store.connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608
        texts[f"{table}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
        tables[table] = {"schema": schema, "entries": len(rows)}
    _EXPORT.write(path, texts, contents_hash=_hash(texts), tables=tables, provenance=dict(provenance))
    return {name: table["entries"] for name, table in tables.items()}


def import_store(store: KernelStore, path: Path) -> Merged:
    """Merge the entries of `path` into `store`, all or, if killed, none; timings in the store stay.

    Raises:
        DamagedFileError: no such file, not an export, cut or changed.
        FileVersionError: it is of another format.
    """
    manifest, texts = _EXPORT.read(path)
    if manifest.get("contents_hash") != _hash(texts):
        raise _EXPORT.damaged(path, "its contents are not those that were exported")
    counts = Counter[str]()
    with _writing(store.connection):
        for table, schema in SCHEMAS.items():
            described = manifest["tables"].get(table, {"schema": schema, "entries": 0})
            if described["schema"] != schema:
                log.warning("%s: %s of schema %s are skipped, not %s", path, table, described["schema"], schema)
                counts["skipped"] += described["entries"]
                continue
            for row in _rows(store.connection, table, texts.get(f"{table}.jsonl", b"")):
                if row is None:
                    counts["skipped"] += 1
                    continue
                marks = ", ".join("?" * len(row))
                insert = f"INSERT OR IGNORE INTO {table} VALUES ({marks})"  # noqa: S608
                is_new = store.connection.execute(insert, row).rowcount > 0
                if table == "timings":
                    counts["added" if is_new else "kept"] += 1
    return Merged(**counts)


def _hash(texts: Mapping[str, bytes]) -> str:
    names = sorted(texts)
    return hashlib.sha256(b"".join(f"{Path(name).stem}\n".encode() + texts[name] for name in names)).hexdigest()


def _rows(connection: sqlite3.Connection, table: str, text: bytes) -> Iterator[tuple[Any, ...] | None]:
    """Yield each line of a table as a row, or None where it is none."""
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
