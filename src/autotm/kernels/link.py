"""Object files -> one shared library."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotm.model.errors import AutotmError


def find_compiler() -> str:
    """The C compiler that links: $CC, or the first of the usual ones.

    Raises:
        AutotmError: there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise AutotmError(
        "no C compiler found to link kernels with (looked for $CC, cc, gcc, clang); install one: "
        "apt-get install gcc, or conda install c-compiler"
    )


def link(objects: Sequence[Path], path: Path) -> None:
    """A shared library of all `objects` at `path`, written whole or not at all.

    Raises:
        AutotmError: there is no C compiler, or linking failed.
    """
    compiler = find_compiler()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
            _run(compiler, objects, unfinished, Path(folder))
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _run(compiler: str, objects: Sequence[Path], output: Path, folder: Path) -> None:
    listed = folder / "objects.txt"  # More names than a command line holds.
    listed.write_text("\n".join(f'"{file.absolute()}"' for file in objects), encoding="utf-8")
    # Two processes may have compiled the same kernel: either will do.
    command = [compiler, "-shared", "-fPIC", "-Wl,-z,muldefs", "-o", str(output), f"@{listed}", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotmError(
            f"linking {output} of {len(objects)} objects failed; if one is damaged, remove {objects[0].parent} and "
            f"try again:\n{done.stderr.strip()}"
        )
