"""Groups of operators: what decisions ask for, what is refused and why, and that every grouping computes the same."""

from __future__ import annotations

import functools
import random
from collections import Counter

import pytest
import small_step
import tvm_ffi
from tvm import relax

from autotm.fusion.dataflow import CircleError, Dataflow, Grouping, Live
from autotm.fusion.decisions import executed, path_of, path_text, resolve
from autotm.fusion.variants import Workbench, WrongResultError
from autotm.kernels.schedules.dispatch import has_schedule
from autotm.kernels.target import host_target
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.step import whole_step
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.fusion import Changed, Decision, Reason
from autotm.model.graph import Initial
from autotm.runtime.step_times import RunOptions
from autotm.zoo import Network
from autotm.zoo.builder import NetworkBuilder

APPLY, INLINE, RECOMPUTE = Decision
TARGET = host_target(1)


def mlp(layers=2, width=32):
    net = NetworkBuilder("mlp", 8, 0.01)
    x = net.input("data", (8, width), Initial("normal"))
    for _ in range(layers):
        x = net.dense(x, width)
    return net.softmax_cross_entropy(net.dense(x, 4, relu=False))


def flow_of(network):
    return Dataflow(whole_step(network).module, TARGET)


def chain(*operators):
    """The dataflow of a chain of operators on a vector."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for operator in operators:
                value = builder.emit(operator(value))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return flow_of(Network("chain", 64, builder.finalize(), {"x": Initial("normal")}, {}, None))


def names(flow, groups):
    return {"+".join(flow.nodes[place].name for place in group) for group in groups}


def always(_):
    return True


def test_the_default_groups_are_the_kernels_that_tvm_makes():
    step = whole_step(mlp())
    flow = Dataflow(step.module, TARGET)
    ours, theirs = flow.fused(flow.default), fused_kernels(step.module, TARGET)

    def kernels(module):
        functions = [module[call.function] for call in extract_calls(module)[0]]
        plain = [func.without_attr("global_symbol").without_attr("autotm.operator") for func in functions]
        return [tvm_ffi.structural_hash(func.without_attr("op_pattern"), map_free_vars=True) for func in plain]

    assert kernels(ours) == kernels(theirs)


def test_decisions_are_read_back_from_groups():
    flow = flow_of(mlp())
    resolved = resolve(flow, executed(flow, flow.default), always)
    assert {*resolved.grouping.groups} == {*flow.default.groups}
    assert not resolved.changed


def test_an_inlined_operator_reveals_what_it_reads_and_a_copy_is_nobody_elses():
    flow = chain(relax.op.exp, relax.op.sin, relax.op.cos)
    exp, sine, cosine = (flow.nodes[place].name for place in flow.operators)
    paths = {f"{cosine}/{sine}": RECOMPUTE, f"{cosine}/{sine}/{exp}": APPLY}
    resolved = resolve(flow, {path_of(flow, text): own for text, own in paths.items()}, always)
    assert names(flow, (group.nodes for group in flow.live(resolved.grouping).values())) == {exp, f"{sine}+{cosine}"}
    found = executed(flow, resolved.grouping)
    assert {path_text(flow, path): own for path, own in found.items()} == {**paths, f"{sine}/{exp}": APPLY}


def changed(flow, paths, has_schedule=always):
    requested = {path_of(flow, text): own for text, own in paths.items()}
    found = resolve(flow, requested, has_schedule).changed
    return {path_text(flow, path): change for path, change in found.items()}


def diamond():
    """Exp, its cosine, and the sum of both."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.exp(x))
            middle = builder.emit(relax.op.cos(first))
            result = builder.emit_output(relax.op.add(first, middle))
        builder.emit_func_output(result)
    return flow_of(Network("diamond", 64, builder.finalize(), {"x": Initial("normal")}, {}, None))


def test_what_would_close_a_circle_is_applied():
    flow = diamond()
    first, middle, last = (flow.nodes[place].name for place in flow.operators)
    assert changed(flow, {f"{last}/{first}": INLINE}) == {f"{last}/{first}": Changed(APPLY, Reason.CIRCLE)}
    assert changed(flow, {f"{last}/{first}": RECOMPUTE}) == {}
    inside = {f"{last}/{middle}": INLINE, f"{last}/{middle}/{first}": INLINE}
    assert changed(flow, inside) == {f"{last}/{first}": Changed(INLINE, Reason.INSIDE)}
    with pytest.raises(CircleError, match="reads values that are computed from its own"):
        flow.order(Grouping.of([[0, 2], *([place] for place in range(len(flow.nodes)) if place not in {0, 2})]))


def test_what_a_copy_reads_is_copied_and_what_is_not_reached_is_told():
    flow = chain(relax.op.exp, relax.op.sin, relax.op.cos)
    exp, sine, cosine = (flow.nodes[place].name for place in flow.operators)
    copied = {f"{cosine}/{sine}": RECOMPUTE, f"{cosine}/{sine}/{exp}": INLINE}
    assert changed(flow, copied) == {f"{cosine}/{sine}/{exp}": Changed(RECOMPUTE, Reason.COPIED)}
    hidden = {f"{cosine}/{sine}/{exp}": INLINE}
    assert changed(flow, hidden) == {f"{cosine}/{sine}/{exp}": Changed(None, Reason.HIDDEN)}


def test_a_value_that_is_compared_for_equality_is_computed_once():
    net = NetworkBuilder("pooled", 2, 0.01)
    x = net.relu(net.conv(net.input("image", (2, 8, 8, 4), Initial("normal")), 4, 3, padding=1))
    flow = flow_of(net.softmax_cross_entropy(net.dense(net.flatten(net.max_pool(x, 2, 2)), 4, relu=False)))
    pool = next(place for place in flow.operators if flow.nodes[place].name.startswith("max_pool2d."))
    pooled = path_text(flow, (pool, flow.nodes[pool].reads[0]))
    assert changed(flow, {pooled: RECOMPUTE}) == {pooled: Changed(APPLY, Reason.COMPARED)}


def test_groups_without_a_schedule_fall_into_those_of_tvm():
    flow = chain(relax.op.exp, relax.op.sin, relax.op.cos)
    exp, sine, cosine = (flow.nodes[place].name for place in flow.operators)
    paths = {f"{cosine}/{sine}": INLINE, f"{cosine}/{sine}/{exp}": INLINE}
    assert changed(flow, paths, lambda _: False) == {}  # All three are one group of TVM's.
    alone = {f"{cosine}/{sine}": RECOMPUTE}
    assert changed(flow, alone, lambda group: len(group.nodes) == 1) == {}


def test_a_chain_that_would_double_at_each_operator_is_no_single_kernel():
    flow = chain(*[lambda x: relax.op.multiply(x, x)] * 6)
    assert flow.expands(flow.operators)  # 64 loads, where the six have 12.
    assert not flow.expands(flow.operators[:5])


def test_elementary_functions_one_upon_the_other_are_no_single_kernel():
    flow = chain(*[relax.op.tanh] * 5)
    assert flow.expands(flow.operators)  # 17 million loads, though each reads its operand once.
    assert not flow.expands(flow.operators[:4])


# Rules for one kernel refuse functions in which there is more than they know.


def live(flow, *operators, results):
    return Live(*(tuple(flow.by_name[name] for name in several) for several in (operators, results)))


def test_a_product_whose_operand_is_a_result_of_the_same_function_has_no_schedule():
    flow = flow_of(mlp())
    relu, product = "relu.2", "matmul.3"
    inner = flow.primitive(live(flow, relu, product, results=[relu, product]))
    assert not has_schedule(inner, TARGET, 1)
    assert has_schedule(flow.primitive(live(flow, product, "add.4", results=["add.4"])), TARGET, 1)


def test_a_gradient_of_log_softmax_with_something_behind_it_has_no_schedule():
    flow = flow_of(mlp())
    (slope,) = (name for name in flow.by_name if name.startswith("log_softmax_gradient."))
    behind = next(
        flow.nodes[place].name
        for place in flow.readers[flow.by_name[slope]]
        if flow.nodes[place].name.startswith("bias_gradient.")
    )
    assert not has_schedule(flow.primitive(live(flow, slope, behind, results=[behind])), TARGET, 1)


# Everything computes the same.


OPTIONS = RunOptions(min_steps=1, min_seconds=0, patience_s=0)
LAYERS = ("dense", "layer_norm", "softmax", "relu", "tanh", "scale", "add")
IMAGE_LAYERS = ("conv", "batch_norm", "max_pool", "relu", "tanh", "scale", "add")


ADDED = {
    "dense": lambda net, x, _: net.dense(x, 16),
    "conv": lambda net, x, _: net.conv(x, 4, 3, padding=1),
    "max_pool": lambda net, x, _: net.max_pool(x, 3, 1, 1),
    "tanh": lambda net, x, _: net.emit(relax.op.tanh(x)),
    "scale": lambda net, x, _: net.scale(x, 0.7),
    "add": lambda net, x, other: net.add(x, other),
    "relu": lambda net, x, _: net.relu(x),
    "softmax": lambda net, x, _: net.softmax(x),
    "layer_norm": lambda net, x, _: net.layer_norm(x),
    "batch_norm": lambda net, x, _: net.batch_norm(x),
}


def random_network(draw):
    """Layers on values of one shape, rows or images, each on the last value."""
    net = NetworkBuilder("random", 4, 0.01)
    is_image = draw.random() < 0.5
    values = [net.input("x", (4, 6, 6, 4) if is_image else (4, 16), Initial("normal"))]
    for _ in range(draw.randint(2, 7)):
        kind = draw.choice(IMAGE_LAYERS if is_image else LAYERS)
        values.append(ADDED[kind](net, values[-1], draw.choice(values)))
    flat = net.flatten(values[-1]) if is_image else values[-1]
    return net.softmax_cross_entropy(net.dense(flat, 4, relu=False))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    objects = tmp_path_factory.mktemp("objects")
    machine = small_step.machine(threads=1)
    return functools.partial(Workbench, scale="tiny", machine=machine, devices_dir=small_step.DEVICES, objects=objects)


# Found so: operands that the same function computes, and blocks that a rule drops (odd numbers recompute, too).
@pytest.mark.parametrize("seed", [*range(6), 9, 17, 19, 23])
def test_any_grouping_computes_what_the_default_does(bench, seed):
    draw = random.Random(seed)
    variants = bench(random_network(draw))
    kinds = [*Decision] if seed % 2 else [APPLY, INLINE]
    resolved = variants.resolved(lambda *_: draw.choice(kinds))
    (times,) = variants.compared([variants.compiled(resolved.grouping)], OPTIONS)
    assert times.difference <= 1
    again = variants.resolved(executed(variants.dataflow, resolved.grouping))
    assert Counter(again.grouping.groups) == Counter(resolved.grouping.groups)
    groups = variants.dataflow.live(resolved.grouping).values()
    assert all(variants.has_schedule(group) for group in groups if len(group.nodes) > 1)


def test_what_computes_something_else_is_found(bench):
    def network(activation):
        net = NetworkBuilder("random", 4, 0.01)
        x = net.dense(net.input("x", (4, 16), Initial("normal")), 16, relu=False)
        return net.softmax_cross_entropy(net.dense(net.emit(activation(x)), 4, relu=False))

    variants, other = bench(network(relax.op.tanh)), bench(network(relax.op.sigmoid))
    compiled = [variants.default, other.compiled(other.dataflow.default), variants.default]
    right, wrong, again = variants.compared(compiled, OPTIONS)
    assert isinstance(wrong, WrongResultError)
    assert "times what is allowed" in str(wrong)
    assert right.difference == again.difference == 0


@pytest.mark.parametrize("is_own", [True, False])
def test_nan_is_no_result(bench, is_own):
    def network(activation):
        net = NetworkBuilder("random", 4, 0.01)
        x = net.emit(activation(net.dense(net.input("x", (4, 16), Initial("normal")), 16, relu=False)))
        return net.softmax_cross_entropy(net.dense(x, 4, relu=False))

    right, wrong = bench(network(relax.op.tanh)), bench(network(relax.op.sqrt))
    own, default = (wrong, right) if is_own else (right, wrong)
    compiled = [own.compiled(own.dataflow.default)]
    if is_own:
        (outcome,) = default.compared(compiled, OPTIONS)
        assert "by inf times what is allowed" in str(outcome)
    else:
        with pytest.raises(AutotmError, match="is not finite after a step"):
            default.compared(compiled, OPTIONS)


# Files.


def test_paths_name_operators_that_read_one_another():
    flow = flow_of(mlp())
    with pytest.raises(BadInputError, match=r"unknown operator 'rleu\.2'; did you mean 'relu\.2'"):
        path_of(flow, "matmul.3/rleu.2")
    with pytest.raises(
        BadInputError, match=r"matmul\.3 does not read add\.1; of this step's operators it reads relu.2"
    ):
        path_of(flow, "matmul.3/add.1")
    with pytest.raises(BadInputError, match="needs two operators or more"):
        path_of(flow, "matmul.3")
