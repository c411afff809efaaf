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

from autotm.model.errors import AutotmError

PASS_CONFIG = {"s_tir.LoopPartition": {"partition_const_loop": True}}
"""Pass configuration that every kernel is compiled with."""
KERNELS_PER_WORKER = 16
"""Fewer than this are compiled sooner than another process has imported TVM."""


def identity(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Hash of the scheduled TIR (shapes, loops, constants, but no names) and the target: equal hash, equal code."""
    structure = tvm_ffi.structural_hash(func.without_attr("global_symbol"), map_free_vars=True)
    operands = [(tuple(int(extent) for extent in operand.shape), str(operand.dtype)) for operand in func.params]
    return hashlib.sha256(f"{tvm.__version__}\n{target}\n{structure}\n{operands}".encode()).hexdigest()


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
    """Object files, one a worker process: TVM's passes hold Python's lock, so threads would take turns."""
    names = sorted(kernels)
    workers = max(1, min(len(os.sched_getaffinity(0)), len(names) // KERNELS_PER_WORKER))
    groups = [{name: kernels[name] for name in names[start::workers]} for start in range(workers)]
    outputs = [folder / f"kernels{index}.o" for index in range(workers)]
    others = [_start_worker(group, target, output) for group, output in zip(groups[1:], outputs[1:], strict=True)]
    compile_objects(groups[0], target, outputs[0])
    for process in others:
        _, errors = process.communicate()
        if process.returncode:
            raise AutotmError(f"compiling kernels failed in a worker process:\n{errors.strip()}")
    return outputs


def compile_objects(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, output: Path) -> None:
    """Compile functions, each under its symbol, into one object file."""
    compile_module(kernels, target).write_to_file(str(output), "o")


def compile_module(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> tvm.runtime.Module:
    """Scheduled functions, each under its symbol, as machine code in memory."""
    # Buffers have their place and size already; TVM's own pass would spend most of the time to find that out.
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG, disabled_pass=["s_tir.CompactBufferAllocation"]):
        module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in kernels.items()})
        return tvm.tirx.build(module, target)


def _start_worker(
    kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, output: Path
) -> subprocess.Popen[str]:
    source = output.with_suffix(".json")
    functions = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in kernels.items()})
    source.write_text(tvm.ir.save_json({"functions": functions, "target": target}), encoding="utf-8")
    command = [sys.executable, "-m", "autotm.kernels.compile_worker", str(source), str(output)]
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


def _link(compiler: str, objects: Sequence[Path], output: Path) -> None:
    command = [compiler, "-shared", "-fPIC", "-o", str(output), *map(str, objects), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotmError(f"linking {output} failed: {' '.join(command)}\n{done.stderr.strip()}")
