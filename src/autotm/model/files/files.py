"""Reading and writing whole files: atomic, versioned, and honest about damage."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from autotm.model.files.errors import DamagedFileError, made_by_another

SCHEMA_VERSION = 1
_RAISED = {"links": 3, "plan": 4, "reference": 3}
"""Kinds of files that have changed since, with their versions."""
_COMMANDS = {
    "links": "calibrate",
    "graph": "profile NETWORK",
    "profile": "profile NETWORK",
    "plan": "solve NETWORK OPTIMIZER LIMIT",
    "program": "compile NETWORK OPTIMIZER LIMIT",
    "record": "run NETWORK OPTIMIZER LIMIT",
    "tuning": "tune NETWORK",
}
"""Which of autotm's commands writes a kind of file; the others come from the pipeline alone."""

T = TypeVar("T")


def cache_folder() -> Path:
    """Return the folder where what this user has compiled and measured is kept, whatever the project."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "autotm"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a temporary file beside `path`, then fsync and rename: readers see the old or the new file.

    However it ends, the temporary file is gone afterwards.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        write(temporary)
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def require_writable(*paths: Path) -> None:
    """Raise where a file could not be written now, before hours are spent on what goes there.

    Raises:
        OSError: a folder is missing and cannot be made, must not be written to, or has no room for a block.
    """
    for folder in dict.fromkeys(path.parent for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_BLOCK))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder)) from None


_BLOCK = 4096
"""Bytes; what a file system gives at least."""


def write_json(path: Path, kind: str, payload: dict[str, Any]) -> None:
    """Write `payload` with its kind and schema version; keys keep their order."""
    document = {"kind": kind, "schema_version": schema_version(kind), **payload}
    json.dumps(document, allow_nan=False)  # Refuses what is no number; with an indent it would take ten times as long.
    text = to_json(document, indent=1) + b"\n"
    write_atomically(path, lambda temporary: temporary.write_bytes(text))


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """Read what `write_json` wrote.

    Raises:
        DamagedFileError: the file is missing, cut or of another kind.
        FileVersionError: it is of another schema version.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedFileError(f"{path}: no such {kind} file; build it with: snakemake {path}") from None
    except OSError as error:
        raise DamagedFileError(f"{path}: this {kind} file cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise damaged(path, kind, f"not valid JSON ({error})") from None
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise damaged(path, kind, f"not a {kind} file")
    require_version(path, kind, document.get("schema_version"))
    return document


def require_version(path: Path, kind: str, found: object) -> None:
    """Refuse a file of another schema version.

    Raises:
        DamagedFileError: `found`, what the file says of its version, is no whole number.
        FileVersionError: it is another one than that of `schema_version`.
    """
    if type(found) is not int:
        raise damaged(path, kind, f"its schema_version is {found!r}")
    if found != schema_version(kind):
        command = f"`autotm {_COMMANDS[kind]}` or " if kind in _COMMANDS else ""
        update = "update autotm, or " if found > schema_version(kind) else ""
        remedy = f"{update}make it again with {command}`snakemake --force {path}`"
        raise made_by_another(path, found, schema_version(kind), remedy)


def schema_version(kind: str) -> int:
    """Of the files of that kind that are written and read here."""
    return _RAISED.get(kind, SCHEMA_VERSION)


def damaged(path: Path, kind: str, reason: str) -> DamagedFileError:
    """The error for a file that must be rebuilt."""
    return DamagedFileError(
        f"{path}: damaged {kind} file: {reason}; remove it and rebuild: rm {path} && snakemake {path}"
    )


def content_hash(document: Any) -> str:
    """A short stable hash of a JSON-able value."""
    return hashlib.sha256(_text(document).encode()).hexdigest()[:_DIGITS]


_HASH = "_content_hash"
_DIGITS = 16

_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """The reader and writer of a dataclass; making one takes milliseconds, so each is made once."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def hash_of(value: Any) -> str:
    """The content hash of a frozen dataclass, equal for equal values; kept with it, since a step's takes seconds."""
    kept: dict[str, Any] = value.__dict__
    if _HASH not in kept:
        digest = hashlib.sha256()
        for piece in _pieces(value):
            digest.update(piece.encode())
        kept[_HASH] = digest.hexdigest()[:_DIGITS]
    found: str = kept[_HASH]
    return found


def _pieces(value: Any) -> Iterator[str]:
    """What `content_hash` hashes, a long field item by item: as one text a step is larger than itself."""
    members = {field.name: getattr(value, field.name) for field in fields(value)}
    tuples = {name: member for name, member in members.items() if isinstance(member, tuple) and member}
    long = {name for name, member in tuples.items() if is_dataclass(member[0])}
    rest = _adapter(type(value)).dump_python(value, mode="json", exclude=long)
    yield "{"
    for number, name in enumerate(sorted(members)):
        yield f"{',' if number else ''}{_text(name)}:{'[' if name in long else _text(rest[name])}"
        for place, item in enumerate(members[name] if name in long else ()):
            yield f"{',' if place else ''}{_text(_adapter(type(item)).dump_python(item, mode='json'))}"
        yield "]" if name in long else ""
    yield "}"


def _text(document: Any) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def save(path: Path, kind: str, value: Any, provenance: Mapping[str, Any]) -> None:
    """Write a dataclass as a JSON file with its provenance."""
    payload = _adapter(type(value)).dump_python(value, mode="json")
    write_json(path, kind, {"provenance": dict(provenance), kind: payload})


def load(path: Path, kind: str, value_type: type[T]) -> T:
    """Read a dataclass that `save` wrote.

    Raises:
        DamagedFileError: as `read_json`, or a field is missing or breaks an invariant.
    """
    return load_with_provenance(path, kind, value_type)[0]


def load_with_provenance(path: Path, kind: str, value_type: type[T]) -> tuple[T, dict[str, Any]]:
    """As `load`, with the provenance block of the file."""
    document = read_json(path, kind)
    try:
        value: T = _adapter(value_type).validate_python(document[kind], strict=False)
        return value, dict(document["provenance"])
    except KeyError as error:
        raise damaged(path, kind, f"lacks {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise damaged(path, kind, f"{where}: {first['msg']}") from None
