"""The kernel store: timings of kernels kept across networks, limits and runs."""

from __future__ import annotations

import datetime as dt
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from autotm.model.errors import AutotmError
from autotm.model.profile import Timing

# What a full disk, a read-only folder or a lock that is never let go means to who uses a kernel store.


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction: all that is written within it stays, or, where it fails or is killed, nothing.

    Raises:
        AutotmError: the file cannot be written.
    """
    try:
        with connection:
            yield
    except sqlite3.OperationalError as error:
        raise unusable(connection.execute("PRAGMA database_list").fetchone()[2], error) from error


def unusable(path: object, error: sqlite3.OperationalError) -> AutotmError:
    """The error for a store that cannot be used as it is."""
    return AutotmError(
        f"{path}: the kernel store cannot be used: {error}; what it held is as it was. Free some space, or make its "
        "folder writable, then give the same command again"
    )


# The store itself. It is a cache: deleting it costs time, never truth.

log = logging.getLogger(__name__)

_VERSION = 2
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
    """What a timing depends on.

    `identity` covers code, shapes and dtypes; `delay_ns` is the emulated wait that is part of the time; `context` is
    the hash of all that is common to a profile: tier, target, threads, cores, processor, TVM, way of timing.
    """

    context: str
    identity: str
    implementation: str
    configuration: str
    delay_ns: int

    @property
    def columns(self) -> tuple[str, str, str, str, int]:
        """The key's columns in the table."""
        return (self.context, self.identity, self.implementation, self.configuration, self.delay_ns)


class KernelStore:
    """One SQLite file, which nodes may share. A `put` is a transaction that survives kills. Close it, or use `with`."""

    def __init__(self, path: Path) -> None:
        """Open or make the store at `path`; a damaged one is set aside and replaced by an empty one.

        One in a read-only folder can be read.

        Raises:
            AutotmError: there is none and none can be made, or others do not let go of it.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = _open(path)
        except sqlite3.OperationalError as error:
            raise unusable(path, error) from error
        except sqlite3.DatabaseError as error:
            set_aside(path, str(error))
            self._connection = _open(path)

    def get(self, key: StoreKey) -> Timing | None:
        """The timing stored under `key`, if any."""
        row = self._connection.execute(_SELECT, key.columns).fetchone()
        return None if row is None else Timing(*row[:-1], disturbed=bool(row[-1]))

    def put(self, timings: Mapping[StoreKey, Timing]) -> None:
        """Store all of `timings` or, if killed, none; older ones of the same key are replaced."""
        measured = dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds")
        rows = [(*key.columns, *astuple(timing), measured) for key, timing in timings.items()]
        with writing(self._connection):
            self._connection.executemany(_INSERT, rows)

    def describe(self, context: str, description: str) -> None:
        """Keep the readable text behind a context hash."""
        with writing(self._connection):
            self._connection.execute("INSERT OR REPLACE INTO contexts VALUES (?, ?)", (context, description))

    @property
    def connection(self) -> sqlite3.Connection:
        """The open database, for moving whole tables out and in (`store_exchange.py`)."""
        return self._connection

    def close(self) -> None:
        """Write everything out and let go of the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def set_aside(path: Path, reason: str) -> Path:
    """Rename a damaged store, with its journal, to `*.damaged-TIME`; returns the new name."""
    stamp = dt.datetime.now(tz=dt.UTC).strftime("%Y%m%dT%H%M%S%f")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in ("", "-journal", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    log.warning(
        "%s: damaged kernel store (%s), set aside as %s; its kernels will be timed again", path, reason, aside.name
    )
    return aside


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=60)
    try:
        _check(connection)
        if not _is_made(connection):
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


def _check(connection: sqlite3.Connection) -> None:
    verdict = _first(connection.execute("PRAGMA quick_check"))
    if verdict != "ok":
        raise sqlite3.DatabaseError(str(verdict))
    version = _first(connection.execute("PRAGMA user_version"))
    if version not in {0, _VERSION}:
        raise sqlite3.DatabaseError(f"it is of version {version}, this autotm reads {_VERSION}")


def _is_made(connection: sqlite3.Connection) -> bool:
    made = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return made >= {"timings", "contexts"} and _first(connection.execute("PRAGMA user_version")) == _VERSION


def _first(rows: Iterable[tuple[object, ...]]) -> object:
    return next(iter(rows))[0]


def count(path: Path) -> int:
    """Number of timings in the store at `path`; opens it read-only."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return int(str(_first(connection.execute("SELECT COUNT(*) FROM timings"))))
