"""The one error family a user sees: what is wrong, where, the limit, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class AutotmError(Exception):
    """A fault of input, file or machine that the user can mend; commands print it and exit with 1."""


class BadInputError(AutotmError):
    """A value the user gave is not acceptable."""


class DamagedFileError(AutotmError):
    """A file that autotm wrote cannot be read back as what it should be."""


class FileVersionError(DamagedFileError):
    """A file that another version of autotm wrote, whole, in a schema that this one does not read.

    `origin` is what `made_by_another` says of it, without the file's name and the remedy.
    """

    def __init__(self, message: str, origin: str = "") -> None:
        super().__init__(message)
        self.origin = origin


class InfeasibleLimitError(AutotmError):
    """No placement fits the limit; names the kernel, the bytes short and the smallest feasible limit.

    `smallest_bytes` is that limit in bytes of fast memory; None where the limit was not that of the placed tensors.
    """

    def __init__(self, message: str, smallest_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes


class IllegalPlanError(AutotmError):
    """A plan, layout or program breaks a rule; raised by `check` only."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> BadInputError:
    """An error that names the nearest known name, and all of them."""
    return BadInputError(f"unknown {kind} '{name}'{_nearest(str(name), known)}")


def no_such_file(kind: str, path: Path) -> BadInputError:
    """An error that names the nearest of the files beside it, and all of them, without their suffix."""
    return BadInputError(
        f"{path}: no such {kind} file{_nearest(path.stem, (file.stem for file in path.parent.glob(f'*{path.suffix}')))}"
    )


def made_by_another(file: Path, found: int, reads: int, remedy: str, counted: str = "schema") -> FileVersionError:
    """An error that names both versions, that of the file and the one that is read, and how to make the file again."""
    origin = f"made by {'an older' if found < reads else 'a newer'} autotm: {counted} {found}, this one reads {reads}"
    return FileVersionError(f"{file}: {origin}; {remedy}", origin)


def _nearest(name: str, known: Iterable[str]) -> str:
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"{hint} (known: {', '.join(choices) or 'none'})"
