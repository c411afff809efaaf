"""Programs, packages and room on disks."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from autotm.study.setup import compiler_path

_PATIENCE_S = 20.0


def compiler() -> str | None:
    """The compiler that kernels are linked with, and its version; None where there is none."""
    path = compiler_path()
    if path is None:
        return None
    told = _output(path, "--version")
    return told.splitlines()[0] if told else path


def package(name: str) -> str | None:
    """Its version; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def room_for_files(folder: Path) -> int | str:
    """Free bytes where the folder is or would be; in words, why nothing can be written there."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    if not there.is_dir():
        return f"{there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written"
    return shutil.disk_usage(there).free


def _output(*command: str) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
