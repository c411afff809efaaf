"""Update rules against formulas of `torch.optim`; updates in groups, early, never before a reader of the old value."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import plain_steps
import pytest
from plain_steps import Arrays, distance
from tvm import relax

from autotm.kernels.target import host_target
from autotm.lower.calls import Call, extract_calls, fused_kernels
from autotm.lower.lowering import scheduled_step
from autotm.lower.results import early_updates
from autotm.lower.step import whole_step
from autotm.lower.update_formulas import TOGETHER
from autotm.model.errors import AutotmError
from autotm.model.graph import OpClass, Operand, Role
from autotm.model.limit import Counts, counting
from autotm.model.training import Adam, AdamW, Sgd, Training
from autotm.zoo import Network
from autotm.zoo.paper import resnet

op = relax.op
STEPS, ROWS = 10, 11
ALLOWED = 3.0
DECAYED = {"bias": AdamW(0.02, weight_decay=0), "scale": Sgd(0.01, momentum=0.5), "other": Sgd(0.02)}

TRAININGS = {
    "sgd": Training(Sgd(0.01)),
    "sgd, decayed": Training(Sgd(0.01, weight_decay=0.1)),
    "momentum": Training(Sgd(0.01, momentum=0.9)),
    "momentum, damped": Training(Sgd(0.01, momentum=0.9, dampening=0.5, weight_decay=0.01)),
    "nesterov": Training(Sgd(0.01, momentum=0.9, weight_decay=0.01, nesterov=True)),
    "adam": Training(Adam(0.05)),
    "adam, decayed": Training(Adam(0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    "adamw": Training(AdamW(0.05, weight_decay=0.1)),
    "adamw, clipped": Training(AdamW(0.05), clip_norm=0.5),
    "sgd, clipped": Training(Sgd(0.5), clip_norm=0.5),
    "clipped at more than the norm": Training(Sgd(0.01), clip_norm=1e4),
    "groups": Training(AdamW(0.05), DECAYED),
    "groups, clipped": Training(Adam(0.05), DECAYED, clip_norm=3.0),
}


def regression(training: Training) -> Network:
    """Least squares: a layer with bias, looked-up rows and a scale without axes, each against targets."""

    def loss(b: relax.BlockBuilder, x: relax.Var, y: relax.Var, at: relax.Var, *parameters: relax.Var) -> relax.Expr:
        weight, bias, other, table, scale = parameters

        def half_squares(residual: relax.Expr) -> relax.Var:
            square = b.emit(op.multiply(residual, residual))
            return b.emit(op.multiply(b.emit(op.sum(square)), relax.const(0.5, "float32")))

        layer = b.emit(op.add(b.emit(op.matmul(x, weight)), b.emit(op.add(bias, other))))
        one = half_squares(b.emit(op.subtract(layer, y)))
        two = half_squares(b.emit(op.subtract(b.emit(op.take(table, at, axis=0)), y)))
        three = half_squares(b.emit(op.subtract(scale, relax.const(3.0, "float32"))))
        return b.emit(op.add(b.emit(op.add(one, two)), three))

    inputs = {"x": (8, 20), "y": (8, 32), "at": (8,)}
    parameters = {"weight": (20, 32), "bias": (32,), "other": (32,), "table": (ROWS, 32), "scale": ()}
    return plain_steps.network(loss, inputs, parameters, None, training, {"at": "int32"})


def gradients(values: Arrays, x: np.ndarray, y: np.ndarray, at: np.ndarray) -> Arrays:
    residual = x @ values["weight"] + values["bias"] + values["other"] - y
    table = np.zeros_like(values["table"])
    np.add.at(table, at, values["table"][at] - y)
    slope = residual.sum(0)
    return {"weight": x.T @ residual, "bias": slope, "other": slope, "table": table, "scale": values["scale"] - 3}


def clipped(slopes: Arrays, most: float | None) -> Arrays:
    if most is None:
        return slopes
    norms = np.array([np.linalg.norm(slope) for slope in slopes.values()])
    share = np.minimum(most / (np.linalg.norm(norms) + norms.dtype.type(1e-6)), 1)
    return {name: slope * share for name, slope in slopes.items()}


def sgd(rule: Sgd, w: np.ndarray, g: np.ndarray, kept: Arrays, _step: int) -> np.ndarray:
    g = g + w.dtype.type(rule.weight_decay) * w
    if rule.momentum:
        before = kept.get("momentum")
        share = w.dtype.type(1 - rule.dampening)
        kept["momentum"] = g if before is None else before * w.dtype.type(rule.momentum) + share * g
        g = g + w.dtype.type(rule.momentum) * kept["momentum"] if rule.nesterov else kept["momentum"]
    return w - w.dtype.type(rule.learning_rate) * g


def adam(rule: Adam | AdamW, w: np.ndarray, g: np.ndarray, kept: Arrays, step: int) -> np.ndarray:
    number = w.dtype.type
    if isinstance(rule, AdamW):
        w = w * number(1 - rule.learning_rate * rule.weight_decay)
    else:
        g = g + number(rule.weight_decay) * w
    zero = np.zeros_like(w)
    first, second = kept.get("first_moment", zero), kept.get("second_moment", zero)
    kept["first_moment"] = first = first + (g - first) * number(1 - rule.betas[0])
    kept["second_moment"] = second = second * number(rule.betas[1]) + g * g * number(1 - rule.betas[1])
    length = number(rule.learning_rate / (1 - rule.betas[0] ** step))
    root = np.sqrt(second) / number(np.sqrt(1 - rule.betas[1] ** step)) + number(rule.eps)
    return w - length * (first / root)


def in_numpy(start: Arrays, training: Training, dtype: type) -> tuple[Arrays, dict[str, Arrays]]:
    """Parameters after all steps, and what the rules keep of each."""
    data = [start["x"].astype(dtype), start["y"].astype(dtype), start["at"]]
    values = {name: start[name].astype(dtype) for name in ("weight", "bias", "other", "table", "scale")}
    kept: dict[str, Arrays] = {name: {} for name in values}
    for step in range(1, STEPS + 1):
        slopes = clipped(gradients(values, *data), training.clip_norm)
        for name, w in values.items():
            rule = training.rule_of(name)
            formula = sgd if isinstance(rule, Sgd) else adam
            values[name] = formula(rule, w, slopes[name], kept[name], step)
    return values, kept


def spread(arrays: Arrays) -> None:
    arrays["at"][...] = [3, 0, 10, 3, 7, 7, 3, 1]


@pytest.fixture(scope="module", params=TRAININGS)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, objects: Path
) -> tuple[str, plain_steps.Compiled]:
    """The name of a training, and the step that trains so."""
    net = regression(TRAININGS[request.param])
    return request.param, plain_steps.compiled(net, tmp_path_factory.mktemp("step"), objects)


def test_weights_and_states_are_as_exact_as_numpys_in_float32(trained: tuple[str, plain_steps.Compiled]) -> None:
    training = TRAININGS[trained[0]]
    steps = trained[1].run(STEPS, change=spread)
    exact, kept = in_numpy(steps.start, training, np.float64)
    rounded, _ = in_numpy(steps.start, training, np.float32)
    after = steps.after[-1]
    assert distance(after, exact) <= ALLOWED * distance(rounded, exact) + 1e-7 * distance(steps.start, exact)
    for parameter, states in kept.items():
        for state, value in states.items():
            np.testing.assert_allclose(after[f"{parameter}.{state}"], value, rtol=1e-4, atol=1e-5, err_msg=parameter)
    counted = any(isinstance(training.rule_of(each), Adam | AdamW) or training.rule.dampening for each in kept)
    assert ("step" in after) == counted
    assert not counted or after["step"] == STEPS
    states = {tensor.name for tensor in steps.graph.tensors if tensor.role is Role.STATE}
    assert states == {f"{each}.{state}" for each in kept for state in kept[each]} | ({"step"} if counted else set())
    assert states <= {tensor.name for tensor in counting(steps.graph, Counts.ALL).movable}


def test_every_update_is_one_kernel_in_place(trained: tuple[str, plain_steps.Compiled]) -> None:
    """The gradient of the matrix joins it, unless it waits for the others; nothing is copied."""
    name, step = trained
    by_name = step.graph.by_name
    makers = {}
    for parameter in ("weight", "bias", "other", "table", "scale"):
        new = [t for t in step.graph.tensors if t.alias_of and t.alias_of.split(".")[0] == parameter]
        assert len({tensor.producer for tensor in new}) == 1
        makers[parameter] = step.graph.kernels[by_name[f"{parameter}.new"].producer]
    is_clipped = TRAININGS[name].clip_norm is not None
    assert makers["weight"].op_class is (OpClass.ELEMENTWISE if is_clipped else OpClass.MATMUL)
    assert makers["bias"] is makers["other"]
    assert "copy" not in {kernel.op for kernel in step.graph.kernels}
    assert (makers["table"].op == "embedding_update") == (name == "sgd")


def test_a_network_with_a_name_that_a_rule_takes_is_refused() -> None:
    def loss(b: relax.BlockBuilder, step: relax.Var, w: relax.Var) -> relax.Expr:
        return b.emit(op.sum(b.emit(op.multiply(step, w))))

    net = plain_steps.network(loss, {"step": (5,)}, {"w": (5,)}, None, Training(Adam(0.1)))
    with pytest.raises(AutotmError, match="network test: 'step' is what its update rules keep"):
        scheduled_step(net, "test", host_target(1), 1)
    assert scheduled_step(dataclasses.replace(net, training=Training(Sgd(0.1))), "test", host_target(1), 1)


def test_what_the_loss_does_not_depend_on_is_left_alone(tmp_path) -> None:
    def loss(
        b: relax.BlockBuilder, x: relax.Var, w: relax.Var, unused: relax.Var, _seen: relax.Var
    ) -> list[relax.Expr]:
        return [b.emit(op.sum(b.emit(op.multiply(x, w)))), b.emit(op.multiply(unused, x))]

    net = plain_steps.network(loss, {"x": (5,)}, {"w": (5,), "unused": (5,)}, {"seen": (5,)}, Training(AdamW(0.1)))
    steps = plain_steps.compiled(net, tmp_path).run(2)
    np.testing.assert_array_equal(steps.after[-1]["unused"], steps.start["unused"])
    assert not {"unused.new", "unused.first_moment"} & set(steps.after[-1])
    assert "w.first_moment" in steps.after[-1]


# Updates: vectors in groups, each by its own gradient; early, and never before a reader of the old parameter.


def test_results_keep_the_order_of_the_parameters():
    network = resnet("small", 2, 32, (1, 1))
    vectors = sum(len(var.ty.shape) == 1 for var in network.module["main"].params)
    calls, returned = extract_calls(fused_kernels(whole_step(network).module, host_target(2)))
    assert len([call for call in calls if "sgd_updates" in call.function]) == -(-vectors // TOGETHER)
    assert len({item.tensor for item in returned}) == 1 + len(network.parameters)
    parameters = {var.name: tuple(int(extent) for extent in var.ty.shape) for var in network.module["main"].params}
    assert [item.shape for item in returned[1:]] == [parameters[name] for name in network.parameters]


def read(function: str, inputs: list[str], output: str) -> Call:
    return Call(function, tuple(Operand(name, (1,), "float32") for name in inputs), (Operand(output, (1,), "float32"),))


STEP = [
    read("forward", ["w", "x"], "y"),
    read("gradient", ["y", "x"], "g"),
    read("data_gradient", ["y", "w"], "dx"),
    read("use", ["dx"], "z"),
    read("more", ["z"], "zz"),
    read("update", ["w", "g"], "w_new"),
]


ROW = [read("f", ["v", "w"], "y"), read("u", ["w", "y"], "w_new"), read("t", ["v", "y"], "v_new")]
RING = [read("f", ["x"], "y"), read("u", ["v", "w"], "v_new"), read("t", ["v", "w"], "w_new")]
BOTH = {"w_new": "w", "v_new": "v"}


@pytest.mark.parametrize(
    ("step", "aliases", "order"),
    [
        pytest.param(
            *(STEP, {"w_new": "w"}, ["forward", "gradient", "data_gradient", "update", "use", "more"]),
            id="an update follows the last reader of its parameter",
        ),
        pytest.param(STEP, {}, [item.function for item in STEP], id="without updates nothing moves"),
        pytest.param(ROW, BOTH, ["f", "u", "t"], id="updates in a row keep their order"),
        pytest.param(RING, BOTH, ["f"], id="what would have to come before itself is left out"),
        pytest.param(RING, {"v_new": "v"}, ["f", "t", "u"], id="one of two that read each other"),
    ],
)
def test_the_order_of_updates(step, aliases, order):
    assert [item.function for item in early_updates(step, aliases)] == order
