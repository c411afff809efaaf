"""Stages -> CUDA C++ source, by TVM's code generator; and a kernel as what its launches are."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx

from autotm.kernels.code import Workspace
from autotm.kernels.cuda.contraction import functions_in
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.stage import Stage, device_function, used_buffers
from autotm.model.machine import Products
from autotm.model.step import Launch, OpClass, ScheduleKind

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
"""What TVM does for CUDA, without what schedules need: loops and barriers are written out.

nvcc unrolls, and finds common expressions: names for them would hide from TVM which vectors are aligned.
"""
_HEADERS = {"half": "cuda_fp16.h", "nv_bfloat16": "cuda_bf16.h", "CUDART": "math_constants.h"}
"""By the word in the source that needs it."""
_TYPES = "#define uint unsigned int\n#define uchar unsigned char\n#define ushort unsigned short\n"
"""Names that TVM writes."""
_FUNCTION = 'extern "C" __global__'


@dataclass(frozen=True)
class CudaKernel:
    """A function of a step, ready for nvcc.

    Attributes:
        symbol: name of the kernel, with `products` where these are not exact; its device functions are `symbol_0`,
            `symbol_1`, ...
        launches: in the order of execution, on one stream.
        workspaces: shape and dtype of each workspace, in order.
        op: name of the main block.
        op_class: what the kernel does to memory.
        flops: floating-point operations of one call; of a contraction, those of its products and sums only.
        others: names of implementations that would be other code.
        kind: where its schedule comes from.
        source: its device functions, CUDA C++.
        operands: dtype and shape of inputs, outputs and workspaces.
        products: what the factors of its products are rounded to; `float32`: to nothing.
    """

    symbol: str
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...]
    op: str
    op_class: OpClass
    flops: int
    others: tuple[str, ...]
    kind: ScheduleKind
    source: str
    operands: tuple[tuple[str, tuple[int, ...]], ...]
    products: Products = "float32"

    @property
    def identity(self) -> str:
        """Hash of its code and launches."""
        named = [(launch.arguments, launch.grid, launch.block, launch.shared_bytes) for launch in self.launches]
        text = functions_in(self.source) + self.source.replace(self.symbol, "")
        return hashlib.sha256(f"{text}\n{named}\n{self.operands}".encode()).hexdigest()


@dataclass(frozen=True)
class Facts:
    """What a kernel is besides its code: as in `CudaKernel`."""

    op: str
    op_class: OpClass
    flops: int
    others: tuple[str, ...]
    kind: ScheduleKind
    products: Products = "float32"


def kernel_of(
    stages: Sequence[Stage],
    parameters: Sequence[tirx.Buffer],
    workspaces: Sequence[tirx.Buffer],
    facts: Facts,
    device: CudaDevice,
) -> CudaKernel:
    """The stages as launches of functions in CUDA C++.

    Args:
        stages: in the order of execution.
        parameters: inputs, then outputs.
        workspaces: that the stages use besides.
        facts: what else is known.
        device: what code is generated for.
    """
    operands = [*parameters, *workspaces]
    texts, launches = [], []
    for index, stage in enumerate(stages):
        name = f"KERNEL_{index}"
        used = set(used_buffers(stage.body))
        arguments = tuple(i for i, operand in enumerate(operands) if operand in used)
        texts.append(_written(device_function(stage, [operands[i] for i in arguments], name, device.target), name))
        launches.append(Launch(name, arguments, stage.grid, stage.block))
    source = "".join(texts)
    shapes = tuple((str(buffer.dtype), tuple(int(extent) for extent in buffer.shape)) for buffer in operands)
    described = f"{source}\n{launches}\n{shapes}"
    name = facts.op if facts.products == "float32" else f"{facts.op}_{facts.products}"
    symbol = f"{name}_{hashlib.sha256(described.encode()).hexdigest()[:12]}"
    return CudaKernel(
        symbol=symbol,
        launches=tuple(
            Launch(f"{symbol}_{i}", launch.arguments, launch.grid, launch.block) for i, launch in enumerate(launches)
        ),
        workspaces=tuple((shape, dtype) for dtype, shape in shapes[len(parameters) :]),
        source=source.replace("KERNEL_", f"{symbol}_"),
        operands=shapes,
        op=facts.op,
        op_class=facts.op_class,
        flops=facts.flops,
        others=facts.others,
        kind=facts.kind,
        products=facts.products,
    )


def translation_unit(kernels: Iterable[CudaKernel]) -> str:
    """All that nvcc needs to compile the kernels, each once."""
    sources = {kernel.symbol: kernel.source for kernel in kernels}
    text = "".join(sources[symbol] for symbol in sorted(sources))
    headers = [header for word, header in _HEADERS.items() if word in text]
    return "".join(f"#include <{header}>\n" for header in ["cstdint", *headers]) + _TYPES + functions_in(text) + text


def _written(function: tirx.PrimFunc, name: str) -> str:
    """The function as TVM writes it."""
    target = function.attrs["target"]
    with target:
        lowered = tvm.transform.Sequential(_PASSES)(tvm.IRModule({name: function}))
        text = tvm.get_global_func("target.build.cuda")(lowered, target).inspect_source()
    return str(text[text.index(_FUNCTION) :])


def workspace_bytes(kernel: CudaKernel) -> int:
    """Bytes of all workspaces of a kernel."""
    return sum(math.prod(shape) * tvm.DataType(dtype).itemsize for shape, dtype in kernel.workspaces)
