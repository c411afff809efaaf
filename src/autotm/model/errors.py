"""Errors that a user sees, each with the limit it met and its remedy.

And one-line explanations of what is wrong in a file that a person wrote.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

# The one error family a user sees: what is wrong, where, the limit, and the remedy.


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


# What is wrong in a file that a person wrote, in one line: file, key, value, what is allowed.


def explain(source: object, error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """The first fault of `error`; `model`, the type that was validated, lets unknown keys get their nearest name.

    A misspelt required key is two faults, missing and unknown: the unknown one comes first, it shows the mistake.
    """
    faults: list[Any] = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    key, known = _locate(faults[0]["loc"], model)
    if faults[0]["type"] == "union_tag_invalid":
        said = faults[0]["ctx"]
        tags = said["expected_tags"].replace("'", "").split(", ")
        return f"{source}: {key}.kind: '{said['tag']}' is not allowed{_nearest_key(said['tag'], tags)}"
    if faults[0]["type"] == "union_tag_not_found":
        return f"{source}: key '{key}.kind' is missing"
    if faults[0]["type"] == "extra_forbidden":
        return f"{source}: unknown key '{key}'{_nearest_key(str(faults[0]['loc'][-1]), known)}"
    if faults[0]["type"] == "missing":
        return f"{source}: key '{key}' is missing"
    same_key = [fault for fault in faults if _locate(fault["loc"], model)[0] == key]
    allowed = " or ".join(dict.fromkeys(_lower_first(fault["msg"]) for fault in same_key))
    return f"{source}: {key}: {faults[0].get('input')!r} is not allowed: {allowed}"


def _lower_first(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should", "it should")
    return message[:1].lower() + message[1:]


def _nearest_key(name: str, known: list[str]) -> str:
    if not known:
        return ""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"{hint} (known: {', '.join(sorted(known))})"


def _locate(location: tuple[int | str, ...], model: type[BaseModel] | None) -> tuple[str, list[str]]:
    """The key as a person writes it, without pydantic's names of union members, and the keys known beside it."""
    parts: list[str] = []
    known: list[str] = []
    current: Any = model
    for depth, part in enumerate(location):
        chosen = _chosen(current, part)
        if chosen is not None:
            current = chosen
            continue
        fields = _fields(current)
        if fields is None:
            if isinstance(part, int) or current is None or _is_mapping(current):
                parts.append(str(part))
                current = _item_type(current)
            continue
        known = list(fields)
        parts.append(str(part))
        current = fields[part].annotation if part in fields else None
        if current is None and depth < len(location) - 1:
            parts.extend(str(rest) for rest in location[depth + 1 :])
            break
    return ".".join(parts), known


def _chosen(annotation: Any, tag: int | str) -> Any:
    """The member of a union of models that `tag` names, which pydantic puts where no key is; None where it is a key."""
    models = [one for one in _members(annotation) if isinstance(one, type) and issubclass(one, BaseModel)]
    if len(models) > 1:
        for model in models:
            kinds = (field.annotation for field in model.model_fields.values())
            if any(get_origin(kind) is Literal and get_args(kind) == (tag,) for kind in kinds):
                return model
    return None


def _fields(annotation: Any) -> Any:
    for candidate in _members(annotation):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate.model_fields
    return None


def _members(annotation: Any) -> Iterator[Any]:
    yield annotation
    if not _is_mapping(annotation) and getattr(annotation, "__origin__", None) not in {list, tuple}:
        yield from get_args(annotation)


def _is_mapping(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is dict


def _item_type(annotation: Any) -> Any:
    arguments = get_args(annotation)
    return arguments[-1] if arguments else None
