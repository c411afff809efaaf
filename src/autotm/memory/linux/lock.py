"""A folder or device for one process alone; the lock ends with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from autotm.model.files import BadInputError

_held: dict[tuple[int, int], tuple[int, int]] = {}
"""By device and inode: the open file that holds the lock, and how many pools of this process are there."""


def hold(path: Path) -> tuple[int, int]:
    """Lock `path`, which is there, against other processes; gives what `release` takes.

    Raises:
        BadInputError: another process has it; names that.
        OSError: it cannot be opened.
    """
    file = os.open(path, os.O_RDONLY)
    said = os.fstat(file)
    key = said.st_dev, said.st_ino
    if key in _held:
        os.close(file)
        file, count = _held[key]
        _held[key] = file, count + 1
        return key
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        owner = _owner(said)
        raise BadInputError(
            f"slow_tier.path: {path} is in use by another run{f' (process {owner})' if owner else ''}; two runs would "
            "disturb one another: wait for it, or give this one another folder or device"
        ) from None
    _held[key] = file, 1
    return key


def release(key: tuple[int, int]) -> None:
    """Give up what `hold` gave; the lock ends with the last."""
    file, count = _held.pop(key)
    if count > 1:
        _held[key] = file, count - 1
    else:
        os.close(file)


def _owner(said: os.stat_result) -> str | None:
    place = f"{os.major(said.st_dev):02x}:{os.minor(said.st_dev):02x}:{said.st_ino}"
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(rf"FLOCK\s+\S+\s+\S+\s+(\d+)\s+{place}\s", locks)
    return found[1] if found else None
