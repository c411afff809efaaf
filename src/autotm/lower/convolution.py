"""One convolution alone, as a step of a single kernel: what the kernel plot times in every placement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from autotm.kernels.making import KernelCompiler, Request, objects_in
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.graph import workspaces
from autotm.model.files import save
from autotm.model.step import Graph, Initial, Kernel, Operand, Role, Tensor, workspace

NETWORK = "convolution"
_WINDOW, _PADDING = 3, 1


def lower_convolution(
    batch: int,
    image: int,
    channels: int,
    scale: str,
    target: tvm.target.Target,
    threads: int,
    graph_path: Path,
    library_path: Path,
    provenance: Mapping[str, Any],
    objects: Path | None = None,
) -> Graph:
    """Write library and graph of a 3 x 3 convolution, padding 1: `data` (batch, image, image, channels) with `weight`.

    `objects` is a folder that keeps machine code for the next call.

    Raises:
        AutotmError: the library cannot be built (no C compiler, say).
    """
    module = fused_kernels(_module(batch, image, channels), target)
    (call,), _ = extract_calls(module)
    with objects_in(objects) as folder:
        compiler = KernelCompiler(folder, target, threads)
        (made,) = compiler.make([Request(module[call.function].without_attr("global_symbol"))])
        compiler.link([made], library_path)
    kernel = Kernel(
        name=NETWORK,
        function=made.symbol,
        identity=made.identity,
        op=made.op,
        op_class=made.op_class,
        flops=made.flops,
        inputs=call.inputs,
        outputs=tuple(Operand("output", item.shape, item.dtype) for item in call.outputs),
        workspaces=workspaces(NETWORK, made),
    )
    graph = Graph(NETWORK, scale, batch, (kernel,), _tensors(kernel))
    save(graph_path, "graph", graph, provenance)
    return graph


def _module(batch: int, image: int, channels: int) -> tvm.IRModule:
    data = relax.Var("data", relax.TensorType((batch, image, image, channels), "float32"))
    weight = relax.Var("weight", relax.TensorType((_WINDOW, _WINDOW, channels, channels), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [data, weight]):
        with builder.dataflow():
            product = relax.op.nn.conv2d(data, weight, padding=_PADDING, data_layout="NHWC", kernel_layout="HWIO")
            result = builder.emit_output(relax.Tuple([builder.emit(product)]))
        builder.emit_func_output(result)
    return builder.finalize()


def _tensors(kernel: Kernel) -> tuple[Tensor, ...]:
    data, weight = kernel.inputs
    (output,) = kernel.outputs
    return (
        Tensor(data.tensor, Role.INPUT, data.shape, data.dtype, data.size_bytes, None, (0,), initial=Initial("normal")),
        Tensor(
            weight.tensor, Role.PARAMETER, weight.shape, weight.dtype, weight.size_bytes, None, (0,),
            initial=Initial("normal", 0.1),
        ),
        Tensor(output.tensor, Role.RESULT, output.shape, output.dtype, output.size_bytes, 0, ()),
        *(workspace(operand, 0) for operand in kernel.workspaces),
    )  # fmt: skip
