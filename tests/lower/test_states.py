"""States and outputs: replaced where they are, whatever they are computed from; steps that are not trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import plain_steps
import pytest
import small_step
from tvm import relax

import autotm
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import Role
from autotm.model.limit import Counts, counting
from autotm.model.training import Sgd, Training
from autotm.zoo import Network

op = relax.op
RATE, SIZE, STEPS = 0.1, 40, 3
TRAINING = Training(Sgd(RATE))
Builder = relax.BlockBuilder
Var = relax.Var
Values = list[relax.Expr]


def const(value: float) -> relax.Constant:
    return relax.const(value, "float32")


def average(b: Builder, old: relax.Expr, value: relax.Expr) -> relax.Var:
    return b.emit(op.add(b.emit(op.multiply(old, const(0.75))), b.emit(op.multiply(value, const(0.25)))))


def loss_of(b: Builder, x: relax.Expr, w: relax.Expr) -> relax.Var:
    """Sum of x * w * w; its slope is 2 x w."""
    return b.emit(op.sum(b.emit(op.multiply(x, b.emit(op.multiply(w, w))))))


def running(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    return [loss_of(b, x, w), average(b, s, x), average(b, t, w)]


def swapped(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    return [loss_of(b, x, w), t, s]


def same(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    new = b.emit(op.add(s, t))
    return [loss_of(b, x, w), new, new]


def crossed(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    return [loss_of(b, x, w), average(b, s, t), average(b, t, s)]


def untouched(b: Builder, x: Var, w: Var, s: Var, _t: Var) -> Values:
    return [loss_of(b, x, w), s, x]


def shifted(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    first = b.emit(op.strided_slice(x, [0], [0], [1]))
    rest = b.emit(op.strided_slice(s, [0], [0], [SIZE - 1]))
    return [loss_of(b, x, w), b.emit(op.concat([first, rest], 0)), b.emit(op.flip(t, 0))]


def read_after(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    """The new value of one is read together with the old one."""
    new = average(b, s, x)
    both = b.emit(op.multiply(b.emit(op.tanh(new)), s))
    return [loss_of(b, b.emit(op.add(x, both)), w), new, average(b, t, new)]


def in_gradient(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    return [loss_of(b, b.emit(op.multiply(x, s)), w), average(b, s, w), average(b, t, b.emit(op.multiply(w, s)))]


def scaled_sum(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    """All elements of the old value are needed for each of the new one."""
    total = b.emit(op.sum(s, keepdims=True))
    return [loss_of(b, x, w), b.emit(op.divide(s, total)), b.emit(op.nn.softmax(t))]


def repeated(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    """Each value is read twice by the next: as one expression it would be read a billion times."""
    doubled = t
    for _ in range(30):
        doubled = b.emit(op.multiply(b.emit(op.add(doubled, doubled)), const(0.5)))
    return [loss_of(b, x, w), s, doubled]


def nested(b: Builder, x: Var, w: Var, s: Var, t: Var) -> Values:
    """Each value is read once by the next, and 24 times by its arithmetic: 191 million times by all of it."""
    bent = t
    for _ in range(6):
        bent = b.emit(op.tanh(b.emit(op.add(bent, const(0.25)))))
    return [loss_of(b, x, w), s, bent]


def bent(value: np.ndarray) -> np.ndarray:
    for _ in range(6):
        value = np.tanh(value + 0.25)
    return value


def mean(old: np.ndarray, value: np.ndarray) -> np.ndarray:
    return 0.75 * old + 0.25 * value


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum()


Next = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
NEW: dict[str, tuple[Callable[..., Values], Next]] = {
    "running": (running, lambda x, w, s, t: (mean(s, x), mean(t, w))),
    "swapped": (swapped, lambda _x, _w, s, t: (t, s)),
    "same": (same, lambda _x, _w, s, t: (s + t, s + t)),
    "crossed": (crossed, lambda _x, _w, s, t: (mean(s, t), mean(t, s))),
    "untouched": (untouched, lambda x, _w, s, _t: (s, x)),
    "shifted": (shifted, lambda x, _w, s, t: (np.concatenate([x[:1], s[:-1]]), t[::-1])),
    "read_after": (read_after, lambda x, _w, s, t: (mean(s, x), mean(t, mean(s, x)))),
    "in_gradient": (in_gradient, lambda _x, w, s, t: (mean(s, w), mean(t, w * s))),
    "repeated": (repeated, lambda _x, _w, s, t: (s, t)),
    "nested": (nested, lambda _x, _w, s, t: (s, bent(t))),
    "scaled_sum": (scaled_sum, lambda _x, _w, s, t: (s / s.sum(), softmax(t))),
}


def factor(kind: str, x: np.ndarray, s: np.ndarray) -> np.ndarray:
    """What w * w is multiplied with in the loss."""
    return {"read_after": x + np.tanh(mean(s, x)) * s, "in_gradient": x * s}.get(kind, x)


def network(kind: str) -> Network:
    size = (SIZE,)
    return plain_steps.network(NEW[kind][0], {"x": size}, {"w": size}, {"s": size, "t": size}, TRAINING)


COPIES = {"running": 0, "crossed": 1, "read_after": 1, "same": 1}
"""Copies of a step; the others may be written in place or not."""


@pytest.mark.parametrize("kind", NEW)
def test_new_states_and_weights_are_those_of_numpy_and_replace_the_old(kind: str, tmp_path) -> None:
    steps = plain_steps.compiled(network(kind), tmp_path).run(STEPS)
    x, w, s, t = (steps.start[name].astype(np.float64) for name in "xwst")
    for after in steps.after:
        scale = factor(kind, x, s)
        expected = {"loss": (scale * w * w).sum()}
        (s, t), w = NEW[kind][1](x, w, s, t), w - RATE * 2 * scale * w
        expected |= {"w": w, "s": s, "t": t, "w.new": w, "s.new": s, "t.new": t}
        for name, value in expected.items():
            np.testing.assert_allclose(after[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
    graph = steps.graph
    for name in ("s", "t"):
        old, new = graph.by_name[name], graph.by_name[f"{name}.new"]
        assert (old.role, old.producer, new.role, new.alias_of) == (Role.STATE, None, Role.RESULT, name)
        assert all(reader <= new.producer for reader in old.readers)
    placed = counting(graph, Counts.ALL)
    assert {"s", "t"} <= {tensor.name for tensor in placed.movable}
    assert "s.new" not in placed.by_name
    copies = sum(kernel.op == "copy" for kernel in graph.kernels)
    assert copies == COPIES.get(kind, copies)


def test_a_counter_of_integers_counts(tmp_path) -> None:
    def counted(b: Builder, x: Var, w: Var, n: Var) -> Values:
        return [loss_of(b, x, w), b.emit(op.add(n, relax.const(1, "int64")))]

    net = plain_steps.network(counted, {"x": (SIZE,)}, {"w": (SIZE,)}, {"n": ()}, TRAINING, {"n": "int64"})
    assert [after["n"] for after in plain_steps.compiled(net, tmp_path).run(3).after] == [1, 2, 3]


def test_faults_of_networks_are_named() -> None:
    shapes = {"x": (SIZE,)}, {"w": (SIZE,)}
    with pytest.raises(BadInputError, match="a scalar float32 loss, then the new value of each of its 0 states"):
        plain_steps.network(lambda b, x, w: b.emit(op.add(x, w)), *shapes, None, TRAINING)
    with pytest.raises(BadInputError, match="and no output before them"):
        plain_steps.network(lambda b, x, w: b.emit(op.add(x, w)), {"x": (SIZE,)}, {}, {"w": (SIZE,)})
    with pytest.raises(BadInputError, match="state 's' is"):
        plain_steps.network(lambda b, x, w, _: [loss_of(b, x, w), x], *shapes, {"s": (2,)}, TRAINING)
    with pytest.raises(BadInputError, match=r"\['loss'\] are names of results"):
        plain_steps.network(loss_of, {"loss": (SIZE,)}, {"w": (SIZE,)}, None, TRAINING)
    with pytest.raises(BadInputError, match="unknown parameter with a rule of its own in network test 'v'"):
        plain_steps.network(loss_of, *shapes, None, Training(Sgd(0.1), {"v": Sgd(0.2)}))


# Steps of networks that are not trained: nothing is differentiated or updated, every output is a result.

FAST = {"step_s": 0.2, "min_repeats": 2, "patience_s": 0.05, "step_tolerance": 1000.0}


def several(b: Builder, x: Var, w: Var, v: Var) -> list[relax.Expr]:
    """Outputs that are views, an argument, one value twice, and a value that other outputs are computed from."""
    hidden = b.emit(op.nn.relu(b.emit(op.matmul(x, w))))
    last = b.emit(op.matmul(hidden, v))
    return [last, hidden, b.emit(op.reshape(hidden, (8, 32))), w, last]


def several_outputs() -> Network:
    return plain_steps.network(several, {"x": (16, 16)}, {"w": (16, 16), "v": (16, 4)})


def test_each_of_several_outputs_has_memory_and_shape_of_its_own(tmp_path) -> None:
    steps = plain_steps.compiled(several_outputs(), tmp_path).run(2)
    roles = {role: {tensor.name for tensor in steps.graph.tensors if tensor.role is role} for role in Role}
    assert (roles[Role.RESULT], roles[Role.PARAMETER]) == ({f"output.{number}" for number in range(5)}, {"w", "v"})
    for name in ("x", "w", "v"):
        np.testing.assert_array_equal(steps.after[-1][name], steps.start[name])
    x, w, v = (steps.start[name].astype(np.float64) for name in "xwv")
    hidden = np.maximum(x @ w, 0)
    for number, value in enumerate([hidden @ v, hidden, hidden.reshape(8, 32), w, hidden @ v]):
        output = steps.after[-1][f"output.{number}"]
        assert output.shape == value.shape
        np.testing.assert_allclose(output, value, rtol=1e-4, atol=1e-5)


def test_a_state_may_be_replaced_too(tmp_path) -> None:
    def summed(b: Builder, x: Var, total: Var) -> list[relax.Expr]:
        return [b.emit(op.nn.relu(x)), b.emit(op.add(total, x))]

    net = plain_steps.network(summed, {"x": (30,)}, {}, {"total": (30,)})
    steps = plain_steps.compiled(net, tmp_path).run(2)
    np.testing.assert_allclose(steps.after[1]["total"], steps.start["total"] + 2 * steps.start["x"], rtol=1e-5)
    np.testing.assert_array_equal(steps.after[1]["output"], np.maximum(steps.start["x"], 0))


def test_it_is_planned_and_run_as_a_training_step_is(results) -> None:
    net = dataclasses.replace(several_outputs(), name="several")
    step = autotm.prepare(net, machine=small_step.machine(), profile=FAST, results=results)
    for optimizer, limit in (("static", "1:1"), ("synchronous", "1:2"), ("numa", "1:1"), ("memory-mode", "1:1")):
        assert step.plan(limit, optimizer).run(min_seconds=0.0, patience_s=0.05, verify_steps=2).verified_steps == 2


def test_what_has_no_kernel_is_named() -> None:
    from autotm.kernels.target import host_target
    from autotm.lower.lowering import scheduled_step

    def without_shift(b: Builder, x: Var, w: Var) -> relax.Expr:
        return b.emit(op.nn.group_norm(x, w, w, 2, 3, [1, 2], center=False))

    net = plain_steps.network(without_shift, {"x": (1, 9, 9, 4)}, {"w": (4,)})
    with pytest.raises(AutotmError, match=r"network test: .*scale and shift only"):
        scheduled_step(net, "test", host_target(2), 2)
