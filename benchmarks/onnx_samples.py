"""ONNX's own node tests as samples of `conformance.py --onnx`."""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from autotm.kernels.library import KernelLibrary, pinned
from autotm.kernels.target import machine_target
from autotm.lower.lowering import lower_network
from autotm.model.errors import AutotmError
from autotm.model.graph import Role
from autotm.model.machine import load_machine
from autotm.runtime.verify import plain_steps
from autotm.zoo import Network, from_onnx, with_values_stored
from autotm.zoo.onnx.framework import RANDOM

CONFIG = Path(__file__).resolve().parents[1] / "config"
Array = np.ndarray[Any, Any]
TYPES = {
    TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
}  # fmt: skip
"""Element types that a step here may have. Tests of others (text, sequences, float16, ...) are not compared."""


@dataclass(frozen=True)
class NodeTest:
    """A model of one node, arrays that it is fed and what it gives.

    Attributes:
        name: of the test.
        model: as ONNX has it.
        inputs, outputs: values in the model's order; an optional input that is left out is None.
        rtol, atol: how far off a result may be, relative and absolute, by the test.
    """

    name: str
    model: ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


def node_tests(only: Sequence[str] = (), files: Sequence[str] = ()) -> Iterator[NodeTest]:
    """ONNX's node tests.

    Args:
        only: beginnings of names; all tests if there are none.
        files: of onnx.backend.test.case.node, whose tests these are; all files, which takes seconds, if there are none.
    """
    from onnx.backend.test.case import node  # noqa: PLC0415 - it takes seconds

    for file in files:
        importlib.import_module(f"{node.__name__}.{file}")
    cases = node._NodeTestCases if files else node.collect_testcases(None)  # noqa: SLF001 - what the files add to
    for case in cases:
        if only and not any(case.name.startswith(name) for name in only):
            continue
        ((inputs, outputs),) = case.data_sets
        yield NodeTest(case.name, case.model, _arrays(inputs), _arrays(outputs), case.rtol, case.atol)


def _arrays(values: Sequence[Any]) -> list[Any]:
    return [numpy_helper.to_array(value) if isinstance(value, TensorProto) else value for value in values]


def judge(test: NodeTest, kernels: str) -> tuple[str, str]:
    """Compute a test here and compare.

    Inputs of at most one axis that are refused as inputs (shapes, axes, repetitions) are tried as initializers, which
    exporters make of them.
    """
    warnings.simplefilter("ignore")
    graph = test.model.graph
    kinds = {item.type.tensor_type.elem_type for item in (*graph.input, *graph.output) if _is_tensor(item)}
    if not all(map(_is_tensor, (*graph.input, *graph.output))) or not kinds <= TYPES:
        return "unusable", "types that no step computes with"
    if any(node.op_type in RANDOM for node in graph.node):
        return "random", ""
    try:
        computed = here(test.model, dict(zip((item.name for item in graph.input), test.inputs, strict=False)), kernels)
    except AutotmError as refusal:
        fixed = _with_initializers(test)
        try:
            computed = here(*fixed, kernels)
        except AutotmError as error:
            return "refused", str(error if len(fixed[1]) < len(graph.input) else refusal)
    for number, (ours, wanted) in enumerate(zip(computed, test.outputs, strict=True)):
        if text := difference(ours, np.asarray(wanted), test):
            return "wrong", f"output {number}: {text}"
    return "right", ""


def _is_tensor(item: onnx.ValueInfoProto) -> bool:
    return bool(item.type.HasField("tensor_type"))


def _with_initializers(test: NodeTest) -> tuple[ModelProto, dict[str, Array]]:
    """Return the model with small inputs as initializers, and the values of the others."""
    model = ModelProto()
    model.CopyFrom(test.model)
    values = {item.name: value for item, value in zip(model.graph.input, test.inputs, strict=False)}
    first = next(iter(values))
    small = {name for name, value in values.items() if np.ndim(value) <= 1}
    fixed = small - ({first} if _is_data(values[first]) else set())
    kept = [item for item in model.graph.input if item.name not in fixed]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(values[name]), name) for name in sorted(fixed))
    return model, {name: value for name, value in values.items() if name not in fixed}


def _is_data(value: Any) -> bool:
    return np.asarray(value).dtype.kind == "f" and np.ndim(value) > 0


def here(model: ModelProto, inputs: dict[str, Array], kernels: str) -> list[Array]:
    """Compute the outputs by a plain step of ours."""
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        file = Path(folder) / "test.onnx"
        onnx.save(model, file)
        network = from_onnx(file, inputs=inputs, kernels=kernels, name="sample")
    *_, values = results_of(network, 1)
    return [values[name] for name in network.results]


def results_of(network: Network, steps: int) -> Iterator[dict[str, Array]]:
    """Results by name, before the first of some plain steps of ours and after each."""
    machine = load_machine(CONFIG / "machines" / "laptop.yaml", 1)
    with tempfile.TemporaryDirectory(prefix="autotm-") as temporary:
        folder = Path(temporary)
        files = folder / "graph.json", folder / "kernels.so"
        stored = with_values_stored(network, folder / "values")
        graph = lower_network(stored, "sample", machine_target(machine), 1, *files, {})
        library = KernelLibrary.load(files[1])
        names = [tensor.name for tensor in graph.tensors if tensor.role is Role.RESULT]
        with pinned(machine):
            for memory in plain_steps(graph, library, machine, 0, steps, CONFIG / "devices"):
                yield {name: memory.value(name).copy() for name in names}


def difference(ours: Array, wanted: Array, test: NodeTest) -> str:
    """How a value differs from the test's beyond what it allows, in words; nothing where it does not."""
    if ours.shape != wanted.shape:
        return f"shape {list(ours.shape)}, ONNX's is {list(wanted.shape)}"
    if ours.dtype != wanted.dtype:
        return f"{ours.dtype}, ONNX's is {wanted.dtype}"
    with np.errstate(all="ignore"):
        close = np.isclose(ours, wanted, rtol=test.rtol, atol=test.atol, equal_nan=True)
    return "" if close.all() else f"{ours[~close][:6]}, ONNX's is {wanted[~close][:6]}"
