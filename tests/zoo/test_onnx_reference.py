"""Nodes of ONNX files that have no kernel here are computed by ONNX's reference; steps are compared with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("torch", reason="the samples are compared beside those of PyTorch: make test-torch installs it")

import plain_steps  # noqa: E402
import small_step  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tvm import relax  # noqa: E402

import autotm  # noqa: E402
import onnx_samples  # noqa: E402
from autotm.kernels.onnx_operators import reference_evaluator  # noqa: E402
from autotm.kernels.target import machine_target  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402
from autotm.model.limit import Counts  # noqa: E402
from autotm.model.paths import MachinePaths  # noqa: E402
from autotm.stages.compare import DifferentStepError, compare_with_source  # noqa: E402
from autotm.stages.context import Context  # noqa: E402
from autotm.zoo import with_values_stored  # noqa: E402
from autotm.zoo.onnx import operators, reference  # noqa: E402

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
X = np.random.default_rng(3).standard_normal((2, 6, 5, 4)).astype(np.float32)


def written(path: Path, nodes: list[Any], weights: dict[str, np.ndarray], **more: Any) -> Path:
    """A file of those nodes with an input x, shaped as `X`, or `inputs`, and an output y, or `outputs`."""
    inputs = {"x": (FLOAT, X.shape), **more.get("inputs", {})}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in more.get("outputs", ["y"])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = helper.make_opsetid("", more.get("opset", 18))
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


def computed(path: Path, values: dict[str, np.ndarray], **options: Any) -> tuple[list[np.ndarray], Any]:
    """Outputs of a plain step, and its graph."""
    network = autotm.from_onnx(path, inputs=values, **options)
    steps = plain_steps.compiled(with_values_stored(network, path.parent), path.parent)
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


def test_a_node_without_a_kernel_runs_as_the_references(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Det", ["z"], ["y"], name="det")]
    path = written(tmp_path / "model.onnx", nodes, {}, inputs={"x": (FLOAT, (2, 4, 4))})
    value = {"x": np.abs(X[0, :2, :4, :4])}
    (y,), graph = computed(path, value)
    np.testing.assert_allclose(y, np.linalg.det(value["x"]), rtol=1e-5)
    assert "onnx_det" in {kernel.op for kernel in graph.kernels}
    with pytest.raises(BadInputError, match=r"node 'det' \(Det\): this operator cannot be imported"):
        autotm.from_onnx(path, kernels="tvm")
    with pytest.raises(BadInputError, match="unknown value of kernels for a file 'torch'"):
        autotm.from_onnx(path, kernels="torch")


def test_training_needs_a_gradient(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node("Det", ["z"], ["y"], name="det")]
    path = written(tmp_path / "model.onnx", nodes, {"w": X[0, 0, :4]}, inputs={"x": (FLOAT, (2, 4, 4))})
    autotm.from_onnx(path)
    with pytest.raises(BadInputError, match=r"node 'det' \(Det\): has no gradient here, and weights lie before it"):
        autotm.from_onnx(path, loss="mse")


def test_numbers_in_float64_stay_within_the_step(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["wide"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["y"], to=FLOAT),
    ]
    (y,), _ = computed(written(tmp_path / "model.onnx", nodes, {}), {"x": X})
    assert y == np.float32(X.astype(np.float64).sum())


@pytest.mark.parametrize("is_first", [True, False], ids=["input", "from an input"])
def test_indices_are_checked(tmp_path: Path, *, is_first: bool) -> None:
    nodes = [
        helper.make_node("Add", ["ids", "one"], ["later"]),
        helper.make_node("Gather", ["w", "ids" if is_first else "later"], ["rows"], name="table"),
        helper.make_node("Add", ["rows", "x"], ["y"]),
    ]
    weights = {"w": X[0, 0], "one": np.array(1)}
    path = written(tmp_path / "model.onnx", nodes, weights, inputs={"ids": (INT, (2,)), "x": (FLOAT, (2, 4))})
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
    path = written(tmp_path / "model.onnx", nodes, {"w": X[0, 0]}, inputs={"x": (FLOAT, (3,))})
    values = {"x": np.array([4.0, -1.0, 2.0], np.float32)}
    (y,), _ = computed(path, values)
    np.testing.assert_array_equal(y, X[0, 0][[4, -1, 2]])
    with pytest.raises(BadInputError, match=r"node 'table' \(Gather\): ONNX refuses what the step computed for it"):
        computed(path, {"x": np.array([4.0, 5.0, 2.0], np.float32)})


@pytest.mark.parametrize("scale", [2.5, 1.3, 0.6, 2.0])
def test_resizing_takes_the_scale_that_is_given(scale: float, tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    path = written(tmp_path / "model.onnx", [node], {"scales": np.array([1, 1, scale, scale], np.float32)})
    np.testing.assert_allclose(computed(path, {"x": X})[0][0], standard(path, {"x": X})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", ["x", "constant"])
def test_an_old_softmax_is_one_of_rows(source: str, tmp_path: Path) -> None:
    node = helper.make_node("Softmax", [source], ["z"], axis=1)
    path = written(
        tmp_path / "model.onnx", [node, helper.make_node("Add", ["x", "z"], ["y"])], {"constant": X}, opset=11
    )
    rows = np.exp(X.reshape(2, -1))
    wanted = X + (rows / rows.sum(1, keepdims=True)).reshape(X.shape)
    np.testing.assert_allclose(computed(path, {"x": X})[0][0], wanted, rtol=1e-5)
    np.testing.assert_allclose(standard(path, {"x": X})[0], wanted, rtol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("opset", "scale"), [(7, 2.0), (9, 2.0), (10, 2.0), (10, 1.5)])
def test_old_resizing_counts_from_corners(mode: str, opset: int, scale: float, tmp_path: Path) -> None:
    scales = np.array([1, 1, scale, scale], np.float32)
    how = {"mode": mode, **({"scales": scales.tolist()} if opset == 7 else {})}
    node = helper.make_node("Resize" if opset == 10 else "Upsample", ["x", *["scales"][: opset != 7]], ["y"], **how)
    path = written(tmp_path / "model.onnx", [node], {"scales": scales}, opset=opset)
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    newer = helper.make_node("Resize", ["x", "", "scales"], ["y"], **how)
    wanted = standard(written(tmp_path / "newer.onnx", [newer], {"scales": scales}, opset=13), {"x": X})[0]
    np.testing.assert_allclose(computed(path, {"x": X})[0][0], wanted, rtol=1e-5, atol=1e-6)


def test_old_slopes_are_those_of_channels(tmp_path: Path) -> None:
    slopes = np.arange(1, 7, dtype=np.float32) / 10
    node = helper.make_node("PRelu", ["x", "slopes"], ["y"])
    path = written(tmp_path / "model.onnx", [node], {"slopes": slopes}, opset=6)
    np.testing.assert_allclose(computed(path, {"x": X})[0][0], np.where(X < 0, X * slopes[:, None, None], X), rtol=1e-6)


def test_outputs_come_in_the_files_order_and_numbers_may_be_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "n"], ["r"]), helper.make_node("Neg", ["r"], ["z"])]
    path = written(tmp_path / "model.onnx", nodes, {}, inputs={"n": (FLOAT, ())}, outputs=["z", "r"])
    (z, r), _ = computed(path, {"x": X, "n": np.array(2.0, np.float32)})
    np.testing.assert_array_equal(r, X * 2)
    np.testing.assert_array_equal(z, -r)


def test_operands_without_elements_are_left_out(tmp_path: Path) -> None:
    node = helper.make_node("Concat", ["x", "none"], ["y"], axis=1)
    path = written(tmp_path / "model.onnx", [node], {"none": np.zeros((2, 0, 5, 4), np.float32)})
    np.testing.assert_array_equal(computed(path, {"x": X})[0][0], X)


def compared(network: Any, folder: Path) -> str:
    machine = small_step.machine()
    context = Context(machine, small_step.DEVICES, 1, Counts.ALL)
    return compare_with_source(context, network, machine_target(machine), MachinePaths(folder, machine))


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

    path = written(tmp_path / "model.onnx", [helper.make_node("Relu", ["x"], ["y"])], {})
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(reference, "reference_evaluator", refuse)
    text = compared(autotm.from_onnx(path), tmp_path)
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
    path = written(tmp_path / "model.onnx", nodes, weights)
    text = compared(autotm.from_onnx(path, loss=loss), tmp_path)
    assert text.startswith(source)
    assert "1 results of each of 1 steps are at most" in text
    monkeypatch.setitem(operators.RULES, "Clip", lambda node: relax.op.maximum(node.operands[0], relax.const(0.6)))
    with pytest.raises(DifferentStepError, match=r"than (onnxruntime|ONNX).*: node 'clip' \(Clip\): .* where ONNX"):
        compared(autotm.from_onnx(path, loss=loss), tmp_path)
