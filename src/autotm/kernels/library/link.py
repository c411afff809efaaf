"""Object files -> one shared library."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotm.model.files import AutotmError
from autotm.model.machine import find_compiler

_BUILT_FOR = "autotm: built for {} threads;"
"""Text in a library, by which it tells how many threads its loops were shared among."""


def threads_of(library: bytes) -> int | None:
    """How many threads a library says that it was built for."""
    found = re.search(_BUILT_FOR.format(r"(\d+)").encode(), library)
    return int(found[1]) if found else None


def link(objects: Sequence[Path], path: Path, threads: int | None = None) -> None:
    """A shared library of all `objects` at `path`, written whole or not at all.

    `threads` is what its kernels are built for, if it is to say so (`threads_of`).

    Raises:
        AutotmError: there is no C compiler, or linking failed.
    """
    compiler = find_compiler()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
            sources = []
            if threads is not None:
                sources = [Path(folder) / "built_for.c"]
                sources[0].write_text(f'const char autotm_built_for[] = "{_BUILT_FOR.format(threads)}";\n', "utf-8")
            _run(compiler, [*sources, *objects], unfinished, Path(folder))
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _run(compiler: str, files: Sequence[Path], output: Path, folder: Path) -> None:
    listed = folder / "files.txt"  # More names than a command line holds.
    listed.write_text("\n".join(f'"{file.absolute()}"' for file in files), encoding="utf-8")
    # Two processes may have compiled the same kernel: either will do.
    command = [compiler, "-shared", "-fPIC", "-Wl,-z,muldefs", "-o", str(output), f"@{listed}", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotmError(
            f"linking {output} of {len(files)} files failed; if one is damaged, remove {files[-1].parent} and "
            f"try again:\n{done.stderr.strip()}"
        )
