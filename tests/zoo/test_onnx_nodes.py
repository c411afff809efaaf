"""ONNX files: why some cannot be imported; nodes without a kernel, by ONNX's reference; comparisons with it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("torch", reason="the samples are compared beside those of PyTorch: make test-torch installs it")

import plain_steps  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tvm import relax  # noqa: E402

import autotm  # noqa: E402
import onnx_samples  # noqa: E402
from autotm.api.preparing import _built  # noqa: E402
from autotm.kernels.onnx_operators import reference_evaluator  # noqa: E402
from autotm.lower.step import whole_step  # noqa: E402
from autotm.model.errors import AutotmError, BadInputError  # noqa: E402
from autotm.model.graph import Initial  # noqa: E402
from autotm.stages.compare import DifferentStepError  # noqa: E402
from autotm.zoo.onnx import operators, reference  # noqa: E402

# Files that cannot be imported say why, before anything is compiled; free dimensions are bound.

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
    declared = {"x": (TensorProto.FLOAT, ("batch", 8))} if inputs is None else inputs
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in declared.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [
            numpy_helper.from_array(value, name)
            for name, value in ({"w": WEIGHT} if weights is None else weights).items()
        ],
    )
    for item in graph.output:
        item.type.tensor_type.elem_type = TensorProto.FLOAT
    versions = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"": 18}).items()]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=10), path)
    return path


PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")


@pytest.mark.parametrize(
    "options",
    [{"inputs": {"x": (3, 8)}}, {"sizes": {"batch": 3}}, {"inputs": np.zeros((3, 8), np.float32)}],
    ids=["shape", "size", "array"],
)
def test_free_dimensions_are_bound(options: dict[str, Any], tmp_path: Path) -> None:
    network = autotm.from_onnx(written(tmp_path / "My-model.onnx", [PRODUCT]), **options)
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


SIZES = {"sizes": {"batch": 2}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"free dimensions \('x': batch \(axis 0\)\).*inputs=\{'x'"),
        ({"inputs": {"z": (1, 8)}}, "unknown input of .* 'z'.*known: x"),
        ({"inputs": {"x": (1, 9)}}, r"input 'x': \[1, 9\] given, the file has \[batch, 8\]"),
        ({"inputs": {"x": (1, 8, 1)}}, r"\[1, 8, 1\] given, the file has \[batch, 8\]"),
        ({"inputs": {"x": (0, 8)}}, "at least 1"),
        ({"inputs": {"x": np.zeros((1, 8), complex)}}, "complex128 given, the file has float32"),
        ({"inputs": (1, 8)}, r"give shapes by name: inputs=\{'x': \(1, 8\)\}"),
        ({"inputs": (np.zeros((1, 8)), np.zeros(1))}, "2 inputs given, it has 1: x"),
        (SIZES | {"mode": "train"}, r"training needs one number to descend, the file's outputs are \[2, 4\]"),
        (SIZES | {"loss": "hinge"}, "unknown loss 'hinge'.*known: cross_entropy, mse"),
        (SIZES | {"loss": "mse", "mode": "inference"}, "takes neither loss nor training"),
        (SIZES | {"training": "adam"}, "a str: a file takes Training, Sgd, Adam or AdamW"),
        (SIZES | {"mode": "test"}, "neither 'train' nor 'inference'"),
        (SIZES | {"loss": "mse", "fixed": ("v*",)}, r"unknown initializer of .* 'v\*'.*known: w"),
    ],
)
def test_inputs_and_training_that_do_not_fit(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=message):
        autotm.from_onnx(written(tmp_path / "model.onnx", [PRODUCT]), **options)


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


def test_a_file_that_is_missing_cut_off_or_something_else(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.onnx: no such file"):
        autotm.from_onnx(tmp_path / "none.onnx")
    whole = written(tmp_path / "model.onnx", [PRODUCT]).read_bytes()
    for share in (0.0, 0.3, 0.9):
        (tmp_path / "cut.onnx").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(BadInputError, match=r"cut\.onnx: .*(cut off|not valid ONNX)"):
            autotm.from_onnx(tmp_path / "cut.onnx", sizes={"batch": 1})
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
    ("operator", "shape", "message"),
    [
        ("Resize", (1, 8, 4), "node 'odd' .Resize.: has no"),
        ("LRN", (1, 2, 8, 4), r"avg_pool3d has no gradient here .first used in node 'odd' .LRN"),
    ],
)
def test_an_operator_without_a_gradient_is_named(
    operator: str, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    operands, options = (["z", "", "scales"], {"mode": "linear"}) if operator == "Resize" else (["z"], {"size": 3})
    nodes = [helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node(operator, operands, ["y"], "odd", **options)]
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
    values = [binding.value for block in network.module["main"].body.blocks for binding in block.bindings]
    assert [value.op.name for value in values if hasattr(value, "op")] == ["relax.reshape"]
    assert set(network.origin.kept) == {"zero", "two"}


def test_a_path_that_ends_in_onnx_is_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", [PRODUCT])
    options = {"loss": None, "targets": (), "training": None, "mode": None, "kernels": None}
    for file in (path, str(path)):
        assert _built(file, None, {"batch": 2}, options).batch == 2
    for wrong in ({"targets": (1,)}, {"loss": print}, {"kernels": "torch"}):
        with pytest.raises(BadInputError, match=r"module of PyTorch|the name of a loss|known: auto, tvm"):
            _built(path, None, {"batch": 2}, options | wrong)


# Nodes of ONNX files that have no kernel here are computed by ONNX's reference; steps are compared with it.

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
X = np.random.default_rng(3).standard_normal((2, 6, 5, 4)).astype(np.float32)


def written_for_x(path: Path, nodes: list[Any], weights: dict[str, np.ndarray], opset: int = 18, **more: Any) -> Path:
    """A file of those nodes with an input x, shaped as `X`, or further inputs, and an output y, or `outputs`."""
    inputs = {"x": (FLOAT, X.shape), **more.pop("inputs", {})}
    return written(path, nodes, inputs, weights, opsets={"": opset}, **more)


def computed(path: Path, values: dict[str, np.ndarray], **options: Any) -> tuple[list[np.ndarray], Any]:
    """Outputs of a plain step, and its graph."""
    network = autotm.from_onnx(path, inputs=values, **options)
    steps = plain_steps.compiled(network, path.parent)
    after = steps.run(1).after[0]
    return [after[name] for name in network.results], steps.graph


def standard(path: Path, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs by ONNX's reference."""
    return [np.asarray(value) for value in reference_evaluator(onnx.load(path)).run(None, values)]


SAMPLES = {
    "attention": ["test_attention_4d_causal_with_past_and_present"], "clip": ["test_clip_min_greater_than_max"],
    "convtranspose": ["test_convtranspose_output_shape"], "cosh": ["test_cosh_example"],
    "dropout": ["test_dropout_default_mask"], "gru": ["test_gru_bidirectional"],
    "groupnormalization": ["test_group_normalization_example"], "if_": ["test_if"], "isinf": ["test_isinf_negative"],
    "layernormalization": ["test_layer_normalization_3d_axis1_epsilon"], "lstm": ["test_lstm_with_peepholes"],
    "maxpool": ["test_maxpool_2d_uint8"], "mod": ["test_mod_float_edge_cases_fmod_0_float32"],
    "pow": ["test_pow_types_float32_int64"],
    "reducemax": ["test_reduce_max_bool_inputs", "test_reduce_max_empty_set"], "scan": ["test_scan9_sum"],
    "resize": ["test_resize_downsample_scales_linear", "test_resize_downsample_sizes_cubic_antialias"],
    "roialign": ["test_roialign_mode_max"], "rotaryembedding": ["test_rotary_embedding_interleaved"],
    "shrink": ["test_shrink_hard"], "size": ["test_size"], "spacetodepth": ["test_spacetodepth_crd_mode_example"],
    "stft": ["test_stft_with_window"], "swiglu": ["test_swiglu"],
    "softmax_cross_entropy_loss": ["test_sce_NCd1_mean_weight_negative_ii_log_prob"],
}  # fmt: skip
"""By file, ONNX's own tests that came out wrong or ended in a traceback once: one of each kind."""


@pytest.mark.parametrize("file", SAMPLES)
@pytest.mark.filterwarnings("ignore")  # of NumPy, about numbers in ONNX's tests
def test_nodes_are_onnxs(file: str) -> None:
    tests = {test.name: test for test in onnx_samples.node_tests(files=[file])}
    for name in SAMPLES[file]:
        assert onnx_samples.judge(tests[name], "auto") == ("right", "")


def test_a_node_without_a_kernel_runs_as_the_references_and_has_no_gradient(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node("Det", ["z"], ["y"], name="det")]
    path = written_for_x(tmp_path / "model.onnx", nodes, {"w": X[0, 0, :4]}, inputs={"x": (FLOAT, (2, 4, 4))})
    value = {"x": np.abs(X[0, :2, :4, :4])}
    (y,), graph = computed(path, value)
    np.testing.assert_allclose(y, np.linalg.det(value["x"] * X[0, 0, :4]), rtol=1e-4)
    with pytest.raises(BadInputError, match=r"node 'det' \(Det\): has no gradient here, and weights lie before it"):
        autotm.from_onnx(path, loss="mse")
    assert "onnx_det" in {kernel.op for kernel in graph.kernels}
    with pytest.raises(BadInputError, match=r"node 'det' \(Det\): this operator cannot be imported"):
        autotm.from_onnx(path, kernels="tvm")
    with pytest.raises(BadInputError, match="unknown value of kernels for a file 'torch'"):
        autotm.from_onnx(path, kernels="torch")


def test_numbers_in_float64_stay_within_the_step(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["wide"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["y"], to=FLOAT),
    ]
    (y,), _ = computed(written_for_x(tmp_path / "model.onnx", nodes, {}), {"x": X})
    assert y == np.float32(X.astype(np.float64).sum())


@pytest.mark.parametrize("is_first", [True, False], ids=["input", "from an input"])
def test_indices_are_checked(tmp_path: Path, *, is_first: bool) -> None:
    nodes = [
        helper.make_node("Add", ["ids", "one"], ["later"]),
        helper.make_node("Gather", ["w", "ids" if is_first else "later"], ["rows"], name="table"),
        helper.make_node("Add", ["rows", "x"], ["y"]),
    ]
    weights = {"w": X[0, 0], "one": np.array(1)}
    path = written_for_x(tmp_path / "model.onnx", nodes, weights, inputs={"ids": (INT, (2,)), "x": (FLOAT, (2, 4))})
    value = {"ids": np.array([-2, 3]), "x": X[0, 0, :2]}
    (y,), _ = computed(path, value)
    np.testing.assert_array_equal(y, standard(path, value)[0])
    wrong = 5 if is_first else 4
    network = autotm.from_onnx(path, inputs=value)
    with pytest.raises(BadInputError, match=r"input ids: index 5 .*: node 'table' \(Gather\) takes -5 to 4"):
        network.origin.check({"ids": np.array([0, wrong])})
    with pytest.raises(BadInputError, match="input ids: index 5 is out of range"):
        autotm.from_onnx(path, inputs={**value, "ids": np.array([0, wrong])})


def test_indices_that_a_step_computes_are_checked_by_the_reference(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["places"], to=INT),
        helper.make_node("Gather", ["w", "places"], ["y"], name="table"),
    ]
    path = written_for_x(tmp_path / "model.onnx", nodes, {"w": X[0, 0]}, inputs={"x": (FLOAT, (3,))})
    (y,), _ = computed(path, {"x": np.array([4.0, -1.0, 2.0], np.float32)})
    np.testing.assert_array_equal(y, X[0, 0][[4, -1, 2]])
    with pytest.raises(BadInputError, match=r"node 'table' \(Gather\): ONNX refuses what the step computed for it"):
        computed(path, {"x": np.array([4.0, 5.0, 2.0], np.float32)})


SLOPES = np.arange(1, 7, dtype=np.float32) / 10
ROWS = np.exp(X.reshape(2, -1))
NODES: dict[str, tuple[list[Any], dict[str, np.ndarray], int, np.ndarray | None]] = {
    **{
        f"an old softmax is one of rows, of {name}": (
            [helper.make_node("Softmax", [name], ["z"], axis=1), helper.make_node("Add", ["x", "z"], ["y"])],
            {"constant": X}, 11, X + (ROWS / ROWS.sum(1, keepdims=True)).reshape(X.shape),
        )
        for name in ("x", "constant")
    },
    "operands without elements are left out": (
        [helper.make_node("Concat", ["x", "none"], ["y"], axis=1)], {"none": np.zeros((2, 0, 5, 4), np.float32)}, 18, X
    ),
    "old slopes are those of channels": (
        [helper.make_node("PRelu", ["x", "slopes"], ["y"])], {"slopes": SLOPES}, 6,
        np.where(X < 0, X * SLOPES[:, None, None], X),
    ),
    "NaN is the largest": (
        [helper.make_node("Sqrt", ["x"], ["z"]), helper.make_node("ReduceMax", ["z"], ["y"], axes=[3])], {}, 13, None,
    ),
    "infinities are compared": (
        [
            helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Div", ["x", "z"], ["ends"]),
            helper.make_node("ReduceMax", ["ends"], ["y"], axes=[3]),
        ],
        {}, 13, None,
    ),
    **{
        f"resizing takes the scale that is given: {scale}": (
            [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")],
            {"scales": np.array([1, 1, scale, scale], np.float32)}, 18, None,
        )
        for scale in (2.5, 1.3, 0.6, 2.0)
    },
}  # fmt: skip
"""Nodes, weights, the version of ONNX's operators, and the output; None: that of ONNX's reference."""


@pytest.mark.parametrize("name", NODES)
@pytest.mark.filterwarnings("ignore")  # of NumPy, about roots of negative numbers
def test_a_step_computes_what_the_standard_says(name: str, tmp_path: Path) -> None:
    nodes, weights, opset, wanted = NODES[name]
    path = written_for_x(tmp_path / "model.onnx", nodes, weights, opset=opset)
    wanted = standard(path, {"x": X})[0] if wanted is None else wanted
    np.testing.assert_allclose(computed(path, {"x": X})[0][0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("opset", "scale"), [(7, 2.0), (9, 2.0), (10, 2.0), (10, 1.5)])
def test_old_resizing_counts_from_corners(mode: str, opset: int, scale: float, tmp_path: Path) -> None:
    scales = np.array([1, 1, scale, scale], np.float32)
    how = {"mode": mode, **({"scales": scales.tolist()} if opset == 7 else {})}
    node = helper.make_node("Resize" if opset == 10 else "Upsample", ["x", *["scales"][: opset != 7]], ["y"], **how)
    path = written_for_x(tmp_path / "model.onnx", [node], {"scales": scales}, opset=opset)
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    newer = helper.make_node("Resize", ["x", "", "scales"], ["y"], **how)
    wanted = standard(written_for_x(tmp_path / "newer.onnx", [newer], {"scales": scales}, opset=13), {"x": X})[0]
    np.testing.assert_allclose(computed(path, {"x": X})[0][0], wanted, rtol=1e-5, atol=1e-6)


def test_outputs_come_in_the_files_order_and_numbers_may_be_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "n"], ["r"]), helper.make_node("Neg", ["r"], ["z"])]
    path = written_for_x(tmp_path / "model.onnx", nodes, {}, inputs={"n": (FLOAT, ())}, outputs=["z", "r"])
    (z, r), _ = computed(path, {"x": X, "n": np.array(2.0, np.float32)})
    np.testing.assert_array_equal(r, X * 2)
    np.testing.assert_array_equal(z, -r)


@pytest.fixture(params=["onnxruntime", "reference"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What computes in float32: onnxruntime where it is installed, else ONNX's reference."""
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime")
        return "onnxruntime"
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    return "ONNX's reference"


def test_a_step_that_nothing_else_computes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_model: Any) -> None:
        raise RuntimeError("no implementation")

    path = written_for_x(tmp_path / "model.onnx", [helper.make_node("Relu", ["x"], ["y"])], {})
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(reference, "reference_evaluator", refuse)
    text = plain_steps.compared(autotm.from_onnx(path), tmp_path)
    assert text.startswith("nothing: ONNX's reference")
    assert text.endswith("cannot compute it: no implementation")


@pytest.mark.parametrize("loss", [None, "cross_entropy", "mse"])
def test_a_step_is_compared_with_the_standard(
    loss: str | None, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
        helper.make_node("Clip", ["a", "low"], ["b"], name="clip"),
        helper.make_node("Mul", ["b", "factor"], ["y"], name="last"),
    ]
    kernel = np.random.default_rng(4).standard_normal((3, 6, 2, 2)).astype(np.float32)
    weights = {"w": kernel, "low": np.array(0.5, np.float32), "factor": np.full((4, 3), 0.3, np.float32)}
    path = written_for_x(tmp_path / "model.onnx", nodes, weights)
    text = plain_steps.compared(autotm.from_onnx(path, loss=loss), tmp_path)
    assert text.startswith(source)
    assert "1 results of each of 1 steps are at most" in text
    monkeypatch.setitem(operators.RULES, "Clip", lambda node: relax.op.maximum(node.operands[0], relax.const(0.6)))
    with pytest.raises(DifferentStepError, match=r"than (onnxruntime|ONNX).*: node 'clip' \(Clip\): .* where ONNX"):
        plain_steps.compared(autotm.from_onnx(path, loss=loss), tmp_path)
