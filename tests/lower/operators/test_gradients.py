"""Gradients of single operators against central differences, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from central_differences import Operator, assert_gradients, differentiated
from tvm import relax

op = relax.op

ELEMENTWISE = {
    "gelu": op.nn.gelu,
    "gelu_tanh": op.nn.gelu_tanh,
    "erf": op.erf,
    "leakyrelu": lambda x: op.nn.leakyrelu(x, 0.2),
    "clip": lambda x: op.clip(x, -1, 0.5),
    "floor": op.floor,
    "round": op.round,
}
SHAPE = (2, 1, 3, 5)
MOVEMENT = {
    "squeeze": (op.squeeze, [(3, 1, 4, 1)]),
    "squeeze one axis": (lambda x: op.squeeze(x, [1]), [(3, 1, 4, 1)]),
    "slice": (lambda x: op.strided_slice(x, [1], [2], [5]), [(3, 7, 2)]),
    "slice with a stride": (lambda x: op.strided_slice(x, [0, 2], [1, 0], [8, 5], [3, 2]), [(8, 2, 5)]),
    "slice from the end": (lambda x: op.strided_slice(x, [-1], [-3], [9]), [(2, 7)]),
    "flip": (lambda x: op.flip(x, 1), [(3, 4)]),
    "stack": (lambda x, y: op.stack([x, y], 1), [(3, 4), (3, 4)]),
    "stack last": (lambda x, y, z: op.stack([x, y, z], -1), [(3,), (3,), (3,)]),
    "pad": (lambda x: op.nn.pad(x, (1, 2, 0, 3)), [(3, 4)]),
    "repeat": (lambda x: op.repeat(x, 3, 1), [(2, 4, 2)]),
    "tile": (lambda x: op.tile(x, (2, 3)), [(4, 2)]),
    "tile fewer axes": (lambda x: op.tile(x, (2,)), [(3, 4)]),
    "tile more axes": (lambda x: op.tile(x, (2, 1, 3)), [(4, 2)]),
    "max": (lambda x: op.max(x, 1), [(3, 5, 2)]),
    "max of all": (op.max, [(3, 5)]),
    "min, axis kept": (lambda x: op.min(x, [0, 2], keepdims=True), [(3, 5, 2)]),
}


RMS_NORM = [((3, 2, 5), (-1,), 1e-5), ((3, 2, 5), (-2, -1), 0.1)]
OTHERS = {
    "prelu": (lambda x, a: op.nn.prelu(x, a, 1), [(2, 4, 3), (4,)]),
    "adaptive pool": (lambda x: op.nn.adaptive_avg_pool2d(x, (2, 3)), [(1, 2, 4, 6)]),
    "adaptive pool, uneven": (lambda x: op.nn.adaptive_avg_pool2d(x, (3, 2), layout="NHWC"), [(2, 7, 5, 2)]),
    "adaptive pool, all": (lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC"), [(2, 3, 5, 2)]),
    "adaptive pool, larger": (lambda x: op.nn.adaptive_avg_pool2d(x, (5, 5)), [(1, 2, 3, 2)]),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str) -> None:
    assert_gradients(ELEMENTWISE[name], [np.random.default_rng(0).standard_normal(SHAPE) * 1.5])


def test_one_over_a_root() -> None:
    assert_gradients(op.rsqrt, [np.random.default_rng(0).uniform(0.5, 3, SHAPE)])


@pytest.mark.parametrize("name", MOVEMENT)
def test_movement(name: str) -> None:
    operator, shapes = MOVEMENT[name]
    generator = np.random.default_rng(0)
    assert_gradients(
        operator,
        [generator.permutation(np.arange(np.prod(shape), dtype=np.float64)).reshape(shape) for shape in shapes],
    )


@pytest.mark.parametrize(("shape", "axes", "epsilon"), RMS_NORM)
def test_rms_norm(shape: tuple[int, ...], axes: tuple[int, ...], epsilon: float) -> None:
    def exact(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axes, keepdims=True) + epsilon) * weight

    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape), generator.standard_normal([shape[axis] for axis in axes])]
    assert_gradients(lambda x, weight: op.nn.rms_norm(x, weight, list(axes), epsilon), arrays, exact)


@pytest.mark.parametrize(
    ("shape", "groups", "channel", "spatial"),
    [((2, 6, 3, 2), 2, 1, [2, 3]), ((2, 3, 2, 6), 3, 3, [1, 2]), ((1, 4, 5), 4, 1, [2]), ((2, 4, 3), 1, 1, [2])],
)
def test_group_norm(shape: tuple[int, ...], groups: int, channel: int, spatial: list[int]) -> None:
    def exact(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        front = np.moveaxis(x, channel, 1)
        apart = front.reshape(len(x), groups, -1)
        normed = (apart - apart.mean(2, keepdims=True)) / np.sqrt(apart.var(2, keepdims=True) + 1e-5)
        along = (-1, *(1,) * (x.ndim - 2))
        return np.moveaxis(normed.reshape(front.shape) * gamma.reshape(along) + beta.reshape(along), 1, channel)

    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape), *generator.standard_normal((2, shape[channel]))]
    assert_gradients(lambda x, gamma, beta: op.nn.group_norm(x, gamma, beta, groups, channel, spatial), arrays, exact)


@pytest.mark.parametrize("name", OTHERS)
def test_others(name: str) -> None:
    operator, shapes = OTHERS[name]
    generator = np.random.default_rng(0)
    assert_gradients(operator, [generator.standard_normal(shape) for shape in shapes])


def indices(values: object) -> relax.Constant:
    return relax.const(np.array(values), "int64")


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (lambda x: op.gather_elements(x, indices([[0, 2], [2, 2]]), 1), [(2, 4)]),
        (lambda x: op.gather_elements(x, indices([[3, 0, 3]]), 0), [(4, 5)]),
        (lambda x: op.index_tensor(x, (indices([2, 0, 2]),)), [(3, 4)]),
        (lambda x: op.index_tensor(x, (indices([[1], [2]]), indices([0, 3, -1]))), [(3, 4, 2)]),
    ],
)
def test_places_that_are_read_or_written_by_index(operator: Operator, shapes: list[tuple[int, ...]]) -> None:
    generator = np.random.default_rng(0)
    assert_gradients(operator, [generator.standard_normal(shape) for shape in shapes])


def test_what_is_equally_large_shares_the_gradient() -> None:
    machine, _ = differentiated(lambda x: op.max(x, 1), [(1, 4)])
    arrays = [np.array([6.0]), np.array([[2.0, 5.0, 5.0, 1.0]])]
    _, (gradient,) = machine["main_adjoint"](*(tvm.runtime.tensor(array) for array in arrays))
    np.testing.assert_array_equal(gradient.numpy(), [[0, 3, 3, 0]])


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (lambda x: op.strided_slice(x, [0], [3], [0], [-1]), "positive strides"),
        (lambda x: op.repeat(x, 2), "along an axis"),
        (lambda x: op.nn.rms_norm(op.reshape(op.concat([x] * 4, 0), (4, 4)), x, 0), "last axes"),
    ],
)
def test_what_has_no_gradient_says_so(operator: Operator, reason: str) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        differentiated(operator, [(4,)])
