"""The calls of cuDNN's frontend that `kernels/vendor.py` makes, played: NumPy convolves, on a played stream.

As the frontend does: what is deselected stays in the list of plans and cannot be built, a plan is built before its
workspace is known or it runs, and some knobs are told as `NOT_SET`, so that only names tell plans apart. Workspaces are
written whole.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from played_cudart import PlayedRuntime


class Notes(enum.Enum):
    TENSOR_CORE = enum.auto()
    DOWN_CONVERT_INPUTS = enum.auto()
    REDUCED_PRECISION_REDUCTION = enum.auto()
    NONDETERMINISTIC = enum.auto()
    WINOGRAD = enum.auto()


class Knobs(enum.Enum):
    NOT_SET = enum.auto()
    TILE_SIZE = enum.auto()


class NotSupportedError(Exception):
    """`cudnnGraphNotSupportedError`."""


@dataclass(frozen=True)
class Engine:
    """One of the library's plans for every convolution."""

    number: int
    name: str
    knobs: dict[Knobs, int]
    workspace_bytes: int = 0
    notes: frozenset[Notes] = frozenset()
    builds: bool = True


ENGINES = (
    Engine(0, "eng0_k2=2", {Knobs.TILE_SIZE: 2}),
    Engine(7, "eng7", {}, notes=frozenset({Notes.TENSOR_CORE})),
    Engine(3, "eng3_k2=1_k3=0", {Knobs.TILE_SIZE: 1, Knobs.NOT_SET: 0}, 1000, frozenset({Notes.WINOGRAD})),
    Engine(8, "eng8", {}, notes=frozenset({Notes.NONDETERMINISTIC})),
    Engine(9, "eng9", {}, builds=False),
    Engine(6, "eng6", {}, 5 << 30),
    Engine(20_800, "own", {}),
)
"""The last is the frontend's own."""


@dataclass(eq=False)
class PlayedTensor:
    name: str
    dim: list[int]
    stride: list[int]
    is_output: bool = False

    def set_output(self, value: bool) -> PlayedTensor:
        self.is_output = value
        return self

    def set_dim(self, dim: list[int]) -> PlayedTensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> PlayedTensor:
        self.stride = stride
        return self


@dataclass(eq=False)
class PlayedGraph:
    """`pygraph`."""

    library: PlayedCudnn
    engines: tuple[Engine, ...]
    node: tuple[str, PlayedTensor, PlayedTensor, PlayedTensor, dict[str, list[int]]] | None = None
    done: list[str] = field(default_factory=list)
    plans: list[Engine] = field(default_factory=list)
    built: set[int] = field(default_factory=set)
    barred: set[int] = field(default_factory=set)

    def tensor(self, *, name: str, dim: list[int], stride: list[int]) -> PlayedTensor:
        return PlayedTensor(name, dim, stride)

    def conv_fprop(self, *, image: PlayedTensor, weight: PlayedTensor, **window: list[int]) -> PlayedTensor:
        return self._node("conv_fprop", image, weight, window)

    def conv_dgrad(self, *, loss: PlayedTensor, filter: PlayedTensor, **window: list[int]) -> PlayedTensor:  # noqa: A002
        return self._node("conv_dgrad", loss, filter, window)

    def conv_wgrad(self, *, image: PlayedTensor, loss: PlayedTensor, **window: list[int]) -> PlayedTensor:
        return self._node("conv_wgrad", image, loss, window)

    def _node(self, kind: str, left: PlayedTensor, right: PlayedTensor, window: dict[str, list[int]]) -> PlayedTensor:
        assert window.keys() == {"pre_padding", "post_padding", "stride", "dilation"}
        result = PlayedTensor("result", [], [])
        self.node = kind, left, right, result, window
        return result

    def validate(self) -> None:
        assert self.node is not None
        assert self.node[3].is_output
        self.done.append("validate")

    def build_operation_graph(self) -> None:
        assert self.done == ["validate"]
        self.done.append("build_operation_graph")

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "FALLBACK"]
        assert self.done == ["validate", "build_operation_graph"]
        self.plans = list(self.engines)

    def deselect_numeric_notes(self, notes: list[Notes]) -> None:
        assert self.plans, "marks plans that are there"
        self.barred |= {index for index, plan in enumerate(self.plans) if plan.notes & set(notes)}

    def check_support(self) -> None:
        if len(self.barred) == len(self.plans):
            raise NotSupportedError("no plan is left")

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, dict[Knobs, int]]:
        return self.plans[index].number, dict(self.plans[index].knobs)

    def get_plan_name_at_index(self, index: int) -> str:
        return self.plans[index].name

    def build_plan_at_index(self, index: int) -> None:
        if index in self.barred:
            raise NotSupportedError("Deselecting execution plan")
        if not self.plans[index].builds:
            raise NotSupportedError("CUDNN_STATUS_NOT_SUPPORTED")
        self.built.add(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        assert index in self.built
        return self.plans[index].workspace_bytes

    def execute_plan_at_index(
        self, operands: dict[PlayedTensor, int], workspace: int, *, index: int, handle: SimpleNamespace
    ) -> None:
        assert index in self.built
        assert self.node is not None
        engine, runtime = self.plans[index], self.library.runtime
        assert not workspace % 256
        assert bool(workspace) == bool(engine.workspace_bytes)
        kind, *tensors, window = self.node
        arrays = [_array(runtime, tensor, operands[tensor]) for tensor in tensors]

        def work() -> None:
            if workspace:
                runtime.bytes_at(workspace, engine.workspace_bytes).fill(0xAB)
            _PASSES[kind](*arrays, window["pre_padding"], window["stride"])
            self.library.ran.append((kind, engine.number))

        runtime.streams[handle.stream].launch(work)


def _array(runtime: PlayedRuntime, tensor: PlayedTensor, address: int) -> np.ndarray:
    whole = runtime.bytes_at(address, 4 * int(np.prod(tensor.dim))).view(np.float32)
    return np.lib.stride_tricks.as_strided(whole, tensor.dim, [4 * stride for stride in tensor.stride])


def _taps(x: np.ndarray, w: np.ndarray, y: np.ndarray, padding: list[int], stride: list[int]) -> Any:
    """For each tap, the pixels of x that outputs of y meet with it: indices of y and of x."""
    for r, s in itertools.product(range(w.shape[2]), range(w.shape[3])):
        rows = np.arange(y.shape[2]) * stride[0] + r - padding[0]
        columns = np.arange(y.shape[3]) * stride[1] + s - padding[1]
        inside = (
            np.flatnonzero((rows >= 0) & (rows < x.shape[2])),
            np.flatnonzero((columns >= 0) & (columns < x.shape[3])),
        )
        yield (r, s), inside, (rows[inside[0]], columns[inside[1]])


def _groups(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> Any:
    """Channels of x, and features, of each group."""
    channels = w.shape[1]
    groups = x.shape[1] // channels
    features = y.shape[1] // groups
    for group in range(groups):
        yield slice(group * channels, (group + 1) * channels), slice(group * features, (group + 1) * features)


def _forward(x: np.ndarray, w: np.ndarray, y: np.ndarray, padding: list[int], stride: list[int]) -> None:
    y[...] = 0
    for (r, s), outside, met in _taps(x, w, y, padding, stride):
        for c, k in _groups(x, w, y):
            seen = x[:, c][:, :, met[0][:, None], met[1]]
            y[:, k][:, :, outside[0][:, None], outside[1]] += np.einsum("nchw,kc->nkhw", seen, w[k, :, r, s])


def _data(y: np.ndarray, w: np.ndarray, x: np.ndarray, padding: list[int], stride: list[int]) -> None:
    x[...] = 0
    for (r, s), outside, met in _taps(x, w, y, padding, stride):
        for c, k in _groups(x, w, y):
            slope = y[:, k][:, :, outside[0][:, None], outside[1]]
            x[:, c][:, :, met[0][:, None], met[1]] += np.einsum("nkhw,kc->nchw", slope, w[k, :, r, s])


def _weights(x: np.ndarray, y: np.ndarray, w: np.ndarray, padding: list[int], stride: list[int]) -> None:
    for (r, s), outside, met in _taps(x, w, y, padding, stride):
        for c, k in _groups(x, w, y):
            seen = x[:, c][:, :, met[0][:, None], met[1]]
            slope = y[:, k][:, :, outside[0][:, None], outside[1]]
            w[k, :, r, s] = np.einsum("nchw,nkhw->kc", seen, slope)


_PASSES: dict[str, Callable[..., None]] = {"conv_fprop": _forward, "conv_dgrad": _data, "conv_wgrad": _weights}


class PlayedCudnn:
    """The module `cudnn`.

    Args:
        runtime: whose memory and streams it uses.
        version: of cuDNN.
        engines: that it has.
    """

    data_type = SimpleNamespace(FLOAT="FLOAT")
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    numerical_note = Notes
    cudnnGraphNotSupportedError = NotSupportedError  # noqa: N815 - NVIDIA's

    def __init__(self, runtime: PlayedRuntime, version: str = "9.28.1", engines: tuple[Engine, ...] = ENGINES) -> None:
        self.runtime = runtime
        self.version = version
        self.engines = engines
        self.ran: list[tuple[str, int]] = []

    def backend_version_string(self) -> str:
        return self.version

    def create_handle(self) -> SimpleNamespace:
        return SimpleNamespace(stream=None)

    def set_stream(self, *, handle: SimpleNamespace, stream: int) -> None:
        assert stream in self.runtime.streams
        handle.stream = stream

    def pygraph(self, **given: Any) -> PlayedGraph:
        types = ("io_data_type", "intermediate_data_type", "compute_data_type")
        assert given.keys() == {*types, "handle"}
        assert {given[name] for name in types} == {"FLOAT"}
        return PlayedGraph(self, self.engines)
