"""Channels last: the same numbers, and no tensor turned but at the edges or where a reshape needs it."""

import itertools
import math
from collections import Counter

import numpy as np
import plain_steps
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_steps import Body
from tvm import relax

from autotm.zoo.imported import Imported, channels_last
from autotm.zoo.layouts import reshaped_order
from autotm.zoo.network import Network

op, Var = relax.op, relax.Var
SHAPES = {"x": (2, 6, 8, 10)}
WEIGHTS = {"w": (12, 6, 3, 3), "v": (12, 12, 1, 1), "b": (12,), "d": (5, 12)}


def turned(network: Network) -> tuple[Network, Imported]:
    """The network channels last, with zeros for values: only the order of their axes is asked for."""
    main = network.module["main"]
    zeros = {var.name: np.zeros([int(extent) for extent in var.ty.shape], "float32") for var in main.params}
    values = ({name: zeros[name] for name in fills} for fills in (network.inputs, network.parameters))
    imported = channels_last(Imported(network.module, *values, {}))
    inputs = {**imported.inputs, **network.inputs}
    return Network("test", 1, imported.module, inputs, network.parameters, None), imported


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
    query = b.emit(op.permute_dims(b.emit(op.reshape(x, (2, 3, 2, 80))), [0, 1, 3, 2]))
    scores = b.emit(op.matmul(query, b.emit(op.permute_dims(query, [0, 1, 3, 2]))))
    shares = b.emit(op.nn.softmax(scores, axis=-1))
    weighted = b.emit(op.matmul(shares, query))
    return b.emit(op.reshape(b.emit(op.permute_dims(weighted, [0, 2, 1, 3])), (2, 80, 6)))


@pytest.mark.parametrize("body", [pytest.param(residual, marks=pytest.mark.slow), shuffled, normed, attention])
def test_numbers_are_the_same(body: Body, tmp_path, objects) -> None:
    before = plain_steps.network(body, SHAPES, WEIGHTS)
    after, imported = turned(before)
    plain = plain_steps.compiled(before, tmp_path / "before", objects).run(1)

    def copy_start(arrays: plain_steps.Arrays) -> None:
        for name in set(arrays) & {*SHAPES, *WEIGHTS}:
            value = plain.start[name]
            arrays[name][...] = value.transpose(imported.turned[name]) if name in imported.turned else value

    output = plain_steps.compiled(after, tmp_path / "after", objects).run(1, change=copy_start).after[0]["output"]
    np.testing.assert_allclose(output, plain.after[0]["output"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("body", "permutations"), [(residual, 0), (normed, 1), (shuffled, 2), (attention, 1)])
def test_little_is_turned(body: Body, permutations: int) -> None:
    """Only what is returned, and a shuffle of channels; inputs and weights are kept as their kernels want them."""
    after, imported = turned(plain_steps.network(body, SHAPES, WEIGHTS))
    assert kinds(after)["permute_dims"] <= permutations
    if body is attention:
        assert kinds(after)["einsum"] == 2, "heads are read where they lie"
    else:
        assert (imported.turned["x"], imported.turned["w"]) == ((0, 2, 3, 1), (2, 3, 1, 0))


def test_constants_become_arguments_once() -> None:
    table = np.arange(480, dtype="float32").reshape(6, 8, 10)

    def twice(b: relax.BlockBuilder, x: Var) -> relax.Expr:
        y = b.emit(op.add(x, relax.const(table)))
        return b.emit(op.multiply(b.emit(op.add(y, relax.const(table))), relax.const(2.0)))

    _, imported = turned(plain_steps.network(twice, SHAPES, {}))
    (constant,) = (value for name, value in imported.inputs.items() if name.startswith("constant_"))
    np.testing.assert_array_equal(constant, table)


# Reshapes of values that lie in another order: the same elements as NumPy puts there.


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shapes of as many elements, split from the same factors, and an order of the first's axes."""
    factors = draw(st.lists(st.sampled_from([2, 3, 5]), min_size=1, max_size=5))
    shapes = []
    for _ in range(2):
        cuts = sorted(draw(st.sets(st.integers(0, len(factors)), max_size=4)) | {0, len(factors)})
        shape = [math.prod(factors[low:high]) for low, high in itertools.pairwise(cuts)]
        for place in draw(st.lists(st.integers(0, len(shape)), max_size=2)):
            shape.insert(place, 1)
        shapes.append(tuple(shape))
    return shapes[0], shapes[1], tuple(draw(st.permutations(range(len(shapes[0])))))


@given(reshapes())
def test_elements_are_where_numpy_puts_them(case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]) -> None:
    old, new, order = case
    value = np.arange(math.prod(old)).reshape(old)
    result, source = reshaped_order(old, new, order)
    assert sorted(source) == list(range(len(old)))
    assert sorted(result) == list(range(len(new)))
    lying = np.ascontiguousarray(value.transpose(source)).reshape([new[axis] for axis in result])
    np.testing.assert_array_equal(lying, value.reshape(new).transpose(result))


def test_nothing_is_turned_without_need() -> None:
    channels_last = (0, 2, 3, 1)
    assert reshaped_order((2, 12, 5, 7), (2, 3, 4, 5, 7), channels_last) == ((0, 3, 4, 1, 2), channels_last)
    assert reshaped_order((2, 12, 1, 1), (2, 12), channels_last) == ((0, 1), channels_last)
    assert reshaped_order((2, 3, 4), (2, 12), (0, 1, 2)) == ((0, 1), (0, 1, 2))
    assert reshaped_order((2, 12, 5, 7), (2, 420), channels_last)[1] == (0, 1, 2, 3)
