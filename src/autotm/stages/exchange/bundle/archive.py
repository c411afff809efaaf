"""A bundle as one archive: a folder with its launcher, every file, and a manifest with the hash of each."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotm.model.files import write_atomically
from autotm.stages.exchange.bundle.launcher import FORMAT

_LAUNCHER = Path(__file__).with_name("launcher.py")
_PRESET = 0
"""Of xz: a tenth larger than 1, in less than two thirds of its time (21.5 and 20.0 MB, 7.9 and 13.5 s of a core)."""
_EXECUTABLE = 0o755
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")
_ELF = b"\x7fELF"


def write_bundle(file: Path, folder: str, files: Mapping[str, bytes], facts: Mapping[str, Any]) -> None:
    """Write `folder` with its files as a .tar.xz, whole or not at all; the same bytes give the same archive.

    Args:
        file: the archive.
        folder: that it unpacks to.
        files: by path within the folder.
        facts: what the manifest says besides: what the launcher requires, and what for.
    """
    files = {**files, "__main__.py": _LAUNCHER.read_bytes()}
    manifest = {
        "kind": "bundle",
        "format": FORMAT,
        **facts,
        "glibc": ".".join(map(str, newest_glibc(files))),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())},
    }
    listed = {**files, "manifest.json": json.dumps(manifest, indent=1).encode() + b"\n"}

    def write(temporary: Path) -> None:
        with tarfile.open(temporary, "w:xz", preset=_PRESET) as archive:
            for name, content in sorted(listed.items()):
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode = len(content), _EXECUTABLE if content.startswith(_ELF) else 0o644
                archive.addfile(entry, io.BytesIO(content))

    write_atomically(file, write)


def newest_glibc(files: Mapping[str, bytes]) -> tuple[int, int]:
    """The newest version of the GNU C library whose symbols the shared libraries among `files` name."""
    named = (found for content in files.values() if content.startswith(_ELF) for found in _GLIBC.findall(content))
    return max(((int(major), int(minor)) for major, minor in named), default=(2, 17))
