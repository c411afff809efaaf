"""Channels last: the same numbers, and no tensor turned but at the edges."""

from collections import Counter

import numpy as np
import plain_steps
import pytest
from plain_steps import Body
from tvm import relax

from autotm.zoo.imported import Imported, channels_last
from autotm.zoo.network import Network

op, Var = relax.op, relax.Var
SHAPES = {"x": (2, 6, 8, 10)}
WEIGHTS = {"w": (12, 6, 3, 3), "v": (12, 12, 1, 1), "b": (12,), "d": (5, 12)}


def turned(network: Network) -> tuple[Network, Imported]:
    """The network channels last, with zeros for values: only the order of their axes is asked for."""
    main = network.module["main"]
    zeros = {var.name: np.zeros([int(extent) for extent in var.ty.shape], "float32") for var in main.params}
    found = channels_last(
        Imported(
            network.module,
            {name: zeros[name] for name in network.inputs},
            {name: zeros[name] for name in network.parameters},
            {},
        )
    )
    fills = {**network.inputs, **found.inputs, **network.inputs}
    return Network("test", 1, found.module, fills, network.parameters, None), found


def kinds(network: Network) -> Counter[str]:
    """How often each operator is called."""
    blocks = network.module["main"].body.blocks
    calls = [binding.value for block in blocks for binding in block.bindings if isinstance(binding.value, relax.Call)]
    return Counter(call.op.name.removeprefix("relax.") for call in calls)


def residual(b: relax.BlockBuilder, x: Var, w: Var, v: Var, bias: Var, d: Var) -> relax.Expr:
    y = b.emit(op.nn.conv2d(x, w, padding=1))
    y = b.emit(op.add(y, b.emit(op.reshape(bias, (1, 12, 1, 1)))))
    z = b.emit(op.nn.conv2d(b.emit(op.nn.relu(y)), v))
    pooled = b.emit(op.nn.max_pool2d(b.emit(op.add(y, z)), (2, 2), (2, 2)))
    means = b.emit(op.reshape(b.emit(op.mean(pooled, [2, 3], keepdims=True)), (2, 12)))
    return b.emit(op.matmul(means, b.emit(op.permute_dims(d))))


def shuffled(b: relax.BlockBuilder, x: Var, w: Var, v: Var, *_: Var) -> relax.Expr:
    y = b.emit(op.nn.conv2d(x, w, padding=1))
    halves = b.emit(op.split(y, 2, 1))
    left, right = (b.emit(relax.TupleGetItem(halves, index)) for index in range(2))
    y = b.emit(op.concat([b.emit(op.tanh(right)), left], 1))
    groups = b.emit(op.permute_dims(b.emit(op.reshape(y, (2, 3, 4, 8, 10))), [0, 2, 1, 3, 4]))
    y = b.emit(op.nn.conv2d(b.emit(op.reshape(groups, (2, 12, 8, 10))), v))
    scale = b.emit(op.sum(b.emit(op.strided_slice(y, [2, 3], [1, 2], [7, 9])), [2, 3], keepdims=True))
    return b.emit(op.multiply(y, scale))


def normed(b: relax.BlockBuilder, x: Var, w: Var, v: Var, bias: Var, *_: Var) -> relax.Expr:
    y = b.emit(op.permute_dims(b.emit(op.nn.conv2d(x, w, padding=1)), [0, 2, 3, 1]))
    y = b.emit(op.nn.layer_norm(y, bias, bias, axes=[-1]))
    y = b.emit(op.permute_dims(b.emit(op.nn.gelu(y)), [0, 3, 1, 2]))
    y = b.emit(op.nn.softmax(b.emit(op.nn.conv2d(y, v)), axis=1))
    return b.emit(op.nn.pad(y, [0, 0, 1, 2, 0, 0, 3, 0]))


def attention(b: relax.BlockBuilder, x: Var, *_: Var) -> relax.Expr:
    """Three heads of two over 80 places."""
    heads = b.emit(op.reshape(x, (2, 3, 2, 80)))
    query = b.emit(op.permute_dims(heads, [0, 1, 3, 2]))
    scores = b.emit(op.matmul(query, b.emit(op.permute_dims(query, [0, 1, 3, 2]))))
    shares = b.emit(op.nn.softmax(scores, axis=-1))
    found = b.emit(op.matmul(shares, query))
    return b.emit(op.reshape(b.emit(op.permute_dims(found, [0, 2, 1, 3])), (2, 80, 6)))


@pytest.mark.parametrize("body", [pytest.param(residual, marks=pytest.mark.slow), shuffled, normed, attention])
def test_numbers_are_the_same(body: Body, tmp_path, objects) -> None:
    before = plain_steps.network(body, SHAPES, WEIGHTS)
    after, imported = turned(before)
    plain = plain_steps.compiled(before, tmp_path / "before", objects).run(1)

    def given(arrays: plain_steps.Arrays) -> None:
        for name in set(arrays) & {*SHAPES, *WEIGHTS}:
            value = plain.start[name]
            arrays[name][...] = value.transpose(imported.turned[name]) if name in imported.turned else value

    found = plain_steps.compiled(after, tmp_path / "after", objects).run(1, change=given).after[0]["output"]
    np.testing.assert_allclose(found, plain.after[0]["output"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("body", "permutations"), [(residual, 0), (normed, 1), (shuffled, 2)])
def test_little_is_turned(body: Body, permutations: int) -> None:
    """Only what is returned, and a shuffle of channels; inputs and weights are kept as their kernels want them."""
    after, imported = turned(plain_steps.network(body, SHAPES, WEIGHTS))
    assert kinds(after)["permute_dims"] == permutations
    assert imported.turned["x"] == (0, 2, 3, 1)
    assert imported.turned["w"] == (2, 3, 1, 0)


def test_heads_are_read_where_they_lie() -> None:
    after, _ = turned(plain_steps.network(attention, SHAPES, {}))
    assert kinds(after)["einsum"] == 2
    assert kinds(after)["permute_dims"] <= 1


def test_constants_become_arguments_once() -> None:
    table = np.arange(480, dtype="float32").reshape(6, 8, 10)

    def twice(b: relax.BlockBuilder, x: Var) -> relax.Expr:
        y = b.emit(op.add(x, relax.const(table)))
        return b.emit(op.multiply(b.emit(op.add(y, relax.const(table))), relax.const(2.0)))

    _, imported = turned(plain_steps.network(twice, SHAPES, {}))
    (constant,) = (value for name, value in imported.inputs.items() if name.startswith("constant_"))
    np.testing.assert_array_equal(constant, table)
