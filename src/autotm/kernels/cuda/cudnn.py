"""cuDNN's algorithms of convolutions, each with its workspace: to be timed beside our own where NVIDIA's library is.

Needs `nvidia-cudnn-frontend`, cuDNN and a GPU. **Never run on a GPU**: written against the frontend's documented calls.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te

from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.cuda.source import CudaKernel
from autotm.model.files import AutotmError

PASSES = ("conv2d", "conv2d_data_gradient", "conv2d_weight_gradient")
_NODES = {
    "conv2d": ("conv_fprop", "image", "weight"),
    "conv2d_data_gradient": ("conv_dgrad", "loss", "filter"),
    "conv2d_weight_gradient": ("conv_wgrad", "image", "loss"),
}
"""The frontend's node of each pass, and what it calls the two operands."""


@dataclass(frozen=True)
class Convolution:
    """Extents of a convolution: activations are (N, H, W, C), weights (K, R, S, C/G) as cuDNN wants them.

    Attributes:
        x, y: shapes of input and output.
        w: (R, S, C/G, K), as our kernels have them.
        stride: (vertical, horizontal).
        padding: (top, left, bottom, right).
    """

    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]

    @property
    def operands(self) -> dict[str, tuple[list[int], list[int]]]:
        """CuDNN's (extents, strides), channels second in the order of extents whatever lies where."""
        rows, columns, channels, features = self.w
        return {
            "x": _channels_last(*self.x),
            "y": _channels_last(*self.y),
            "w": _channels_last(features, rows, columns, channels),
        }


def _channels_last(count: int, rows: int, columns: int, channels: int) -> tuple[list[int], list[int]]:
    return [count, channels, rows, columns], [rows * columns * channels, 1, columns * channels, channels]


@dataclass(frozen=True)
class Algorithm:
    """One of cuDNN's plans for a pass.

    Attributes:
        name: cuDNN's, its engine and what that is set to.
        workspace_bytes: exactly what it needs.
    """

    name: str
    workspace_bytes: int
    _graph: Any
    _index: int
    _handle: Any
    _tensors: tuple[Any, Any, Any]

    def run(self, pointers: Sequence[int], workspace: int, stream: int) -> None:
        """Launch on a stream; `pointers` are device addresses of the two operands and the result."""
        library = _library()
        library.set_stream(handle=self._handle, stream=stream)
        operands: Mapping[Any, int] = dict(zip(self._tensors, pointers, strict=True))
        self._graph.execute_plan_at_index(operands, workspace, index=self._index, handle=self._handle)


def algorithms(problem: Convolution, which: str, *, exact: bool = True) -> list[Algorithm]:
    """The plans that cuDNN offers for a pass, its favourite first; none where it has no engine for these extents.

    Args:
        problem: the convolution.
        which: one of `PASSES`.
        exact: float32 throughout; otherwise tensor cores may round factors to tf32.

    Raises:
        AutotmError: the library is missing, or finds no GPU.
    """
    library = _library()
    try:
        handle = library.create_handle()
    except Exception as error:  # noqa: BLE001  (the library raises its own and the driver's)
        raise AutotmError(f"cuDNN found no GPU to work on ({error}); run where NVIDIA's driver is") from None
    graph = library.pygraph(
        io_data_type=library.data_type.FLOAT,
        intermediate_data_type=library.data_type.FLOAT,
        compute_data_type=library.data_type.FLOAT,
        handle=handle,
    )
    node, *names = _NODES[which]
    roles = {"conv2d": "xwy", "conv2d_data_gradient": "ywx", "conv2d_weight_gradient": "xyw"}[which]
    shapes = problem.operands
    left, right = (graph.tensor(name=role, dim=shapes[role][0], stride=shapes[role][1]) for role in roles[:2])
    result = getattr(graph, node)(
        **dict(zip(names, (left, right), strict=True)),
        pre_padding=list(problem.padding[:2]),
        post_padding=list(problem.padding[2:]),
        stride=list(problem.stride),
        dilation=[1, 1],
    )
    result.set_output(True).set_dim(shapes[roles[2]][0]).set_stride(shapes[roles[2]][1])
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
        if exact:
            graph.deselect_numeric_notes([library.numerical_note.TENSOR_CORE])
        graph.deselect_numeric_notes([library.numerical_note.NONDETERMINISTIC])
        graph.check_support()
        graph.build_plans(library.build_plan_policy.ALL)
    except library.cudnnGraphNotSupportedError:
        return []
    return [
        Algorithm(
            name=str(graph.get_plan_name_at_index(index)),
            workspace_bytes=int(graph.get_workspace_size_plan_at_index(index)),
            _graph=graph,
            _index=index,
            _handle=handle,
            _tensors=(left, right, result),
        )
        for index in range(graph.get_execution_plan_count())
    ]


def turned_weights(shape: tuple[int, int, int, int], device: CudaDevice, *, back: bool = False) -> CudaKernel:
    """The kernel from our weights (R, S, C, K) to cuDNN's (K, R, S, C), or back: its bytes are workspace too."""
    rows, columns, channels, features = shape
    if back:
        weights = te.placeholder((features, rows, columns, channels), name="weights")
        result = te.compute(shape, lambda r, s, c, k: weights[k, r, s, c], name="turned")
    else:
        weights = te.placeholder(shape, name="weights")
        turned = (features, rows, columns, channels)
        result = te.compute(turned, lambda k, r, s, c: weights[r, s, c, k], name="turned")
    return cuda_kernel(te.create_prim_func([weights, result]), device)


def _library() -> Any:
    try:
        return importlib.import_module("cudnn")
    except ImportError:
        raise AutotmError(
            "cuDNN's algorithms need its Python package and library, which are not installed here; "
            "pip install nvidia-cudnn-frontend nvidia-cudnn-cu13, or leave them out: autotm's own kernels need neither"
        ) from None
