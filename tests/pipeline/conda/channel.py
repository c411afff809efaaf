"""Makes the folder that stands for a conda installation: `conda`, `activate`, and a channel with Python and pip.

Called as `python channel.py ROOT CHANNEL PYTHON`, with py-rattler. The channel's `python` is a link to the interpreter
PYTHON, `pip` a copy of the one that Python brings along: real ones, of the versions that they have.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from rattler.index import index_fs

FACTS = """
import ensurepip, json, platform, sys
from importlib.resources import files
wheel = next(one for one in (files(ensurepip) / "_bundled").iterdir() if one.name.startswith("pip-"))
print(json.dumps({"version": platform.python_version(), "executable": sys._base_executable, "wheel": str(wheel)}))
"""


def write_package(folder: Path, name: str, version: str, files: dict[str, bytes], links: dict[str, str]) -> None:
    """A package as conda reads it: `links` are paths to link, and what to."""
    index = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": [], "subdir": folder.name}
    paths = [
        {"_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(content).hexdigest()}
        | {"size_in_bytes": len(content)}
        for path, content in files.items()
    ] + [{"_path": path, "path_type": "softlink"} for path in links]
    about = {
        "info/index.json": json.dumps(index).encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        "info/files": "".join(f"{path}\n" for path in (*files, *links)).encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}-{version}-0.tar.bz2", "w:bz2", compresslevel=1) as package:
        for path, content in {**about, **files}.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            package.addfile(entry, io.BytesIO(content))
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            package.addfile(entry)


def write_program(path: Path, text: str) -> None:
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def main(root: Path, channel: str, python: Path) -> None:
    """Make it all."""
    facts = json.loads(subprocess.run([python, "-c", FACTS], capture_output=True, text=True, check=True).stdout)
    major_minor = ".".join(facts["version"].split(".")[:2])
    folder = root / "channels" / channel
    home = f"home = {Path(facts['executable']).parent}\ninclude-system-site-packages = false\n"
    links = dict.fromkeys(("bin/python", "bin/python3", f"bin/python{major_minor}"), facts["executable"])
    write_package(folder / "linux-64", "python", facts["version"], {"pyvenv.cfg": home.encode()}, links)
    with zipfile.ZipFile(facts["wheel"]) as wheel:
        site = f"lib/python{major_minor}/site-packages/"
        files = {site + one: wheel.read(one) for one in wheel.namelist() if not one.endswith("/")}
    write_package(folder / "linux-64", "pip", Path(facts["wheel"]).name.split("-")[1], files, {})
    asyncio.run(index_fs(folder))
    conda = Path(__file__).with_name("conda.py")
    write_program(root / "bin" / "conda", f'#!/bin/sh\nexec "{sys.executable}" "{conda}" "{root}" "$@"\n')
    write_program(root / "bin" / "activate", 'export CONDA_PREFIX="$1" PATH="$1/bin:$PATH"\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # py-rattler 0.28 crashes when the interpreter shuts down
