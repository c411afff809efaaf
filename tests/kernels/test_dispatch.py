"""Every function finds a schedule that computes the same, and its kernel an identity and a place in a library."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tvm
from compiled_kernels import TARGET, call, kernel_of
from tvm import relax, te, tirx, topi

from autotm.kernels import compiler, contractions, windowed
from autotm.kernels.compiler import build_library, identity
from autotm.kernels.contractions import matmul
from autotm.kernels.library import KernelLibrary
from autotm.kernels.schedules import dispatch
from autotm.kernels.schedules.dispatch import schedule
from autotm.model.errors import AutotmError
from autotm.model.graph import SCHEDULES_KEY, OpClass, ScheduleKind, schedules_in


@pytest.fixture(autouse=True)
def no_fallback(caplog):
    """Every function here must get a schedule of its own."""
    yield
    messages = [record.getMessage() for record in caplog.get_records("call")]
    assert not [message for message in messages if message.startswith("no schedule")]


def fused(parameters, body) -> list[tirx.PrimFunc]:
    """The fused TIR functions of a Relax function, given what it computes from a block builder."""
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            output = builder.emit_output(body(builder))
        builder.emit_func_output(output)
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    with TARGET:
        module = tvm.transform.Sequential(passes)(builder.get())
    bindings = module["main"].body.blocks[0].bindings
    calls = [binding.value for binding in bindings if isinstance(binding.value, relax.Call)]
    return [module[call.args[0]].without_attr("global_symbol") for call in calls]


def variable(name, shape):
    return relax.Var(name, relax.TensorType(shape, "float32"))


def test_convolution_bias_relu_is_one_kernel():
    x, w, b = variable("x", (2, 9, 9, 16)), variable("w", (3, 3, 16, 24)), variable("b", (24,))

    def body(builder):
        y = builder.emit_te(contractions.conv2d, x, w, (1, 1), (1, 1, 1, 1))
        return relax.op.nn.relu(builder.emit(relax.op.add(y, b)))

    (function,) = fused([x, w, b], body)
    random = np.random.default_rng(0)
    values = [random.random(shape, "float32") - np.float32(0.5) for shape in ((2, 9, 9, 16), (3, 3, 16, 24), (24,))]
    kernel = schedule(function, TARGET, 2)
    padded = np.pad(values[0].astype("float64"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = sum(padded[:, r : r + 9, s : s + 9] @ values[1][r, s] for r in range(3) for s in range(3))
    np.testing.assert_allclose(call(kernel, values)[0], np.maximum(expected + values[2], 0), rtol=1e-4, atol=1e-5)
    assert kernel.op == "conv2d"
    assert kernel.op_class == OpClass.CONV_FORWARD
    assert kernel.flops == 2 * 2 * 81 * 24 * 9 * 16


@pytest.mark.parametrize("classes", [10, 1000, 1009])
def test_softmax_as_relax_writes_it(classes):
    x = variable("x", (8, classes))
    (function,) = fused([x], lambda _: relax.op.nn.softmax(x))
    values = np.random.default_rng(1).normal(size=(8, classes)).astype("float32") * 5
    kernel = schedule(function, TARGET, 2)
    powers = np.exp(values.astype("float64") - values.max(1, keepdims=True))
    np.testing.assert_allclose(call(kernel, [values])[0], powers / powers.sum(1, keepdims=True), rtol=1e-5)
    assert (kernel.op, kernel.op_class) == ("softmax_chain", OpClass.REDUCTION)


def test_cross_entropy():
    x, y = variable("x", (8, 1000)), variable("y", (8, 1000))

    def body(builder):
        logs = builder.emit(relax.op.nn.log_softmax(x))
        return relax.op.mean(builder.emit(relax.op.multiply(logs, y)))

    random = np.random.default_rng(2)
    values, labels = (random.random((8, 1000), "float32") for _ in range(2))
    result = values
    for function in fused([x, y], body):
        result = call(schedule(function, TARGET, 2), [result, labels][: len(function.params) - 1])[0]
    logs = values - np.log(np.exp(values.astype("float64")).sum(1, keepdims=True))
    np.testing.assert_allclose(result, (logs * labels).mean(), rtol=1e-5)


@pytest.mark.parametrize("axis", [[1, 2], [0], [3], [0, 1, 2, 3]])
def test_mean_over_axes(axis):
    x = variable("x", (4, 8, 8, 70))
    (function,) = fused([x], lambda _: relax.op.mean(x, axis))
    values = np.random.default_rng(3).random((4, 8, 8, 70), "float32")
    kernel = schedule(function, TARGET, 2)
    assert (kernel.op, kernel.op_class) == ("sum", OpClass.REDUCTION)
    (result,) = call(kernel, [values])
    np.testing.assert_allclose(result, values.mean(tuple(axis), dtype="float64"), rtol=1e-5)


def scale(tensor, values, _axis):
    return te.compute(tensor.shape, lambda *i: tensor(*i) * 0.5 + 1.0, name="scale"), values * 0.5 + 1


def exponential(tensor, values, _axis):
    return te.compute(tensor.shape, lambda *i: te.exp(tensor(*i) * -1.0), name="exponential"), np.exp(-values)


def total(tensor, values, axis):
    term = te.reduce_axis((0, int(tensor.shape[axis])), "term")
    shape = [1 if a == axis else extent for a, extent in enumerate(tensor.shape)]

    def body(*i):
        return te.sum(tensor(*i[:axis], term, *i[axis + 1 :]), axis=term)

    return te.compute(shape, body, name="total"), values.sum(axis, keepdims=True)


def share(tensor, values, axis):
    sums, summed = total(tensor, values, axis)
    body = lambda *i: tensor(*i) / sums(*i[:axis], 0, *i[axis + 1 :])  # noqa: E731
    return te.compute(tensor.shape, body, name="share"), values / summed


def pool(tensor, values, _axis):
    height, width = (int(extent) - 1 for extent in tensor.shape[1:3])
    if min(height, width) < 1:
        return tensor, values
    views = [values[:, h : h + height, w : w + width] for h in (0, 1) for w in (0, 1)]
    return windowed.max_pool2d(tensor, (2, 2), (1, 1), (0, 0, 0, 0)), np.max(views, axis=0)


QUICK_SEEDS = (0, 1, 2, 9, 17, 21, 23, 26, 29, 31, 34, 39)
"""In their graphs every step follows each that it follows in any of the 40."""


def cut(tensor, values, axis):
    extent = int(tensor.shape[axis])
    return topi.strided_slice(tensor, [extent // 2], [extent], [1], [axis]), np.split(values, [extent // 2], axis)[1]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in QUICK_SEEDS else pytest.mark.slow) for seed in range(40)]
)
def test_any_graph_gets_a_correct_schedule(seed):
    random = np.random.default_rng(seed)
    shape = tuple(int(extent) for extent in random.choice([1, 2, 3, 5, 8, 16, 19, 64], size=4))
    values = random.random(shape, "float32")
    x = te.placeholder(shape, name="x")
    tensor, expected = scale(x, values.astype("float64"), 0)
    for _ in range(int(random.integers(0, 5))):
        step = random.choice([scale, exponential, total, share, pool, cut])
        tensor, expected = step(tensor, expected, int(random.integers(4)))
    np.testing.assert_allclose(call(kernel_of([x, tensor]), [values])[0], expected, rtol=1e-4, atol=1e-6)


def test_a_function_that_no_rule_can_schedule_still_runs_as_written(monkeypatch, caplog):
    def refuse(*_):
        raise ValueError("no rule")

    monkeypatch.setattr(dispatch, "schedule_blocks", refuse)
    monkeypatch.setitem(dispatch._GENERATED, "matmul", refuse)
    product, doubled = functions()
    with caplog.at_level(logging.WARNING):
        kernels = schedule(product, TARGET, 2), schedule(doubled, TARGET, 2)
    assert caplog.text.count("no rule") == 2
    caplog.clear()
    assert {kernel.kind for kernel in kernels} == {ScheduleKind.AS_WRITTEN}
    values = np.ones((8, 16), "float32")
    np.testing.assert_array_equal(call(kernels[1], [values])[0], 2 * values)


def functions() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """A product of matrices, and a map."""
    x, w = te.placeholder((8, 16), "float32", "x"), te.placeholder((16, 32), "float32", "w")
    doubled = te.compute(x.shape, lambda i, j: x[i, j] * tirx.const(2, "float32"), name="doubled")
    return te.create_prim_func([x, w, matmul(x, w)]), te.create_prim_func([x, doubled])


def named(x_name, block_name, width=50):
    x = te.placeholder((4, width), name=x_name)
    return kernel_of([x, te.compute(x.shape, lambda *i: x(*i) + 1.0, name=block_name)]).func


def test_identity_knows_shapes_and_target_but_no_names():
    assert identity(named("x", "more"), TARGET) == identity(named("y", "add"), TARGET)
    assert identity(named("x", "more"), TARGET) != identity(named("x", "more", 51), TARGET)
    other = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    assert identity(named("x", "more"), TARGET) != identity(named("x", "more"), other)


def test_identity_tells_stride_and_padding_apart():
    x, w = te.placeholder((1, 9, 9, 16)), te.placeholder((3, 3, 16, 16))
    geometries = [((1, 1), (1, 1, 1, 1)), ((1, 1), (0, 2, 2, 0)), ((1, 1), (2, 2, 0, 0))]
    identities = {
        identity(kernel_of([x, w, contractions.conv2d(x, w, *geometry)]).func, TARGET) for geometry in geometries
    }
    assert len(identities) == len(geometries)


def test_library_holds_every_kernel(tmp_path):
    kernels = {f"more{width}": named("x", "more", width) for width in range(1, 40)}
    build_library(kernels, TARGET, tmp_path / "kernels.so")
    library = KernelLibrary.load(tmp_path / "kernels.so")
    for name in kernels:
        library.function(name)
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.so"]


def test_kept_machine_code_is_not_made_again(tmp_path, monkeypatch):
    kernels = {f"more{width}": named("x", "more", width) for width in range(1, 4)}
    build_library(kernels, TARGET, tmp_path / "first.so", tmp_path / "objects")
    compiled = []
    make = compiler.add_object

    def record(folder, missing, *rest):
        compiled.extend(symbol for symbol, _ in missing.values())
        make(folder, missing, *rest)

    monkeypatch.setattr(compiler, "add_object", record)
    build_library(kernels, TARGET, tmp_path / "second.so", tmp_path / "objects")
    assert compiled == []
    KernelLibrary.load(tmp_path / "second.so").function("more2")
    build_library({"more1": named("x", "more", 9)}, TARGET, tmp_path / "third.so", tmp_path / "objects")
    assert compiled == ["more1"], "the same symbol with other code is other code"
    for object_file in (tmp_path / "objects").glob("*.o"):
        object_file.write_bytes(b"cut")
    with pytest.raises(AutotmError, match=r"remove .*objects"):
        build_library(kernels, TARGET, tmp_path / "fourth.so", tmp_path / "objects")


def test_library_without_a_compiler_is_refused_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(AutotmError, match="apt-get install gcc"):
        build_library({"more": named("x", "more")}, TARGET, tmp_path / "kernels.so")
    assert not list(tmp_path.iterdir())


def test_a_failed_link_keeps_the_old_library(tmp_path, monkeypatch):
    path = tmp_path / "kernels.so"
    path.write_text("old")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(AutotmError, match="linking"):
        build_library({"more": named("x", "more")}, TARGET, path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["kernels.so"]


def test_flops_of_a_contraction_count_products_and_sums():
    a, b = te.placeholder((10, 20)), te.placeholder((20, 30))
    kernel = kernel_of([a, b, matmul(a, b)])
    assert (kernel.op, kernel.op_class, kernel.flops) == ("matmul", OpClass.MATMUL, 2 * 10 * 20 * 30)


def test_generated_code_and_general_rules_are_told_apart() -> None:
    assert [schedule(func, TARGET, 2).kind for func in functions()] == [ScheduleKind.GENERATED, ScheduleKind.GENERAL]


def test_files_from_before_name_no_kinds() -> None:
    assert schedules_in({}) == {}
    assert schedules_in({SCHEDULES_KEY: {"f": "as written"}}) == {"f": ScheduleKind.AS_WRITTEN}
