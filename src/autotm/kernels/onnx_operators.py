"""Kernels that are nodes of an ONNX file, computed by ONNX's own reference on the memory that a plan gives.

As in `torch_operators.py`, compiled code calls them by name. Only processes that run such kernels import ONNX.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import tvm_ffi
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from autotm.kernels.library import ONNX_CALL
from autotm.model.errors import BadInputError

Array = npt.NDArray[Any]
_BOUND = 16384
"""Calls whose evaluators and arrays are kept: more than a step has kernels."""
Tensor = tuple[str, list[int], str]
"""Name, shape and NumPy's type."""


def reference_evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Return ONNX's reference for a model, with what the standard says where the reference is wrong.

    Before version 13 a softmax takes its operand as a matrix: rows are all positions before the axis, and it is taken
    over all behind them. ONNX 1.23's reference takes it along the one axis, as since then.
    """
    versions = {item.domain: item.version for item in model.opset_import}
    own = versions.get("", versions.get("ai.onnx", 0))
    return ReferenceEvaluator(model, new_ops=list(_BY_ROWS) if own < _SOFTMAX_ALONG_AXIS else None)


def _by_rows(name: str, compute: Callable[[Array], Array]) -> type[OpRun]:
    """Make the operator of that name from a function of the rows of a matrix."""

    def _run(_self: OpRun, x: Array, axis: int | None = None) -> tuple[Array]:
        first = (1 if axis is None else axis) % max(x.ndim, 1)
        return (compute(x.reshape(math.prod(x.shape[:first]), -1)).reshape(x.shape).astype(x.dtype),)

    return type(name, (OpRun,), {"op_domain": "", "_run": _run})


def _log_softmax(rows: Array) -> Array:
    shifted = rows - rows.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


_BY_ROWS = (
    _by_rows("Softmax", lambda rows: np.exp(_log_softmax(rows))),
    _by_rows("LogSoftmax", _log_softmax),
    _by_rows("Hardmax", lambda rows: np.asarray(np.arange(rows.shape[1]) == rows.argmax(axis=1)[:, None])),
)
_SOFTMAX_ALONG_AXIS = 13
"""The version of ONNX's operators from which a softmax is taken along one axis."""


@dataclass(frozen=True)
class OnnxOperation:
    """A node as a model of its own, as text that compiled code holds.

    Attributes:
        model: serialized.
        operands: the model's inputs, in the order of the kernel's.
        results: those of its outputs that are kept, in the order of the kernel's.
    """

    model: bytes
    operands: list[Tensor]
    results: list[Tensor]

    def text(self) -> str:
        """Return the operation as JSON."""
        return json.dumps([base64.b64encode(self.model).decode(), self.operands, self.results])

    @classmethod
    def read(cls, text: str) -> OnnxOperation:
        """Read what `text` gave."""
        model, operands, results = json.loads(text)
        return cls(base64.b64decode(model), operands, results)

    def bound(self, operands: list[Array], kept: list[Array]) -> Callable[[], None]:
        """Return the node as a call without arguments, which reads its operands and writes what is kept of its results.

        The call raises BadInputError where the reference refuses the values, or gives a shape that was not inferred.
        """
        model = onnx.ModelProto.FromString(self.model)
        (node,) = model.graph.node
        evaluator, label = reference_evaluator(model), f"node '{node.name or node.output[0]}' ({node.op_type})"
        values = {name: value for (name, *_), value in zip(self.operands, operands, strict=True)}
        names = [name for name, *_ in self.results]

        def call() -> None:
            try:
                computed = [np.asarray(value) for value in evaluator.run(names, values)]
            except Exception as error:
                raise BadInputError(f"{label}: ONNX refuses what the step computed for it: {error}") from error
            for result, value in zip(kept, computed, strict=True):
                if value.shape != result.shape:
                    raise BadInputError(
                        f"{label}: its result has shape {list(value.shape)}, and {list(result.shape)} was inferred"
                    )
                result[...] = value

        return call


def _run(text: str, *addresses: Any) -> None:
    _bound(text, tuple(address.value for address in addresses))()


@functools.lru_cache(maxsize=_BOUND)
def _bound(text: str, addresses: tuple[int, ...]) -> Callable[[], None]:
    """Return the node as a call without arguments on the memory at these addresses."""
    operation = OnnxOperation.read(text)
    kinds = [*operation.operands, *operation.results]
    arrays = [_view(at, shape, dtype) for at, (_, shape, dtype) in zip(addresses, kinds, strict=True)]
    count = len(operation.operands)
    return operation.bound(arrays[:count], arrays[count:])


def _view(address: int, shape: list[int], dtype: str) -> Array:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


tvm_ffi.register_error("BadInputError", BadInputError)
tvm_ffi.register_global_func(ONNX_CALL, _run, override=True)
