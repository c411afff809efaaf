"""Files of the pipeline as one zip: `manifest.json` (kind, format, SHA-256 of each, where they come from), and they."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotm.model.files.errors import DamagedFileError, FileVersionError, made_by_another
from autotm.model.files.files import write_atomically

RESULTS_EXPORT = "results export"
_FORMAT = 1
_MANIFEST = "manifest.json"


def write_results(file: Path, contents: Mapping[str, bytes], provenance: Mapping[str, Any]) -> None:
    """Write files by their paths below the results, whole or not at all."""
    manifest = {
        "kind": RESULTS_EXPORT,
        "format": _FORMAT,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        "provenance": dict(provenance),
    }

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
            for name, content in contents.items():
                archive.writestr(name, content)

    write_atomically(file, write)


def read_results(file: Path) -> dict[str, bytes]:
    """What `write_results` wrote, each file as it was.

    Raises:
        DamagedFileError: no such file, no export, cut or changed.
        FileVersionError: it is of another format.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            is_export = isinstance(manifest, dict) and manifest.get("kind") == RESULTS_EXPORT
            wanted = manifest["files"] if is_export else None
            contents = {name: archive.read(name) for name in wanted or ()}
    except FileNotFoundError:
        raise DamagedFileError(f"{file}: no such file; make it with: autotm export NETWORK {file}") from None
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, TypeError) as error:
        raise damaged_results(file, f"it cannot be read ({error})") from None
    if wanted is None:
        raise damaged_results(file, f"it is not a {RESULTS_EXPORT}")
    if type(found := manifest.get("format")) is not int:
        raise damaged_results(file, f"its format is {found!r}")
    if found != _FORMAT:
        raise made_by_another(file, found, _FORMAT, _again(file), "format")
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != wanted[name]:
            raise damaged_results(file, f"{name} is not what was exported")
    return contents


def damaged_results(file: Path, reason: str) -> DamagedFileError:
    """The error for an export that must be made again."""
    return DamagedFileError(f"{file}: damaged {RESULTS_EXPORT}: {reason}; {_again(file)}")


def outdated_results(file: Path, name: str, origin: str) -> FileVersionError:
    """The error for an export with a file `name` of another version, which its `origin` tells."""
    return FileVersionError(f"{file}: {name} was {origin}; {_again(file)}", origin)


def _again(file: Path) -> str:
    return f"nothing was imported. Export it again where it comes from: autotm export NETWORK {file.name}"
