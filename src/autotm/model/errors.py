"""Errors that a user sees, each with the limit it met and its remedy.

And one-line explanations of what is wrong in a file that a person wrote.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError


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
    """Return an error that names the nearest known name, and all of them."""
    return BadInputError(f"unknown {kind} '{name}'{_nearest(str(name), known)}")


def no_such_file(kind: str, path: Path) -> BadInputError:
    """Return an error that names the nearest of the files beside it, and all of them, without their suffix."""
    return BadInputError(
        f"{path}: no such {kind} file{_nearest(path.stem, (file.stem for file in path.parent.glob(f'*{path.suffix}')))}"
    )


def made_by_another(file: Path, version: int, reads: int, remedy: str, counted: str = "schema") -> FileVersionError:
    """Return an error that names the file's version, the one that is read, and how to make the file again."""
    age = "an older" if version < reads else "a newer"
    origin = f"made by {age} autotm: {counted} {version}, this one reads {reads}"
    return FileVersionError(f"{file}: {origin}; {remedy}", origin)


def _nearest(name: str, known: Iterable[str]) -> str:
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"{hint} (known: {', '.join(choices) or 'none'})"


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], value: object, source: object) -> Model:
    """Check a value that a person wrote against `model`, and return it as that.

    Raises:
        BadInputError: an unknown key or a bad value; `source` names what was written.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise BadInputError(f"{source}: {_explain(error, model)}") from None


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first fault of `error`; unknown keys get their nearest name.

    A misspelt required key is two faults, missing and unknown: the unknown one comes first, it shows the mistake.
    """
    faults: list[Any] = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    first = faults[0]
    key, known = _locate(first["loc"], model)
    match first["type"]:
        case "union_tag_invalid":
            tag, tags = first["ctx"]["tag"], first["ctx"]["expected_tags"].replace("'", "").split(", ")
            return f"{key}.kind: '{tag}' is not allowed{_nearest(tag, tags)}"
        case "union_tag_not_found":
            return f"key '{key}.kind' is missing"
        case "extra_forbidden":
            return f"unknown key '{key}'{_nearest(str(first['loc'][-1]), known) if known else ''}"
        case "missing":
            return f"key '{key}' is missing"
    of_key = [fault["msg"] for fault in faults if _locate(fault["loc"], model)[0] == key]
    messages = [said.removeprefix("Value error, ").replace("Input should", "it should") for said in of_key]
    allowed = " or ".join(dict.fromkeys(said[:1].lower() + said[1:] for said in messages))
    return f"{key}: {first.get('input')!r} is not allowed: {allowed}"


def _locate(location: tuple[int | str, ...], model: type[BaseModel]) -> tuple[str, list[str]]:
    """Return the key as a person writes it, without pydantic's names of union members, and the keys known beside it."""
    parts: list[str] = []
    known: list[str] = []
    current: Any = model
    for part in location:
        members = () if get_origin(current) in {dict, list, tuple} else get_args(current)
        models = [one for one in (current, *members) if isinstance(one, type) and issubclass(one, BaseModel)]
        # Pydantic puts the tag of a union's member where no key is.
        tagged = [one for one in models if (part,) in (get_args(key.annotation) for key in one.model_fields.values())]
        if len(models) > 1 and tagged:
            current = tagged[0]
        elif models:
            fields = models[0].model_fields
            known = list(fields)
            parts.append(str(part))
            current = fields[part].annotation if part in fields else None
        elif isinstance(part, int) or current is None or get_origin(current) is dict:
            parts.append(str(part))
            current = get_args(current)[-1] if get_args(current) else None
    return ".".join(parts), known
