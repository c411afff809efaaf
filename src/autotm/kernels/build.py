"""Scheduled functions -> one shared library; and the identity by which equal kernels are recognised."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx

from autotm.kernels import passes
from autotm.kernels.passes import machine_code
from autotm.model.errors import AutotmError
from autotm.model.files import write_atomically

_KERNELS_PER_PROCESS = 4
"""Fewer than this are compiled sooner than shared."""
_KERNELS_PER_OBJECT = 16
"""Compiled as one module, which saves a fifth of the time."""
_CODE = hashlib.sha256(Path(passes.__file__).read_bytes()).hexdigest()


def identity(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Hash of the scheduled TIR (shapes, loops, constants, but no names), target and passes: equal hash, equal code."""
    structure = tvm_ffi.structural_hash(func.without_attr("global_symbol"), map_free_vars=True)
    operands = [(tuple(int(extent) for extent in operand.shape), str(operand.dtype)) for operand in func.params]
    return hashlib.sha256(f"{tvm.__version__}\n{_CODE}\n{target}\n{structure}\n{operands}".encode()).hexdigest()


def build_library(
    kernels: Mapping[str, tirx.PrimFunc],
    target: tvm.target.Target,
    path: Path,
    objects: Path | None = None,
    identities: Mapping[str, str] | None = None,
) -> None:
    """Compile functions, each under its symbol, into one shared library at `path`, written whole or not at all.

    `objects` is a folder that keeps machine code for later libraries, which take from it what they need. `identities`
    are those of the functions, by symbol, where the caller knows them: hashing large functions takes its time.

    Raises:
        AutotmError: there is no C compiler to link with, or linking failed.
    """
    compiler = _compiler()
    path.parent.mkdir(parents=True, exist_ok=True)
    known = identities or {symbol: identity(func, target) for symbol, func in kernels.items()}
    keys = {symbol: f"{symbol}-{known[symbol][:32]}" for symbol in kernels}
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        kept = objects or Path(folder) / "objects"
        kept.mkdir(parents=True, exist_ok=True)
        held = known_objects(kept)
        _compile({symbol: kernels[symbol] for symbol, key in keys.items() if key not in held}, keys, target, kept)
        held = known_objects(kept)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            _link(compiler, sorted({held[key] for key in keys.values()}), unfinished, Path(folder))
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def known_objects(folder: Path) -> dict[str, Path]:
    """The object file of every kernel (symbol and identity) that `folder` keeps."""
    return {
        key: listing.with_suffix(".o")
        for listing in folder.glob("*.txt")
        if listing.with_suffix(".o").exists()
        for key in listing.read_text(encoding="utf-8").split()
    }


def _compile(
    kernels: Mapping[str, tirx.PrimFunc], keys: Mapping[str, str], target: tvm.target.Target, folder: Path
) -> None:
    """Object files, shared among processes: TVM's passes hold Python's lock, so threads would take turns.

    The others are forks: sending them the functions would take half as long as compiling them.
    """
    names = sorted(kernels)
    processes = max(1, min(len(os.sched_getaffinity(0)), len(names) // _KERNELS_PER_PROCESS))
    groups = [{name: kernels[name] for name in names[start::processes]} for start in range(processes)]
    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=compile_objects, args=(group, keys, target, folder)) for group in groups[1:]]
    for process in others:
        process.start()
    try:
        compile_objects(groups[0], keys, target, folder)
    finally:
        for process in others:
            process.join()
    failed = [process.exitcode for process in others if process.exitcode]
    if failed:
        raise AutotmError(
            f"compiling kernels failed in {len(failed)} of {processes} processes (exit {failed[0]}); see above"
        )


def compile_objects(
    kernels: Mapping[str, tirx.PrimFunc], keys: Mapping[str, str], target: tvm.target.Target, folder: Path
) -> None:
    """Compile functions, each under its symbol, into object files in `folder`; a list beside each says what it holds.

    The list is written last: an object without one is not used.
    """
    symbols = list(kernels)
    for start in range(0, len(symbols), _KERNELS_PER_OBJECT):
        chunk = symbols[start : start + _KERNELS_PER_OBJECT]
        held = "\n".join(keys[symbol] for symbol in chunk)
        name = hashlib.sha256(held.encode()).hexdigest()[:32]
        unfinished = folder / f"{name}.{os.getpid()}.o"
        machine_code({symbol: kernels[symbol] for symbol in chunk}, target).write_to_file(str(unfinished), "o")
        unfinished.replace(folder / f"{name}.o")
        write_atomically(folder / f"{name}.txt", lambda path, held=held: path.write_text(held, encoding="utf-8"))


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
    # Two processes may have compiled the same kernel: either will do.
    command = [compiler, "-shared", "-fPIC", "-Wl,-z,muldefs", "-o", str(output), f"@{listed}", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotmError(
            f"linking {output} of {len(objects)} objects failed; if one is damaged, remove {objects[0].parent} and "
            f"try again:\n{done.stderr.strip()}"
        )
