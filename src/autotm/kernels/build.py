"""Scheduled functions -> one shared library; and the identity by which equal kernels are recognised."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tvm
from tvm import tirx

from autotm.model.errors import AutotmError

PASS_CONFIG = {"s_tir.LoopPartition": {"partition_const_loop": True}}
"""Pass configuration that every kernel is compiled with."""


def identity(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Hash of the scheduled TIR (shapes, loops, constants; not its name) and the target: equal hash, equal code."""
    anonymous = func.without_attr("global_symbol")
    text = tvm.IRModule({"main": anonymous}).script(show_meta=True)
    return hashlib.sha256(f"{tvm.__version__}\n{target}\n{text}".encode()).hexdigest()


def build_library(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, path: Path) -> None:
    """Compile functions, each under its symbol, into one shared library at `path`, written whole or not at all.

    Raises:
        AutotmError: there is no C compiler to link with, or linking failed.
    """
    compiler = _compiler()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        objects = _compile(kernels, target, Path(folder))
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            _link(compiler, objects, unfinished)
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _compile(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, folder: Path) -> list[Path]:
    """Object files; LLVM runs outside of Python's lock, so that threads share the work."""
    names = sorted(kernels)
    workers = max(1, min(len(os.sched_getaffinity(0)), len(names)))
    groups = [names[start::workers] for start in range(workers)]
    outputs = [folder / f"kernels{index}.o" for index in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        jobs = [
            pool.submit(_compile_group, {name: kernels[name] for name in group}, target, output)
            for group, output in zip(groups, outputs, strict=True)
        ]
        for job in jobs:
            job.result()
    return outputs


def _compile_group(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, output: Path) -> None:
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
        module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in kernels.items()})
        tvm.tirx.build(module, target).write_to_file(str(output), "o")


def _compiler() -> str:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise AutotmError("no C compiler found to link kernels with (looked for $CC, cc, gcc, clang); install one: "
                      "apt-get install gcc, or conda install c-compiler")


def _link(compiler: str, objects: Sequence[Path], output: Path) -> None:
    command = [compiler, "-shared", "-fPIC", "-o", str(output), *map(str, objects), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own arguments)
    if done.returncode:
        raise AutotmError(f"linking {output} failed: {' '.join(command)}\n{done.stderr.strip()}")
