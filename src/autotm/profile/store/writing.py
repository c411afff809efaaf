"""What a full disk, a read-only folder or a lock that is never let go means to who uses a kernel store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from autotm.model.files import AutotmError


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
