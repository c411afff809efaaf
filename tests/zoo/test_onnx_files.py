"""Files that cannot be imported say why, before anything is compiled; free dimensions are bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import autotm  # noqa: E402
from autotm.api.preparing import _built  # noqa: E402
from autotm.lower.step import whole_step  # noqa: E402
from autotm.model.errors import AutotmError, BadInputError  # noqa: E402
from autotm.model.graph import Initial  # noqa: E402

WEIGHT = np.ones((8, 4), np.float32)


def written(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[int, Sequence[int | str | None]]] | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
    opsets: Mapping[str, int] | None = None,
) -> Path:
    """A file with those nodes; by default of one input x, float32 of shape (batch, 8), and a weight w."""
    given = {"x": (TensorProto.FLOAT, ("batch", 8))} if inputs is None else inputs
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {"w": WEIGHT}).items()],
    )
    for item in graph.output:
        item.type.tensor_type.elem_type = TensorProto.FLOAT
    versions = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"": 18}).items()]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=10), path)
    return path


PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")


def test_free_dimensions_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", [PRODUCT])
    with pytest.raises(BadInputError, match=r"free dimensions \('x': batch \(axis 0\)\).*inputs=\{'x'"):
        autotm.from_onnx(path)


@pytest.mark.parametrize(
    "given",
    [{"inputs": {"x": (3, 8)}}, {"sizes": {"batch": 3}}, {"inputs": np.zeros((3, 8), np.float32)}],
    ids=["shape", "size", "array"],
)
def test_free_dimensions_are_bound(given: dict[str, Any], tmp_path: Path) -> None:
    network = autotm.from_onnx(written(tmp_path / "My-model.onnx", [PRODUCT]), **given)
    assert [int(extent) for extent in network.module["main"].params[0].ty.shape] == [3, 8]
    assert (network.name, network.batch, network.training) == ("my_model", 3, None)
    assert list(network.parameters) == ["w"]


def test_a_dimension_of_one_input_binds_it_in_all(tmp_path: Path) -> None:
    kind = (TensorProto.FLOAT, ("batch", 8))
    path = written(
        tmp_path / "model.onnx", [helper.make_node("Add", ["x", "z"], ["y"])], {"x": kind, "z": kind}, {"w": WEIGHT}
    )
    network = autotm.from_onnx(path, inputs={"z": (5, 8)})
    assert {tuple(map(int, var.ty.shape)) for var in network.module["main"].params} == {(5, 8)}
    with pytest.raises(BadInputError, match=r"input 'z': \[6, 8\] given, the file has \[batch, 8\] with batch = 5"):
        autotm.from_onnx(path, inputs={"x": (5, 8), "z": (6, 8)})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"z": (1, 8)}, "unknown input of .* 'z'.*known: x"),
        ({"x": (1, 9)}, r"input 'x': \[1, 9\] given, the file has \[batch, 8\]"),
        ({"x": (1, 8, 1)}, r"\[1, 8, 1\] given, the file has \[batch, 8\]"),
        ({"x": (0, 8)}, "at least 1"),
        ({"x": np.zeros((1, 8), complex)}, "complex128 given, the file has float32"),
        ((1, 8), r"give shapes by name: inputs=\{'x': \(1, 8\)\}"),
        ((np.zeros((1, 8)), np.zeros(1)), "2 inputs given, it has 1: x"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=message):
        autotm.from_onnx(written(tmp_path / "model.onnx", [PRODUCT]), inputs=inputs)


def test_weights_under_two_names_are_weights_and_so_are_those_of_later_nodes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("MatMul", ["x", "same"], ["between"]),
        helper.make_node("MatMul", ["between", "v"], ["y"]),
    ]
    weights = {"w": WEIGHT, "v": np.ones((4, 2), np.float32)}
    network = autotm.from_onnx(written(tmp_path / "model.onnx", nodes, weights=weights), sizes={"batch": 3})
    assert set(network.parameters) == {"w", "v"}


def test_inputs_without_values_are_drawn(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["rows"]),
        helper.make_node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["rows", "kept"], ["y"]),
    ]
    inputs = {"ids": (TensorProto.INT64, (3,)), "mask": (TensorProto.INT64, (3, 1))}
    network = autotm.from_onnx(written(tmp_path / "model.onnx", nodes, inputs))
    assert network.inputs == {"ids": Initial("integers", 8), "mask": Initial("integers", 2)}


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.onnx: no such file"):
        autotm.from_onnx(tmp_path / "none.onnx")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_that_is_cut_off(share: float, tmp_path: Path) -> None:
    whole = written(tmp_path / "model.onnx", [PRODUCT]).read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadInputError, match=r"cut\.onnx: .*(cut off|not valid ONNX)"):
        autotm.from_onnx(tmp_path / "cut.onnx", sizes={"batch": 1})


def test_something_else_than_onnx(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is no network\n" * 20)
    with pytest.raises(BadInputError, match=r"text\.onnx: .*not an ONNX file|cannot be read as ONNX"):
        autotm.from_onnx(tmp_path / "text.onnx")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("Fancy", ["x", "w"], ["y"], name="odd"), "node 'odd' .Fancy.: this operator of ONNX"),
        (helper.make_node("Fancy", ["x"], ["y"], name="odd", domain="my.own"), "operator of domain 'my.own'"),
        (helper.make_node("NonZero", ["x"], ["y"], name="odd"), "node 'odd' .NonZero.: .* the shape of its result"),
        (helper.make_node("Gather", ["x", "far"], ["y"], name="odd", axis=1), "'far': index 9 .* takes -8 to 7"),
    ],
)
def test_a_node_that_cannot_be_imported_is_named(node: Any, message: str, tmp_path: Path) -> None:
    weights = {"w": WEIGHT, "far": np.array([9])}
    path = written(tmp_path / "model.onnx", [node], weights=weights, opsets={"": 18, "my.own": 1})
    with pytest.raises(BadInputError, match=message):
        autotm.from_onnx(path, inputs={"x": (8, 8)})


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
def test_weights_of_another_type(kind: str, tmp_path: Path) -> None:
    import ml_dtypes

    path = written(tmp_path / "model.onnx", [PRODUCT], weights={"w": WEIGHT.astype(getattr(ml_dtypes, kind, kind))})
    with pytest.raises(BadInputError, match=f"weight 'w' is {kind}; kernels compute in float32"):
        autotm.from_onnx(path, sizes={"batch": 1})


def test_external_data_that_is_missing_or_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", [PRODUCT])
    save = {"save_as_external_data": True, "location": "model.data", "size_threshold": 0}
    onnx.save(onnx.load(path), path, **save)
    assert autotm.from_onnx(path, sizes={"batch": 2}).parameters["w"].tolist() == WEIGHT.tolist()
    data = (tmp_path / "model.data").read_bytes()
    (tmp_path / "model.data").write_bytes(data[:-1])
    with pytest.raises(BadInputError, match=r"'w' end at byte 128 of .*model\.data, which has 127"):
        autotm.from_onnx(path, sizes={"batch": 2})
    (tmp_path / "model.data").unlink()
    with pytest.raises(BadInputError, match=r"'w' are in .*model\.data, which is missing"):
        autotm.from_onnx(path, sizes={"batch": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "train"}, r"training needs one number to descend, the file's outputs are \[2, 4\]"),
        ({"loss": "hinge"}, "unknown loss 'hinge'.*known: cross_entropy, mse"),
        ({"loss": "mse", "mode": "inference"}, "takes neither loss nor training"),
        ({"training": "adam"}, "a str: a file takes Training, Sgd, Adam or AdamW"),
        ({"mode": "test"}, "neither 'train' nor 'inference'"),
        ({"loss": "mse", "fixed": ("v*",)}, r"unknown initializer of .* 'v\*'.*known: w"),
    ],
)
def test_training_that_is_asked_for_wrongly(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=message):
        autotm.from_onnx(written(tmp_path / "model.onnx", [PRODUCT]), sizes={"batch": 2}, **options)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            helper.make_node("Resize", ["z", "", "scales"], ["y"], mode="linear", name="wide"),
            "node 'wide' .Resize.: has no",
        ),
        (
            helper.make_node("LRN", ["z"], ["y"], size=3),
            r"avg_pool3d has no gradient here .first used in node 'y' .LRN",
        ),
    ],
)
def test_an_operator_without_a_gradient_is_named(node: Any, message: str, tmp_path: Path) -> None:
    shape = (1, 8, 4) if node.op_type == "Resize" else (1, 2, 8, 4)
    nodes = [helper.make_node("Mul", ["x", "w"], ["z"]), node]
    weights = {"w": WEIGHT, "scales": np.array([1, 1, 2], np.float32)}
    path = written(tmp_path / "model.onnx", nodes, {"x": (TensorProto.FLOAT, shape)}, weights)
    autotm.from_onnx(path)
    with pytest.raises(AutotmError, match=message):
        whole_step(autotm.from_onnx(path, loss="mse"))


def test_constants_are_computed_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "two"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    weights = {"zero": np.array([0]), "two": np.array([2, 4])}
    network = autotm.from_onnx(written(tmp_path / "model.onnx", nodes, weights=weights), sizes={"batch": 3})
    main = network.module["main"]
    values = [binding.value for block in main.body.blocks for binding in block.bindings]
    assert [value.op.name for value in values if hasattr(value, "op")] == ["relax.reshape"]
    assert set(network.origin.kept) == {"zero", "two"}


def test_a_path_that_ends_in_onnx_is_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", [PRODUCT])
    options = {"loss": None, "targets": (), "training": None, "mode": None, "kernels": None}
    for given in (path, str(path)):
        assert _built(given, None, {"batch": 2}, options).batch == 2
    for wrong in ({"targets": (1,)}, {"loss": print}, {"kernels": "torch"}):
        with pytest.raises(BadInputError, match=r"module of PyTorch|the name of a loss|known: auto, tvm"):
            _built(path, None, {"batch": 2}, options | wrong)
