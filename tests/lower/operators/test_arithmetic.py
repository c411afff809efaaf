"""Gradients of arithmetic, shapes and pads, against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from central_differences import assert_gradients
from tvm import relax

op = relax.op


def constant(value: float) -> relax.Constant:
    return relax.const(value, "float64")


SMOOTH = {
    "square root of": lambda x: op.power(x, constant(0.5)),
    "square": lambda x: op.power(x, constant(2.0)),
    "cube": lambda x: op.power(x, constant(3.0)),
    "fourth power": lambda x: op.power(x, constant(4.0)),
    "power to": lambda x: op.power(constant(2.0), x),
    "squared": op.square,
    "tangent": lambda x: op.tan(op.multiply(x, constant(0.3))),
    "sinh": op.sinh,
    "cosh": op.cosh,
    "arc sine": lambda x: op.asin(op.multiply(x, constant(0.3))),
    "arc cosine": lambda x: op.acos(op.multiply(x, constant(0.3))),
    "arc tangent": op.atan,
    "arsinh": op.asinh,
    "arcosh": lambda x: op.acosh(op.add(x, constant(1.0))),
    "artanh": lambda x: op.atanh(op.multiply(x, constant(0.3))),
    "selu": lambda x: op.nn.selu(op.subtract(x, constant(1.7))),
    "abs": lambda x: op.abs(op.subtract(x, constant(1.7))),
    "silu": op.nn.silu,
    "log": op.log,
    "remainder": lambda x: op.floor_mod(x, constant(0.75)),
    "whole part": lambda x: op.multiply(x, op.floor_divide(x, constant(0.75))),
    "at least": lambda x: op.maximum(x, constant(1.7)),
    "at most": lambda x: op.minimum(constant(1.7), x),
    "through integers": lambda x: op.multiply(
        x, op.astype(op.add(op.astype(x, "int64"), relax.const(3, "int64")), "float64")
    ),
}
PAIRS = {
    "power": op.power,
    "maximum": op.maximum,
    "minimum": op.minimum,
    "remainder": op.floor_mod,
    "angle": op.atan2,
    "log of sum": op.log_add_exp,
    "choice": lambda x, y: op.where(op.greater(x, constant(1.7)), x, y),
    "choice of a number": lambda x, y: op.multiply(op.where(op.greater(x, constant(1.7)), x, constant(4.0)), y),
}
BOTH_WAYS = ((2, 3, 1), (3, 4))
BROADCAST = [((3, 4), (3, 4)), ((3, 4), (4,)), ((1, 4), (3, 1)), ((4,), (2, 4))]
SHAPES = {
    "broadcast": (lambda x: op.broadcast_to(x, (2, 3, 4)), [(3, 1)]),
    "broadcast to itself": (lambda x: op.broadcast_to(x, (3, 1)), [(3, 1)]),
    "collapsed": (lambda x: op.collapse_sum_to(x, (3, 1)), [(2, 3, 4)]),
    "flattened": (op.flatten, [(2, 3, 4)]),
    "lower triangle": (lambda x: op.tril(x, 1), [(2, 3, 4)]),
    "upper triangle": (lambda x: op.triu(x, -1), [(4, 3)]),
    "shuffled pixels": (lambda x: op.nn.pixel_shuffle(x, 2), [(2, 8, 3, 2)]),
    "grid": (lambda x, y: op.multiply(op.meshgrid([x, y])[0], op.meshgrid([x, y])[1]), [(3,), (4,)]),
    "outer product": (op.outer, [(3,), (4,)]),
    "split": (lambda x: op.multiply(op.split(x, [1, 3], 1)[1], op.split(x, [1, 3], 1)[1]), [(2, 5)]),
    "reflected": (lambda x: op.nn.pad(x, (0, 0, 2, 3, 1, 0), pad_mode="reflect"), [(2, 4, 3)]),
    "replicated": (lambda x: op.nn.pad(x, (0, 0, 2, 5, 1, 0), pad_mode="replicate"), [(2, 4, 3)]),
    "circular": (lambda x: op.nn.pad(x, (0, 0, 2, 3, 1, 0), pad_mode="circular"), [(2, 4, 3)]),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_of_one(name: str) -> None:
    assert_gradients(SMOOTH[name], [np.random.default_rng(0).uniform(0.5, 3, (3, 5))])


@pytest.mark.parametrize(
    ("name", "shapes"), [*((name, BOTH_WAYS) for name in PAIRS), *(("power", shapes) for shapes in BROADCAST)], ids=str
)
def test_of_two(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    generator = np.random.default_rng(0)
    assert_gradients(PAIRS[name], [generator.uniform(0.5, 3, shape) for shape in shapes])


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    operator, shapes = SHAPES[name]
    generator = np.random.default_rng(0)
    assert_gradients(operator, [generator.standard_normal(shape) for shape in shapes])
