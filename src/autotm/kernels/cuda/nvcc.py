"""CUDA C++ -> one fatbin for several architectures, kept by the hash of its source; and what ptxas says of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autotm.kernels.cuda.source import CudaKernel, translation_unit
from autotm.model.files import AutotmError

ARCHITECTURES = ("sm_80", "sm_90")
"""What a fatbin holds code for unless told otherwise."""
_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_OPTIONS = ("--std=c++17", "-O3", "-Xptxas", "-v", "--split-compile=0", "--threads=0")


@dataclass(frozen=True)
class Usage:
    """What a device function takes, as ptxas says.

    Attributes:
        function: its name.
        arch: for which architecture.
        registers: of a thread.
        spill_bytes: stores and loads of registers that did not fit, of a thread.
        stack_bytes: of a thread.
        shared_bytes: static shared memory of a block.
    """

    function: str
    arch: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Fatbin:
    """Machine code of kernels: what `cuModuleLoadData` takes, and what ptxas said of it."""

    image: bytes
    usage: tuple[Usage, ...]


def find_nvcc() -> str:
    """The CUDA compiler: $NVCC, the one on the path, one in the usual folders, or that of the extra `nvcc`.

    Raises:
        AutotmError: there is none.
    """
    usual = (f"{folder}/nvcc" for folder in _FOLDERS)
    for name in (os.environ.get("NVCC", ""), "nvcc", *usual, *packaged_nvcc()):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise AutotmError(
        "no nvcc found to compile GPU kernels with (looked for $NVCC, nvcc on the path, "
        f"{', '.join(_FOLDERS)}, Python's packages); pip install 'autotm[nvcc]', or install NVIDIA's CUDA toolkit 12.8 "
        "or later, or name its compiler in NVCC. Running a bundle needs none"
    )


def packaged_nvcc() -> list[str]:
    """Compilers that NVIDIA's Python packages brought, the newest last."""
    packages = Path(sysconfig.get_paths()["purelib"])
    return sorted(map(str, packages.glob("nvidia/cu*/bin/nvcc")))


def fatbin(
    kernels: Iterable[CudaKernel], architectures: Sequence[str] = ARCHITECTURES, folder: Path | None = None
) -> Fatbin:
    """Compile kernels into one fatbin with code for every architecture; equal kernels once.

    Args:
        kernels: of one or several steps; at least one.
        architectures: e.g. `sm_90`.
        folder: keeps fatbins for the next call with the same source.

    Raises:
        AutotmError: there is no nvcc, or it failed.
    """
    compiler, source = find_nvcc(), translation_unit(kernels)
    described = "\n".join([_version(compiler), *architectures, *_OPTIONS, source])
    key = hashlib.sha256(described.encode()).hexdigest()
    if folder is not None and (held := _held(folder, key)) is not None:
        return held
    made = _compiled(compiler, source, architectures)
    if folder is not None:
        _keep(folder, key, made)
    return made


def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def _compiled(compiler: str, source: str, architectures: Sequence[str]) -> Fatbin:
    numbers = [arch.removeprefix("sm_") for arch in architectures]
    codes = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]
    with tempfile.TemporaryDirectory(prefix="autotm-") as temporary:
        text, image = Path(temporary) / "kernels.cu", Path(temporary) / "kernels.fatbin"
        text.write_text(source)
        command = [compiler, *_OPTIONS, *codes, "-fatbin", "-o", str(image), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=temporary)
        if done.returncode:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
            first = lines[0] if lines else (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise AutotmError(f"nvcc failed ({' '.join(command)}): {first}")
        return Fatbin(image.read_bytes(), tuple(usage_in(done.stdout + done.stderr)))


_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")


def usage_in(output: str) -> list[Usage]:
    """What `ptxas -v` prints, by function and architecture."""
    found: list[Usage] = []
    function = arch = ""
    stack = spills = 0
    for line in output.splitlines():
        if match := _ENTRY.search(line):
            function, arch = match.groups()
        elif match := _STACK.search(line):
            stack, spills = int(match[1]), int(match[2]) + int(match[3])
        elif match := _USED.search(line):
            found.append(Usage(function, arch, int(match[1]), spills, stack, int(match[2] or 0)))
    return sorted(found, key=lambda usage: (usage.function, usage.arch))


def _held(folder: Path, key: str) -> Fatbin | None:
    try:
        usage = json.loads((folder / f"{key}.json").read_text())
        return Fatbin((folder / f"{key}.fatbin").read_bytes(), tuple(Usage(**item) for item in usage))
    except (OSError, ValueError, TypeError):
        return None


def _keep(folder: Path, key: str, made: Fatbin) -> None:
    """Both files, each whole or not at all; the second says that the first is there."""
    folder.mkdir(parents=True, exist_ok=True)
    usage = json.dumps([asdict(item) for item in made.usage]).encode()
    for suffix, content in (("fatbin", made.image), ("json", usage)):
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(content)
        Path(file.name).replace(folder / f"{key}.{suffix}")
