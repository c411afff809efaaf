"""Reading and writing whole files; writes are atomic and damage is reported.

Kinds: JSON with kind, version and content hash; YAML that a person wrote; zip archives of results.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import secrets
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from autotm.model.errors import BadInputError, DamagedFileError, made_by_another, no_such_file

SCHEMA_VERSION = 1
_RAISED = {"links": 3, "plan": 5, "reference": 3}
"""Kinds of files that have changed since, with their versions."""
_COMMANDS = {
    "links": "calibrate",
    "graph": "profile NETWORK",
    "profile": "profile NETWORK",
    "plan": "solve NETWORK OPTIMIZER LIMIT",
    "program": "compile NETWORK OPTIMIZER LIMIT",
    "record": "run NETWORK OPTIMIZER LIMIT",
}
"""Which of autotm's commands writes a kind of file; the others come from the pipeline alone."""

T = TypeVar("T")


def cache_folder() -> Path:
    """Return the folder where what this user has compiled and measured is kept, whatever the project."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache_home) if cache_home.startswith("/") else Path.home() / ".cache") / "autotm"


def config_folder() -> Path:
    """Return the folder of machines and devices: `config` here if there is one, else autotm's own."""
    here = Path("config")
    return here if (here / "machines").is_dir() else Path(__file__).parents[3] / here


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
                file.write(bytes(4096))  # What a file system gives at least.
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder)) from None


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


def require_version(path: Path, kind: str, version: object) -> None:
    """Refuse a file of another schema version.

    Raises:
        DamagedFileError: `version`, what the file says of its version, is no whole number.
        FileVersionError: it is another one than that of `schema_version`.
    """
    if type(version) is not int:
        raise damaged(path, kind, f"its schema_version is {version!r}")
    if version != schema_version(kind):
        command = f"`autotm {_COMMANDS[kind]}` or " if kind in _COMMANDS else ""
        update = "update autotm, or " if version > schema_version(kind) else ""
        remedy = f"{update}make it again with {command}`snakemake --force {path}`"
        raise made_by_another(path, version, schema_version(kind), remedy)


def schema_version(kind: str) -> int:
    """Return the schema version of files of a kind, as this version of autotm reads and writes them."""
    return _RAISED.get(kind, SCHEMA_VERSION)


def damaged(path: Path, kind: str, reason: str) -> DamagedFileError:
    """Return the error for a file that must be rebuilt."""
    return DamagedFileError(
        f"{path}: damaged {kind} file: {reason}; remove it and rebuild: rm {path} && snakemake {path}"
    )


def content_hash(document: Any) -> str:
    """Return a short stable hash of a JSON-able value."""
    return hashlib.sha256(_text(document).encode()).hexdigest()[:_DIGITS]


_HASH = "_content_hash"
_DIGITS = 16  # hexadecimal ones, 64 bits: two of a million files agree by chance with probability 3e-8

_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Return the reader and writer of a dataclass; making one takes milliseconds, so each is made once."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def hash_of(value: Any) -> str:
    """Return the content hash of a frozen dataclass; it is kept with the object, as a step's takes seconds."""
    members: dict[str, Any] = value.__dict__
    if _HASH not in members:
        digest = hashlib.sha256()
        for piece in _pieces(value):
            digest.update(piece.encode())
        members[_HASH] = digest.hexdigest()[:_DIGITS]
    return str(members[_HASH])


def _pieces(value: Any) -> Iterator[str]:
    """Yield the JSON text that `hash_of` hashes, long fields item by item: one text would exceed the step in size."""
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
    """Read a dataclass as `load` does, and return it with the provenance block of the file."""
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


# YAML that a person wrote: Snakemake asks for the same few files once for each of hundreds of jobs.


def read_yaml(path: Path, kind: str) -> Any:
    """Return the contents of a YAML file that a person wrote.

    Raises:
        BadInputError: no such file, or not YAML.
    """
    try:
        return copy.deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise no_such_file(kind, path) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


@lru_cache(maxsize=128)
def _parsed(text: str) -> Any:
    return yaml.safe_load(text)


# What goes to other machines, as one zip: `manifest.json` says its kind, its format, and what else is to be known.

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Archive:
    """A kind of zip with a manifest.

    Attributes:
        kind: in words.
        format: of this version of autotm.
        command: of autotm, that writes one at the path that follows.
    """

    kind: str
    format: int
    command: str

    def write(self, file: Path, contents: Mapping[str, bytes], **facts: object) -> None:
        """Write contents by their names, and facts into the manifest, whole or not at all."""
        manifest = {"kind": self.kind, "format": self.format, **facts}

        def write(temporary: Path) -> None:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
                for name, content in contents.items():
                    archive.writestr(name, content)

        write_atomically(file, write)

    def read(self, file: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Read the manifest, and the contents by their names.

        Raises:
            DamagedFileError: no such file, none of this kind, or cut.
            FileVersionError: it is of another format.
        """
        try:
            with zipfile.ZipFile(file) as archive:
                manifest = json.loads(archive.read(_MANIFEST))
                contents = {name: archive.read(name) for name in archive.namelist() if name != _MANIFEST}
        except FileNotFoundError:
            raise DamagedFileError(f"{file}: no such file; make it with: autotm {self.command} {file}") from None
        except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError) as error:
            raise self.damaged(file, f"it cannot be read ({error})") from None
        if not isinstance(manifest, dict) or manifest.get("kind") != self.kind:
            raise self.damaged(file, f"it is not a {self.kind}")
        if type(version := manifest.get("format")) is not int:
            raise self.damaged(file, f"its format is {version!r}")
        if version != self.format:
            raise made_by_another(file, version, self.format, self.remedy(file), "format")
        return manifest, contents

    def damaged(self, file: Path, reason: str) -> DamagedFileError:
        """Return the error for an archive that must be made again."""
        return DamagedFileError(f"{file}: damaged {self.kind}: {reason}; {self.remedy(file)}")

    def remedy(self, file: Path) -> str:
        """Return what to do about an archive that cannot be used, in words."""
        return f"nothing was imported. Export it again where it comes from: autotm {self.command} {file.name}"


RESULTS = Archive("results export", 1, "export NETWORK")
"""Files of the pipeline by their paths below the results; the manifest has the SHA-256 of each."""


def write_results(file: Path, contents: Mapping[str, bytes], provenance: Mapping[str, Any]) -> None:
    """Write files by their paths below the results, whole or not at all."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    RESULTS.write(file, contents, files=hashes, provenance=dict(provenance))


def read_results(file: Path) -> dict[str, bytes]:
    """Read an export that `write_results` wrote; return the content of each file by its name.

    Raises:
        DamagedFileError: no such file, no export, cut or changed.
        FileVersionError: it is of another format.
    """
    manifest, contents = RESULTS.read(file)
    if not isinstance(hashes := manifest.get("files"), dict):
        raise RESULTS.damaged(file, "it lists no files")
    for name, digest in hashes.items():
        if name not in contents or hashlib.sha256(contents[name]).hexdigest() != digest:
            raise RESULTS.damaged(file, f"{name} is not what was exported")
    return {name: contents[name] for name in hashes}
