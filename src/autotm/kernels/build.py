"""Scheduled functions -> one shared library; and the identity by which equal kernels are recognised."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx

from autotm.kernels import passes
from autotm.kernels.passes import machine_code
from autotm.model.errors import AutotmError

KERNELS_PER_WORKER = 16
"""Fewer than this are compiled sooner than another process has imported TVM."""
_CODE = hashlib.sha256(Path(passes.__file__).read_bytes()).hexdigest()


def identity(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Hash of the scheduled TIR (shapes, loops, constants, but no names), target and passes: equal hash, equal code."""
    structure = tvm_ffi.structural_hash(func.without_attr("global_symbol"), map_free_vars=True)
    operands = [(tuple(int(extent) for extent in operand.shape), str(operand.dtype)) for operand in func.params]
    return hashlib.sha256(f"{tvm.__version__}\n{_CODE}\n{target}\n{structure}\n{operands}".encode()).hexdigest()


def build_library(
    kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, path: Path, objects: Path | None = None
) -> None:
    """Compile functions, each under its symbol, into one shared library at `path`, written whole or not at all.

    `objects` is a folder that keeps the machine code of every function for later libraries, by symbol and identity.

    Raises:
        AutotmError: there is no C compiler to link with, or linking failed.
    """
    compiler = _compiler()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        kept = objects or Path(folder)
        files = {symbol: kept / f"{symbol}-{identity(func, target)[:32]}.o" for symbol, func in kernels.items()}
        _compile({symbol: kernels[symbol] for symbol, file in files.items() if not file.exists()}, target, files)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            _link(compiler, list(files.values()), unfinished, Path(folder))
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _compile(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, files: Mapping[str, Path]) -> None:
    """Object files, shared among processes: TVM's passes hold Python's lock, so threads would take turns."""
    names = sorted(kernels)
    workers = max(1, min(len(os.sched_getaffinity(0)), len(names) // KERNELS_PER_WORKER))
    groups = [{name: kernels[name] for name in names[start::workers]} for start in range(workers)]
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        others = [
            _start_worker(group, target, files, Path(folder) / f"{index}.json")
            for index, group in enumerate(groups[1:])
        ]
        compile_objects(groups[0], target, files)
        for process in others:
            _, errors = process.communicate()
            if process.returncode:
                raise AutotmError(f"compiling kernels failed in a worker process:\n{errors.strip()}")


def compile_objects(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, files: Mapping[str, Path]) -> None:
    """Compile each function, under its symbol, into its own object file, written whole or not at all."""
    for symbol, func in kernels.items():
        file = files[symbol]
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.o")
        machine_code({symbol: func}, target).write_to_file(str(unfinished), "o")
        unfinished.replace(file)


def _start_worker(
    kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, files: Mapping[str, Path], source: Path
) -> subprocess.Popen[str]:
    functions = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in kernels.items()})
    places = {name: str(files[name]) for name in kernels}
    source.write_text(tvm.ir.save_json({"functions": functions, "target": target, "files": places}), encoding="utf-8")
    command = [sys.executable, "-m", "autotm.kernels.compile_worker", str(source)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _compiler() -> str:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise AutotmError(
        "no C compiler found to link kernels with (looked for $CC, cc, gcc, clang); install one: "
        "apt-get install gcc, or conda install c-compiler"
    )


def _link(compiler: str, objects: Sequence[Path], output: Path, folder: Path) -> None:
    listed = folder / "objects.txt"  # More names than a command line holds.
    listed.write_text("\n".join(f'"{file.absolute()}"' for file in objects), encoding="utf-8")
    command = [compiler, "-shared", "-fPIC", "-o", str(output), f"@{listed}", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotmError(
            f"linking {output} of {len(objects)} objects failed; if one is damaged, remove {objects[0].parent} and "
            f"try again:\n{done.stderr.strip()}"
        )
