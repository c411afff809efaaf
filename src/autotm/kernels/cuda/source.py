"""Launches -> CUDA C++ by TVM's code generator -> one fatbin by nvcc, kept by the hash of its source."""

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
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.stage import Stage, device_function, used_buffers
from autotm.kernels.cuda.tiles import functions_in
from autotm.kernels.tir import Workspace, extents
from autotm.model.errors import AutotmError
from autotm.model.files import write_atomically
from autotm.model.graph import Launch, OpClass, ScheduleKind
from autotm.model.machine import Products

_PASSES = [
    tirx.transform.FlattenBuffer(),
    tirx.transform.NarrowDataType(32),
    tirx.transform.VectorizeLoop(),
    tirx.transform.StorageRewrite(),
    tirx.transform.StmtSimplify(),
    tirx.transform.RemoveNoOp(),
    s_tir.transform.RewriteUnsafeSelect(),
    tirx.transform.LowerIntrin(),
]
"""The passes that TVM runs for CUDA, except those that schedules need: here loops and barriers are written out.

nvcc unrolls loops and finds common expressions. TVM does neither here: if it named common expressions, it could not
see any more which vectors are aligned.
"""
_HEADERS = {"half": "cuda_fp16.h", "nv_bfloat16": "cuda_bf16.h", "CUDART": "math_constants.h"}
"""Header files by the word in the source that needs them."""
_TYPES = "#define uint unsigned int\n#define uchar unsigned char\n#define ushort unsigned short\n"
"""Names that TVM writes."""
_FUNCTION = 'extern "C" __global__'


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A kernel without its code.

    Attributes:
        op, op_class, flops, others, kind: as in `ScheduledKernel`.
        products: what the factors of its products are rounded to; `float32`: to nothing.
    """

    op: str
    op_class: OpClass
    flops: int
    others: tuple[str, ...] = ()
    kind: ScheduleKind
    products: Products = "float32"


@dataclass(frozen=True, kw_only=True)
class CudaKernel(Facts):
    """A function of a step, ready for nvcc.

    Attributes:
        symbol: name of the kernel, with `products` where these are not exact; its device functions are `symbol_0`,
            `symbol_1`, ...
        launches: in the order of execution, on one stream.
        workspaces: shape and dtype of each workspace, in order.
        source: its device functions, CUDA C++.
        operands: dtype and shape of inputs, outputs and workspaces.
    """

    symbol: str
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...]
    source: str
    operands: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def identity(self) -> str:
        """Hash of its code and launches."""
        named = [(launch.arguments, launch.grid, launch.block) for launch in self.launches]
        text = functions_in(self.source) + self.source.replace(self.symbol, "")
        return hashlib.sha256(f"{text}\n{named}\n{self.operands}".encode()).hexdigest()


def kernel_of(
    stages: Sequence[Stage],
    parameters: Sequence[tirx.Buffer],
    workspaces: Sequence[tirx.Buffer],
    facts: Facts,
    device: CudaDevice,
) -> CudaKernel:
    """Return the stages as launches of functions in CUDA C++.

    Args:
        stages: in the order of execution.
        parameters: inputs, then outputs.
        workspaces: further buffers that the stages use.
        facts: what else is known.
        device: what code is generated for.
    """
    operands = [*parameters, *workspaces]
    texts, launches = [], []
    for index, stage in enumerate(stages):
        name = f"KERNEL_{index}"
        used = used_buffers(stage.body)
        arguments = tuple(i for i, operand in enumerate(operands) if operand in used)
        texts.append(_written(device_function(stage, [operands[i] for i in arguments], name, device.target), name))
        launches.append(Launch(name, arguments, stage.grid, stage.block))
    source = "".join(texts)
    shapes = tuple((str(buffer.dtype), extents(buffer)) for buffer in operands)
    described = f"{source}\n{launches}\n{shapes}"
    name = facts.op if facts.products == "float32" else f"{facts.op}_{facts.products}"
    symbol = f"{name}_{hashlib.sha256(described.encode()).hexdigest()[:12]}"
    return CudaKernel(
        symbol=symbol,
        launches=tuple(replace(launch, function=f"{symbol}_{i}") for i, launch in enumerate(launches)),
        workspaces=tuple((shape, dtype) for dtype, shape in shapes[len(parameters) :]),
        source=source.replace("KERNEL_", f"{symbol}_"),
        operands=shapes,
        **vars(facts),
    )


def translation_unit(kernels: Iterable[CudaKernel]) -> str:
    """Return all that nvcc needs to compile the kernels, each once."""
    sources = {kernel.symbol: kernel.source for kernel in kernels}
    text = "".join(sources[symbol] for symbol in sorted(sources))
    headers = [header for word, header in _HEADERS.items() if word in text]
    return "".join(f"#include <{header}>\n" for header in ["cstdint", *headers]) + _TYPES + functions_in(text) + text


@tvm_ffi.register_global_func("tvm_callback_cuda_compile", override=True)
def _uncompiled(_source: str) -> bytes:
    """Keep TVM from compiling what it writes, which it does where it finds a GPU.

    The source of one kernel lacks `functions_in`, and nvcc compiles all kernels together.
    """
    return b"//"  # TVM looks at the first character, and takes this for a binary that it need not read before a launch.


def _written(function: tirx.PrimFunc, name: str) -> str:
    """Return the function as TVM writes it."""
    target = function.attrs["target"]
    with target:
        lowered = tvm.transform.Sequential(_PASSES)(tvm.IRModule({name: function}))
        text = tvm.get_global_func("target.build.cuda")(lowered, target).inspect_source()
    return str(text[text.index(_FUNCTION) :])


# CUDA C++ -> one fatbin for several architectures, kept by the hash of its source; and what ptxas says of it.

ARCHITECTURES = ("sm_80", "sm_90")
"""GPU architectures for which a fatbin holds code by default."""
_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_OPTIONS = ("--std=c++17", "-O3", "-Xptxas", "-v", "--split-compile=0", "--threads=0")


@dataclass(frozen=True)
class Usage:
    """Resources that a device function takes, as ptxas reports them.

    Attributes:
        function: its name.
        arch: architecture that it was compiled for.
        registers: registers of a thread.
        spill_bytes: stores and loads of registers that did not fit, of a thread.
        stack_bytes: stack of a thread.
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
    """Return the CUDA compiler: $NVCC, the one on the path, one in the usual folders, or that of the extra `nvcc`.

    Raises:
        AutotmError: there is none.
    """
    usual = (f"{folder}/nvcc" for folder in _FOLDERS)
    for name in (os.environ.get("NVCC", ""), "nvcc", *usual, *packaged_nvcc()):
        if name and (path := shutil.which(name)):
            return path
    raise AutotmError(
        "no nvcc found to compile GPU kernels with (looked for $NVCC, nvcc on the path, "
        f"{', '.join(_FOLDERS)}, Python's packages); pip install 'autotm[nvcc]', or install NVIDIA's CUDA toolkit 12.8 "
        "or later, or name its compiler in NVCC. Running a bundle needs none"
    )


def packaged_nvcc() -> list[str]:
    """Return the compilers that NVIDIA's Python packages brought, the newest last."""
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
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    described = "\n".join([version, *architectures, *_OPTIONS, source])
    key = hashlib.sha256(described.encode()).hexdigest()
    if folder is None:
        return _compiled(compiler, source, architectures)
    image, usage = folder / f"{key}.fatbin", folder / f"{key}.json"
    with suppress(OSError, ValueError, TypeError):
        return Fatbin(image.read_bytes(), tuple(Usage(**item) for item in json.loads(usage.read_text())))
    compiled = _compiled(compiler, source, architectures)
    write_atomically(image, partial(Path.write_bytes, data=compiled.image))
    # The second file says that the first is there.
    write_atomically(usage, partial(Path.write_text, data=json.dumps([asdict(item) for item in compiled.usage])))
    return compiled


def _compiled(compiler: str, source: str, architectures: Sequence[str]) -> Fatbin:
    numbers = [arch.removeprefix("sm_") for arch in architectures]
    codes = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]
    with tempfile.TemporaryDirectory(prefix="autotm-") as temporary:
        text, image = Path(temporary) / "kernels.cu", Path(temporary) / "kernels.fatbin"
        text.write_text(source)
        output = run_nvcc([compiler, *_OPTIONS, *codes, "-fatbin", "-o", str(image), str(text)], temporary)
        return Fatbin(image.read_bytes(), tuple(usage_in(output)))


def run_nvcc(command: Sequence[str], folder: str) -> str:
    """Run nvcc in a folder, and return what it says.

    Raises:
        AutotmError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        first = lines[0] if lines else (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise AutotmError(f"nvcc failed ({' '.join(command)}): {first}")
    return done.stdout + done.stderr


_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")


def usage_in(output: str) -> list[Usage]:
    """List the resources of device functions that `ptxas -v` prints, sorted by function and architecture."""
    usages: list[Usage] = []
    function = arch = ""
    stack = spills = 0
    for line in output.splitlines():
        if match := _ENTRY.search(line):
            function, arch = match.groups()
        elif match := _STACK.search(line):
            stack, spills = int(match[1]), int(match[2]) + int(match[3])
        elif match := _USED.search(line):
            usages.append(Usage(function, arch, int(match[1]), spills, stack, int(match[2] or 0)))
    return sorted(usages, key=lambda usage: (usage.function, usage.arch))
