"""The kernel store's tuned schedules: what a search found for a function, and its time beside our own schedule's."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields

from autotm.model.machine import Machine, cpu_signature, versions
from autotm.model.measurement import TunedSchedule
from autotm.profile.store.writing import writing

SCHEDULES = """
CREATE TABLE IF NOT EXISTS schedules (
  workload TEXT NOT NULL, target TEXT NOT NULL, threads INTEGER NOT NULL, cpu TEXT NOT NULL, tvm TEXT NOT NULL,
  op TEXT NOT NULL, trace TEXT, own_identity TEXT NOT NULL, tuned_ns INTEGER, own_ns INTEGER NOT NULL,
  trials INTEGER NOT NULL, measured TEXT NOT NULL,
  PRIMARY KEY (workload, target, threads, cpu, tvm)
) WITHOUT ROWID
"""
"""`trace` and `tuned_ns` are NULL where the search found nothing that can be used."""


@dataclass(frozen=True, slots=True)
class Where:
    """What schedules and their times depend on besides the function."""

    target: str
    threads: int
    cpu: str
    tvm: str

    @classmethod
    def of(cls, machine: Machine, target: object) -> Where:
        """Where this process runs kernels of a TVM target."""
        return cls(str(target), machine.threads, cpu_signature(), versions()["apache-tvm"])


@dataclass(frozen=True, slots=True)
class Entry:
    """The outcome of tuning one function.

    Attributes:
        op: name of the main block, for people.
        trace: the schedule as JSON; None where none could be used.
        own_identity: identity of our own schedule at that time.
        tuned_ns, own_ns: times of both, measured in turn on the same memory; minima or medians, whichever show less
            gain.
        trials: schedules that were tried.
    """

    op: str
    trace: str | None
    own_identity: str
    tuned_ns: int | None
    own_ns: int
    trials: int

    def __post_init__(self) -> None:
        if (self.trace is None) != (self.tuned_ns is None):
            raise ValueError(f"tuned schedule of '{self.op}': a schedule and its time belong together")

    def is_faster(self, min_gain: float) -> bool:
        """Whether the tuned schedule takes less than our own's time divided by 1 + `min_gain`."""
        return self.tuned_ns is not None and self.tuned_ns * (1 + min_gain) < self.own_ns


_ENTRY = ", ".join(field.name for field in fields(Entry))


class ScheduleTable:
    """The tuned schedules of an open kernel store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def put(self, workload: str, where: Where, entry: Entry) -> None:
        """Store the outcome for a function; an older one of the same key is replaced."""
        measured = dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds")
        row = (workload, *astuple(where), *astuple(entry), measured)
        with writing(self._connection):
            self._connection.execute(
                "INSERT OR REPLACE INTO schedules VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row
            )

    def here(self, where: Where) -> dict[str, Entry]:
        """Outcome by function, of this processor."""
        rows = self._connection.execute(
            f"SELECT workload, {_ENTRY} FROM schedules WHERE target = ? AND threads = ? AND cpu = ? AND tvm = ?",  # noqa: S608
            astuple(where),
        )
        return {str(workload): Entry(*values) for workload, *values in rows}

    def elsewhere(self, where: Where) -> dict[str, Entry]:
        """By function, the schedule that gained most on another processor with the same target, threads and TVM."""
        rows = self._connection.execute(
            f"SELECT workload, {_ENTRY} FROM schedules WHERE target = ? AND threads = ? AND cpu <> ? AND tvm = ? "  # noqa: S608
            "AND trace IS NOT NULL ORDER BY CAST(tuned_ns AS REAL) / own_ns DESC, cpu",
            astuple(where),
        )
        return {str(workload): Entry(*values) for workload, *values in rows}

    def usable(self, where: Where, min_gain: float) -> dict[str, TunedSchedule]:
        """By function, the schedules that measured faster than our own by `min_gain`, a share.

        What was measured on this processor decides; where nothing was, a schedule from another one with the same target
        serves.
        """
        entries: Mapping[str, Entry] = self.elsewhere(where) | self.here(where)
        return {
            workload: TunedSchedule(entry.trace, entry.own_identity)
            for workload, entry in entries.items()
            if entry.trace is not None and entry.is_faster(min_gain)
        }
