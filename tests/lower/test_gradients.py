"""Gradients of single operators against central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from central_differences import Operator, assert_gradients, differentiated
from tvm import relax

op, nn = relax.op, relax.op.nn
Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], np.ndarray]


def constant(value: float) -> relax.Constant:
    return relax.const(value, "float64")


def indices(values: object, dtype: str = "int64") -> relax.Constant:
    return relax.const(np.array(values), dtype)


# Operators of one tensor, element by element.

ELEMENTWISE = {
    "gelu": op.nn.gelu,
    "gelu_tanh": op.nn.gelu_tanh,
    "erf": op.erf,
    "leakyrelu": lambda x: op.nn.leakyrelu(x, 0.2),
    "clip": lambda x: op.clip(x, -1, 0.5),
    "floor": op.floor,
    "round": op.round,
}
POSITIVE = {
    "rsqrt": op.rsqrt,
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
# Operators of two tensors that are broadcast.

PAIRS = {
    "power": op.power,
    "maximum": op.maximum,
    "minimum": op.minimum,
    "remainder": op.floor_mod,
    "choice": lambda x, y: op.where(op.greater(x, constant(1.7)), x, y),
    "choice of a number": lambda x, y: op.multiply(op.where(op.greater(x, constant(1.7)), x, constant(4.0)), y),
}
BROADCAST = [((3, 4), (3, 4)), ((3, 4), (4,)), ((1, 4), (3, 1)), ((4,), (2, 4))]

# Operators that move values, reduce them, read and write at places, or slide windows.

MOVEMENT = {
    "broadcast": (lambda x: op.broadcast_to(x, (2, 3, 4)), [(3, 1)]),
    "broadcast to itself": (lambda x: op.broadcast_to(x, (3, 1)), [(3, 1)]),
    "collapsed": (lambda x: op.collapse_sum_to(x, (3, 1)), [(2, 3, 4)]),
    "flattened": (op.flatten, [(2, 3, 4)]),
    "lower triangle": (lambda x: op.tril(x, 1), [(2, 3, 4)]),
    "upper triangle": (lambda x: op.triu(x, -1), [(4, 3)]),
    "split": (lambda x: op.multiply(op.split(x, [1, 3], 1)[1], op.split(x, [1, 3], 1)[1]), [(2, 5)]),
    "reflected": (lambda x: op.nn.pad(x, (0, 0, 2, 3, 1, 0), pad_mode="reflect"), [(2, 4, 3)]),
    "replicated": (lambda x: op.nn.pad(x, (0, 0, 2, 5, 1, 0), pad_mode="replicate"), [(2, 4, 3)]),
    "circular": (lambda x: op.nn.pad(x, (0, 0, 2, 3, 1, 0), pad_mode="circular"), [(2, 4, 3)]),
}  # fmt: skip
PLACES = {
    "take of axis 1": (lambda x: op.take(x, indices([2, 0, 2, 1]), 1), [(3, 4, 2)]),
    "take of the last axis": (lambda x: op.take(x, indices([3, 3], "int32"), -1), [(2, 4)]),
    "take by a matrix": (lambda x: op.take(x, indices([[0, 2], [1, 1]]), 1), [(3, 4, 2)]),
    "take of one": (lambda x: op.take(x, relax.const(2, "int64"), 1), [(3, 4, 2)]),
    "take from everything": (lambda x: op.take(x, indices([5, 1, 5])), [(12,)]),
    "lookup": (lambda x: op.take(x, indices([[0, 2], [1, 1]]), 0), [(3, 4)]),
    "many gathered": (lambda x: op.gather_elements(x, indices([[0, 2, 1, 1, 0, 2]] * 2), 1), [(2, 4)]),
    "few gathered rows": (lambda x: op.gather_elements(x, indices([[3, 0, 3]]), 0), [(4, 5)]),
    "two indices": (lambda x: op.index_tensor(x, (indices([[0], [2]]), indices([1, 1, -1]))), [(3, 4, 2)]),
    "no axis": (lambda x: op.index_tensor(x, (indices(1), indices([0, 3]))), [(3, 4)]),
    "gathered points": (lambda x: op.gather_nd(x, indices([[0, 1], [2, 2], [0, 1]])), [(3, 4, 2)]),
    "scattered": (lambda x, y: op.scatter_elements(x, indices([[0, 2], [1, 0]]), y, 1), [(2, 4), (2, 2)]),
    "scattered and added": (
        lambda x, y: op.scatter_elements(x, indices([[0, 0], [1, 0]]), y, 1, "add"), [(2, 4), (2, 2)],
    ),
    "scattered points": (lambda x, y: op.scatter_nd(x, indices([[0, 1], [2, 2]]), y), [(3, 4), (2,)]),
}  # fmt: skip
SUMS = {
    "prelu": (lambda x, a: op.nn.prelu(x, a, 1), [(2, 4, 3), (4,)]),
    "running sum": (lambda x: op.cumsum(x, 1), [(3, 5, 2)]),
    "running sum without itself": (lambda x: op.cumsum(x, -1, exclusive=True), [(3, 5)]),
    "running sum of everything": (op.cumsum, [(3, 4)]),
    "product": (lambda x: op.prod(x, 1), [(3, 4)]),
    "root mean square of two axes": (lambda x, w: nn.rms_norm(x, w, [-2, -1], 0.1), [(3, 2, 5), (2, 5)]),
    "norms of groups": (lambda x, a, b: nn.group_norm(x, a, b, 2, 1, [2, 3]), [(2, 6, 3, 2), (6,), (6,)]),
    "norms of groups of the last axis": (
        lambda x, a, b: nn.group_norm(x, a, b, 3, 3, [1, 2]), [(2, 3, 2, 6), (6,), (6,)],
    ),
    "norms of single channels": (lambda x, a, b: nn.group_norm(x, a, b, 4, 1, [2]), [(1, 4, 5), (4,), (4,)]),
    "variance": (lambda x: op.variance(x, [1], keepdims=True), [(3, 4, 2)]),
}  # fmt: skip
CONVOLUTIONS = {
    "lines, grouped and dilated": (lambda x, w: nn.conv1d(x, w, 1, (2, 1), 2, 2, "NWC", "WIO"), [(1, 8, 4), (3, 2, 6)]),
    "images in NCHW": (lambda x, w: nn.conv2d(x, w, 2, 1), [(1, 2, 5, 6), (3, 2, 3, 3)]),
    "dilated": (lambda x, w: nn.conv2d(x, w, 1, (2, 1, 0, 3), (2, 3), 1, "NHWC", "HWIO"), [(2, 7, 6, 2), (3, 2, 2, 3)]),
    "dilated with a stride": (
        lambda x, w: nn.conv2d(x, w, (2, 3), 2, (2, 1), 2, "NHWC", "HWIO"), [(1, 7, 6, 2), (3, 2, 1, 4)],
    ),
    "dilated, each channel by itself": (
        lambda x, w: nn.conv2d(x, w, 1, 2, 2, 3, "NHWC", "HWIO"), [(1, 6, 5, 3), (3, 3, 1, 3)],
    ),
    "transposed, grouped": (
        lambda x, w: nn.conv2d_transpose(x, w, (2, 1), (0, 1, 1, 0), 0, 1, 2), [(1, 4, 3, 3), (4, 3, 2, 3)],
    ),
    "transposed and dilated": (
        lambda x, w: nn.conv2d_transpose(x, w, 1, 1, 0, 2, 1, "NHWC", "HWOI"), [(1, 3, 4, 2), (2, 3, 3, 2)],
    ),
    "transposed lines": (lambda x, w: nn.conv1d_transpose(x, w, 2, 1, 1), [(2, 3, 4), (3, 2, 3)]),
    "volumes, grouped and dilated": (
        lambda x, w: nn.conv3d(x, w, 1, (1, 0, 1, 0, 1, 1), (2, 1, 2), 2, "NDHWC", "DHWIO"),
        [(1, 5, 3, 4, 4), (2, 2, 2, 2, 2)],
    ),
}  # fmt: skip
POOLS = {
    "largest in NCHW": (lambda x: nn.max_pool2d(x, 3, 2, 1), [(1, 2, 5, 6)]),
    "largest, to the end": (lambda x: nn.max_pool2d(x, 3, 2, 0, 1, True, layout="NHWC"), [(1, 6, 5, 2)]),
    "largest, dilated": (lambda x: nn.max_pool2d(x, (2, 3), (1, 2), (1, 2), (3, 2), layout="NHWC"), [(2, 7, 8, 1)]),
    "largest of lines": (lambda x: nn.max_pool1d(x, 3, 2, 1), [(2, 3, 8)]),
    "mean, padding counted": (
        lambda x: nn.avg_pool2d(x, 3, 2, 1, layout="NHWC", count_include_pad=True), [(1, 5, 6, 2)],
    ),
    "mean, to the end, padding counted": (
        lambda x: nn.avg_pool2d(x, 3, 2, 1, 1, True, layout="NCHW", count_include_pad=True), [(1, 2, 6, 7)],
    ),
    "mean, to the end": (lambda x: nn.avg_pool2d(x, (3, 2), (2, 3), 1, 1, True), [(1, 2, 6, 7)]),
    "mean of lines": (lambda x: nn.avg_pool1d(x, 3, 2, 1, count_include_pad=True), [(2, 3, 8)]),
    "adaptive, divisible": (lambda x: nn.adaptive_avg_pool2d(x, (3, 2), layout="NHWC"), [(2, 6, 8, 2)]),
    "adaptive, the same": (lambda x: nn.adaptive_avg_pool2d(x, (3, 2), layout="NHWC"), [(2, 3, 2, 2)]),
    "adaptive mean": (lambda x: nn.adaptive_avg_pool2d(x, (2, 3)), [(1, 2, 4, 6)]),
}  # fmt: skip
SIZES = [((4, 5), (7, 3)), ((4, 5), (8, 10)), ((6, 4), (3, 1)), ((1, 3), (5, 3))]
METHODS = {
    ("linear", "half_pixel"): 1, ("linear", "align_corners"): 4, ("nearest_neighbor", "half_pixel"): 1,
    ("nearest_neighbor", "asymmetric"): 1, ("cubic", "half_pixel"): 4, ("cubic", "align_corners"): 1,
}  # fmt: skip
"""Number of the sizes to which images are resized, by method and mode."""
RESIZED = {
    f"resized {method} {mode} {size} {wanted}": (
        lambda x, wanted=wanted, method=method, mode=mode: op.image.resize2d(
            x, wanted, layout="NHWC", method=method, coordinate_transformation_mode=mode
        ),
        [(2, *size, 2)],
    )
    for (method, mode), count in METHODS.items()
    for size, wanted in SIZES[:count]
}

# Operators that compare values: of distinct ones.

DISTINCT = {
    "squeeze": (op.squeeze, [(3, 1, 4, 1)]),
    "slice": (lambda x: op.strided_slice(x, [1], [2], [5]), [(3, 7, 2)]),
    "slice with a stride": (lambda x: op.strided_slice(x, [0, 2], [1, 0], [8, 5], [3, 2]), [(8, 2, 5)]),
    "slice from the end": (lambda x: op.strided_slice(x, [-1], [-3], [9]), [(2, 7)]),
    "flip": (lambda x: op.flip(x, 1), [(3, 4)]),
    "stack": (lambda x, y: op.stack([x, y], 1), [(3, 4), (3, 4)]),
    "pad": (lambda x: op.nn.pad(x, (1, 2, 0, 3)), [(3, 4)]),
    "tile": (lambda x: op.tile(x, (2, 3)), [(4, 2)]),
    "tile more axes": (lambda x: op.tile(x, (2, 1, 3)), [(4, 2)]),
    "max": (lambda x: op.max(x, 1), [(3, 5, 2)]),
    "max of all": (op.max, [(3, 5)]),
    "min, axis kept": (lambda x: op.min(x, [0, 2], keepdims=True), [(3, 5, 2)]),
    "largest": (lambda x: op.topk(x, 3, -1, "values"), [(2, 7)]),
    "smallest of an outer axis": (lambda x: op.topk(x, 2, 0, "values", largest=False), [(6, 3)]),
    "largest, with places": (lambda x: op.topk(x, 5, 1, "both")[0], [(2, 7)]),
}


def normal(generator: np.random.Generator, shape: Shape) -> np.ndarray:
    return generator.standard_normal(shape)


def positive(generator: np.random.Generator, shape: Shape) -> np.ndarray:
    return generator.uniform(0.5, 3, shape)


def distinct(generator: np.random.Generator, shape: Shape) -> np.ndarray:
    return generator.permutation(np.arange(np.prod(shape), dtype=np.float64)).reshape(shape)


CASES = [
    *((normal, name, operator, [(2, 1, 3, 5)]) for name, operator in ELEMENTWISE.items()),
    *((positive, name, operator, [(3, 5)]) for name, operator in POSITIVE.items()),
    *((positive, name, operator, [(2, 3, 1), (3, 4)]) for name, operator in PAIRS.items()),
    *((positive, f"power {shapes}", op.power, shapes) for shapes in BROADCAST),
    *(
        (normal, name, *case)
        for group in (MOVEMENT, PLACES, SUMS, CONVOLUTIONS, POOLS, RESIZED)
        for name, case in group.items()
    ),
    *((distinct, name, *case) for name, case in DISTINCT.items()),
]


@pytest.mark.parametrize(
    ("draw", "operator", "shapes"), [pytest.param(draw, *case, id=name) for draw, name, *case in CASES]
)
def test_gradients(draw: Draw, operator: Operator, shapes: Sequence[Shape]) -> None:
    generator = np.random.default_rng(0)
    assert_gradients(operator, [draw(generator, shape) for shape in shapes])


def test_a_product_of_zeros() -> None:
    assert_gradients(lambda x: op.prod(x, 1), [np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]])])


def test_what_is_equally_large_shares_the_gradient() -> None:
    machine, _ = differentiated(lambda x: op.max(x, 1), [(1, 4)])
    arrays = [np.array([6.0]), np.array([[2.0, 5.0, 5.0, 1.0]])]
    _, (gradient,) = machine["main_adjoint"](*(tvm.runtime.tensor(array) for array in arrays))
    np.testing.assert_array_equal(gradient.numpy(), [[0, 3, 3, 0]])


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (lambda x: op.strided_slice(x, [0], [3], [0], [-1]), "positive strides"),
        (lambda x: op.nn.rms_norm(op.reshape(op.concat([x] * 4, 0), (4, 4)), x, 0), "last axes"),
        (lambda x: nn.adaptive_avg_pool2d(op.reshape(x, (1, 1, 2, 2)), 3), "parts that overlap"),
    ],
)
def test_what_has_no_gradient_says_so(operator: Operator, reason: str) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        differentiated(operator, [(4,)])
