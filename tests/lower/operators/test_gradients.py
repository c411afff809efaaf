"""Gradients of single operators against central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

import autotm.lower.operators  # noqa: F401 - registers the gradients
from autotm.lower.operators import LEGALIZE

STEP = 1e-6
Operator = Callable[..., relax.Expr]
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
SHAPES = [(7,), (3, 5), (2, 3, 4), (2, 1, 3, 5)]
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


def differentiated(operator: Operator, shapes: list[tuple[int, ...]]) -> tuple[relax.VirtualMachine, tuple[int, ...]]:
    """A machine with `main`, the operator's result times weights, summed, and its adjoint; the result's shape."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{n}", relax.TensorType(shape, "float64")) for n, shape in enumerate(shapes)]
    with builder.function("main"):
        with builder.dataflow():
            result = builder.emit(operator(*variables))
            weights = relax.Var("weights", relax.TensorType(result.ty.shape, "float64"))
            loss = builder.emit_output(op.sum(builder.emit(op.multiply(result, weights))))
        builder.emit_func_output(loss, [weights, *variables])
    module = relax.transform.Gradient("main", variables)(builder.finalize())
    module = relax.transform.LegalizeOps(LEGALIZE)(module)
    return relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu()), tuple(int(n) for n in result.ty.shape)


def compare(operator: Operator, arrays: list[np.ndarray]) -> None:
    machine, shape = differentiated(operator, [array.shape for array in arrays])
    weights = np.random.default_rng(1).standard_normal(shape)

    def loss(at: list[np.ndarray]) -> float:
        return float(machine["main"](*(tvm.runtime.tensor(array) for array in [weights, *at])).numpy())

    _, gradients = machine["main_adjoint"](*(tvm.runtime.tensor(array) for array in [weights, *arrays]))
    for n, array in enumerate(arrays):
        expected = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * STEP
                ends.append(loss([*arrays[:n], moved, *arrays[n + 1 :]]))
            expected[place] = (ends[0] - ends[1]) / (2 * STEP)
        np.testing.assert_allclose(gradients[n].numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elementwise(name: str, shape: tuple[int, ...]) -> None:
    compare(ELEMENTWISE[name], [np.random.default_rng(0).standard_normal(shape) * 1.5])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_over_a_root(shape: tuple[int, ...]) -> None:
    compare(op.rsqrt, [np.random.default_rng(0).uniform(0.5, 3, shape)])


@pytest.mark.parametrize("name", MOVEMENT)
def test_movement(name: str) -> None:
    operator, shapes = MOVEMENT[name]
    generator = np.random.default_rng(0)
    compare(
        operator,
        [generator.permutation(np.arange(np.prod(shape), dtype=np.float64)).reshape(shape) for shape in shapes],
    )


def test_what_is_equally_large_shares_the_gradient() -> None:
    machine, _ = differentiated(lambda x: op.max(x, 1), [(1, 4)])
    arrays = [np.array([6.0]), np.array([[2.0, 5.0, 5.0, 1.0]])]
    _, (gradient,) = machine["main_adjoint"](*(tvm.runtime.tensor(array) for array in arrays))
    np.testing.assert_array_equal(gradient.numpy(), [[0, 3, 3, 0]])


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (lambda x: op.strided_slice(x, [0], [3], [0], [-1]), "positive strides"),
        (lambda x: op.nn.pad(x, (1, 1), pad_mode="reflect"), "constant"),
        (lambda x: op.repeat(x, 2), "along an axis"),
    ],
)
def test_what_has_no_gradient_says_so(operator: Operator, reason: str) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        differentiated(operator, [(4,)])
