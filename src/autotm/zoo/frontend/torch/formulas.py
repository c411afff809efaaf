"""Operators that TVM's importer lacks, or computes otherwise than PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from autotm.model.files import BadInputError
from autotm.zoo.frontend.random_numbers import Draws

_OF_REAL = ("isfinite", "isinf", "isnan")
_SMALL = 0.5
"""Below it, the series of sinh to x^7 is off by less than float32 rounds; above, the difference of powers is."""


class Formulas(ExportedProgramImporter):
    """TVM's importer, with PyTorch's formulas.

    Attributes:
        draws: the places of the step that draw random numbers.
        known: the values of nodes that depend on no argument.
    """

    draws: Draws
    known: Mapping[fx.Node, Any]

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Conversions by name of PyTorch's operator."""
        base = super().create_convert_map()
        clamps = {
            name: self._clamp_of_any(base[name]) for name in ("clamp.default", "clamp_min.default", "clamp_max.default")
        }
        quotients = {name: self._quotient(base[name]) for name in ("div.Tensor", "div.Scalar")}
        sums = {name: self._with_alpha(base[name]) for name in ("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")}
        del base["_upsample_bilinear2d_aa.default"]  # It ignores antialiasing.
        return {
            **base,
            **clamps,
            **quotients,
            **sums,
            **{f"{name}.default": self._of_real(base[f"{name}.default"]) for name in _OF_REAL},
            **{name: self._parts_of_any(base[name]) for name in ("split.Tensor", "split_with_sizes.default")},
            **{name: self._compared(base[name]) for name in ("eq.Tensor", "ne.Tensor")},
            "mul.Tensor": self._product_of_any(base["mul.Tensor"]),
            "adaptive_max_pool2d.default": self._adaptive_max_pool,
            "amax.default": self._extremum(relax.op.max),
            "amin.default": self._extremum(relax.op.min),
            **{f"avg_pool{rank}d.default": self._mean_of_windows(base[f"avg_pool{rank}d.default"]) for rank in (2, 3)},
            "constant_pad_nd.default": self._padded,
            "cosh.default": self._cosh,
            "cumsum.default": self._running_sum,
            "div.Tensor_mode": self._divided,
            "elu.default": self._elu_scaled,
            "hypot.default": self._hypot,
            "linalg_vector_norm.default": self._norm,
            "max_pool2d_with_indices.default": self._largest_of_windows,
            "max_pool3d_with_indices.default": self._largest_of_windows,
            "native_group_norm.default": self._group_norm_any,
            "prod.dim_int": self._product,
            "relu.default": self._relu(base["relu.default"]),
            "rand.default": self._rand,
            "rand_like.default": self._rand,
            "randn.default": self._randn,
            "randn_like.default": self._randn,
            "roll.default": self._rolled,
            "sinh.default": self._sinh,
            "upsample_bilinear2d.default": self._resized,
            "upsample_nearest2d.default": self._resized,
        }

    def _emit(self, expression: relax.Expr) -> relax.Var:
        return self.block_builder.emit(expression)

    def _number(self, value: float, like: relax.Expr) -> relax.Expr:
        return relax.const(value, str(like.ty.dtype.dtype))

    def _argument_as(self, argument: Any, dtype: str) -> relax.Expr:
        """An argument of a node, a tensor or a number, in that type."""
        if not isinstance(argument, fx.Node):
            return relax.const(argument, dtype)
        value = self.env[argument]
        return value if str(value.ty.dtype.dtype) == dtype else self._emit(relax.op.astype(value, dtype))

    def _with_alpha(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """A sum or difference whose second argument may have a factor."""

        def converted(node: fx.Node) -> Any:
            alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)  # noqa: PLR2004 - add.Scalar's
            if node.meta["val"].dtype == torch.bool:
                raise BadInputError("of truth values it has no kernel here")
            if alpha == 1:
                return convert(node)
            dtype, (first, second, *_) = dtype_of(node), node.args
            x = self._argument_as(first, dtype)
            if isinstance(second, fx.Node):
                scaled = self._emit(relax.op.multiply(self._argument_as(second, dtype), relax.const(alpha, dtype)))
            else:
                scaled = self._argument_as(alpha * second, dtype)
            is_sum = node.target.overloadpacket is torch.ops.aten.add
            return self._emit((relax.op.add if is_sum else relax.op.subtract)(x, scaled))

        return converted

    def _quotient(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """A quotient; TVM's compiler refuses a divisor that it knows to be zero."""

        def converted(node: fx.Node) -> Any:
            if node.args[1] != 0:
                return convert(node)
            dtype = dtype_of(node)
            return self._emit(relax.op.multiply(self._argument_as(node.args[0], dtype), relax.const(math.inf, dtype)))

        return converted

    def _clamp_of_any(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """A clamp; TVM's takes infinity for a missing bound, which whole numbers have not."""

        def converted(node: fx.Node) -> Any:
            if node.meta["val"].is_floating_point():
                return convert(node)
            dtype = dtype_of(node)
            found = self._argument_as(node.args[0], dtype)
            lower, upper = _bounds(node)
            if lower is not None:
                found = self._emit(relax.op.maximum(found, self._argument_as(lower, dtype)))
            return found if upper is None else self._emit(relax.op.minimum(found, self._argument_as(upper, dtype)))

        return converted

    def _of_real(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """An operator whose kernel takes real numbers alone."""

        def converted(node: fx.Node) -> Any:
            if not node.args[0].meta["val"].is_floating_point():
                raise BadInputError("of whole numbers it has no kernel here")
            return convert(node)

        return converted

    def _parts_of_any(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """The parts of a tensor; TVM's operator gives no tuple of one."""

        def converted(node: fx.Node) -> Any:
            return convert(node) if len(node.meta["val"]) > 1 else (self.env[node.args[0]],)

        return converted

    def _compared(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """Whether numbers are equal; TVM takes for granted that each equals itself, which NaN does not."""

        def converted(node: fx.Node) -> Any:
            first, second = node.args
            is_itself = isinstance(second, fx.Node) and self.env[first].same_as(self.env[second])
            if not is_itself or not first.meta["val"].is_floating_point():
                return convert(node)
            is_nan = self._emit(relax.op.isnan(self.env[first]))
            is_ne = node.target.overloadpacket is torch.ops.aten.ne
            return is_nan if is_ne else self._emit(relax.op.logical_not(is_nan))

        return converted

    def _product_of_any(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """A product, of truth values too."""

        def converted(node: fx.Node) -> Any:
            if node.meta["val"].dtype != torch.bool:
                return convert(node)
            return self._emit(relax.op.logical_and(*(self._argument_as(item, "bool") for item in node.args[:2])))

        return converted

    def _relu(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """The positive part, of whole numbers too."""

        def converted(node: fx.Node) -> Any:
            if node.meta["val"].is_floating_point():
                return convert(node)
            return self._emit(relax.op.maximum(self.env[node.args[0]], relax.const(0, dtype_of(node))))

        return converted

    def _mean_of_windows(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """A mean of windows whose sums may be divided by a number of one's own."""

        def converted(node: fx.Node) -> Any:
            divisor = argument(node, 6, "divisor_override")
            if divisor is None:
                return convert(node)
            if (
                len(node.meta["val"].shape) > len("NCHW")
                or argument(node, 4, "ceil_mode")
                or not argument(node, 5, "count_include_pad", default=True)
            ):
                raise BadInputError("divisor_override goes with ceil_mode=False and count_include_pad=True here")
            size = argument(node, 1, "kernel_size")
            area = math.prod(size) if len(size) > 1 else size[0] ** 2
            return self._emit(relax.op.multiply(convert(node), relax.const(area / divisor, dtype_of(node))))

        return converted

    def _largest_of_windows(self, node: fx.Node) -> tuple[relax.Var, None]:
        """The largest of windows, of images or volumes; where they are is for their gradient alone."""
        places = [user for user in node.users if user.args[1] == 1]
        if any("backward" not in user.target.__name__ for place in places for user in place.users):
            raise BadInputError("return_indices=True has no kernel here")
        size = argument(node, 1, "kernel_size")
        strides, padding, dilation = (
            argument(node, position, name) or [default] * len(size)
            for position, name, default in ((2, "stride", None), (3, "padding", 0), (4, "dilation", 1))
        )
        strides = size if None in strides else strides
        x = self.env[node.args[0]]
        is_single = len(self.shape_of(x)) == len(size) + 1
        if is_single:
            x = self._emit(relax.op.expand_dims(x, 0))
        pool = relax.op.nn.max_pool2d if len(size) == 2 else relax.op.nn.max_pool3d  # noqa: PLR2004 - axes of an image
        around = [*padding, *padding]
        y = self._emit(pool(x, size, strides, around, dilation, bool(argument(node, 5, "ceil_mode"))))
        return (self._emit(relax.op.squeeze(y, [0])) if is_single else y), None

    def _padded(self, node: fx.Node) -> relax.Var:
        """Constants around a tensor; of a negative width, less of the tensor."""
        found, widths = self.env[node.args[0]], node.args[1]
        rank, value = len(self.shape_of(found)), argument(node, 2, "value", default=0.0)
        pairs = {rank - 1 - number: widths[2 * number : 2 * number + 2] for number in range(len(widths) // 2)}
        cut = {axis: pair for axis, pair in pairs.items() if min(pair) < 0}
        if cut:
            extents = [int(extent) for extent in self.shape_of(found)]
            begins = [max(0, -before) for before, _ in cut.values()]
            ends = [extents[axis] - max(0, -after) for axis, (_, after) in cut.items()]
            found = self._emit(relax.op.strided_slice(found, list(cut), begins, ends))
        around = [max(0, width) for axis in range(rank) for width in pairs.get(axis, (0, 0))]
        return self._emit(relax.op.nn.pad(found, around, "constant", value)) if any(around) else found

    def _group_norm_any(self, node: fx.Node) -> tuple[Any, ...]:
        x, weight, bias, _, channels, _, groups, epsilon = node.args
        scale, shift = (self._whole(item, [channels], value) for item, value in ((weight, 1.0), (bias, 0.0)))
        axes = list(range(2, len(self.shape_of(self.env[x]))))
        return (self._emit(relax.op.nn.group_norm(self.env[x], scale, shift, groups, 1, axes, epsilon)), None, None)

    def _whole(self, node: fx.Node | None, shape: list[int], value: float) -> relax.Expr:
        """A scale or shift, or ones or zeros in place of none."""
        if node is not None:
            return self.env[node]
        return self._emit(relax.op.full(list(shape), relax.const(value, "float32"), "float32"))

    def _powers(self, x: relax.Expr) -> tuple[relax.Var, relax.Var]:
        """e^x / 2 and e^-x / 2, which overflow later than the powers."""
        op, half = relax.op, self._number(math.log(2), x)
        return tuple(  # type: ignore[return-value]
            self._emit(op.exp(self._emit(op.subtract(item, half)))) for item in (x, self._emit(op.negative(x)))
        )

    def _cosh(self, node: fx.Node) -> relax.Var:
        return self._emit(relax.op.add(*self._powers(self.env[node.args[0]])))

    def _sinh(self, node: fx.Node) -> relax.Var:
        x, op = self.env[node.args[0]], relax.op
        far = self._emit(op.subtract(*self._powers(x)))
        square = self._emit(op.multiply(x, x))
        near = self._number(1 / 5040, x)
        for term in (1 / 120, 1 / 6, 1.0):
            near = self._emit(op.add(self._emit(op.multiply(near, square)), self._number(term, x)))
        is_small = self._emit(op.less(square, self._number(_SMALL**2, x)))
        return self._emit(op.where(is_small, self._emit(op.multiply(near, x)), far))

    def _hypot(self, node: fx.Node) -> relax.Var:
        x, y = (self.env[item] for item in node.args)
        squares = [self._emit(relax.op.multiply(item, item)) for item in (x, y)]
        return self._emit(relax.op.sqrt(self._emit(relax.op.add(*squares))))

    def uniform(self, shape: Sequence[int]) -> relax.Var:
        """Numbers in [0, 1) of the step's own generator."""
        return self.draws.uniform(self.block_builder, shape)

    def _adaptive_max_pool(self, node: fx.Node) -> tuple[relax.Var, None]:
        x, wanted = self.env[node.args[0]], [int(extent) for extent in node.args[1]]
        shape = [int(extent) for extent in self.shape_of(x)][-2:]
        if any(extent % size for extent, size in zip(shape, wanted, strict=True)):
            raise BadInputError(
                f"adaptive_max_pool2d of {shape[0]} x {shape[1]} to {wanted[0]} x {wanted[1]}: windows of unequal size "
                "have no kernel; give images whose sides are multiples, or use max_pool2d"
            )
        window = tuple(extent // size for extent, size in zip(shape, wanted, strict=True))
        return self._emit(relax.op.nn.max_pool2d(x, window, window)), None

    def _extremum(self, operator: Callable[..., relax.Expr]) -> Callable[[fx.Node], relax.Var]:
        def convert(node: fx.Node) -> relax.Var:
            x, axes, keeps, *_ = (*node.args, None, None)
            return self._emit(operator(self.env[x], list(axes) if axes else None, keepdims=bool(keeps)))

        return convert

    def _norm(self, node: fx.Node) -> relax.Var:
        """(sum |x|^p)^(1/p); where it is zero, it passes no gradient on, where the formula's own is no number."""
        op, (order, axes, keeps) = relax.op, [*node.args[1:4], *(2, None, False)[len(node.args) - 1 :]]
        x, named = self.env[node.args[0]], {"axis": list(axes) if axes else None, "keepdims": bool(keeps)}
        if math.isinf(order):
            return self._emit((op.max if order > 0 else op.min)(self._emit(op.abs(x)), **named))
        if order == 2:  # noqa: PLR2004 - the Euclidean norm
            powers = self._emit(op.multiply(x, x))
        else:
            powers = self._emit(op.power(self._emit(op.abs(x)), self._number(order, x)))
        total = self._emit(op.sum(powers, **named))
        zero, one = self._number(0.0, x), self._number(1.0, x)
        is_zero = self._emit(op.equal(total, zero))
        above = self._emit(op.where(is_zero, one, total))
        root = op.sqrt(above) if order == 2 else op.power(above, self._number(1 / order, x))  # noqa: PLR2004 - as above
        return self._emit(op.where(is_zero, zero, self._emit(root)))

    def _product(self, node: fx.Node) -> relax.Var:
        x, axis, keeps, *_ = (*node.args, False)
        return self._emit(relax.op.prod(self.env[x], [axis], keepdims=bool(keeps)))

    def _running_sum(self, node: fx.Node) -> relax.Var:
        x, dtype = self.env[node.args[0]], dtype_of(node)
        if str(x.ty.dtype.dtype) != dtype:  # truth values are counted, not joined
            x = self._emit(relax.op.astype(x, dtype))
        return self._emit(relax.op.cumsum(x, node.args[1]))

    def _divided(self, node: fx.Node) -> relax.Var:
        """A quotient rounded down or towards zero."""
        x, y = (self.env.get(item, item) if isinstance(item, fx.Node) else item for item in node.args[:2])
        y = self._number(y, x) if isinstance(y, int | float) else y
        mode = node.kwargs.get("rounding_mode")
        if mode == "floor":
            return self._emit(relax.op.floor_divide(x, y))
        quotient = self._emit(relax.op.divide(x, y))
        return quotient if mode is None else self._emit(relax.op.trunc(quotient))

    def _elu_scaled(self, node: fx.Node) -> relax.Var:
        """Scale * x above zero, scale * alpha * (exp(input_scale x) - 1) below: also selu and celu."""
        x, op = self.env[node.args[0]], relax.op
        alpha, scale, inner = (*node.args[1:], *(1.0, 1.0, 1.0)[len(node.args) - 1 :])
        zero = self._number(0.0, x)
        # Of the smaller of x and zero: the branch that is not taken must not overflow.
        below = self._emit(op.multiply(self._emit(op.minimum(x, zero)), self._number(inner, x)))
        below = self._emit(op.subtract(self._emit(op.exp(below)), self._number(1.0, x)))
        below = self._emit(op.multiply(below, self._number(alpha, x)))
        found = self._emit(op.where(self._emit(op.greater(x, zero)), x, below))
        return found if scale == 1 else self._emit(op.multiply(found, self._number(scale, x)))

    def _resized(self, node: fx.Node) -> relax.Var:
        x, size, *options = node.args
        return self.resized(node, self.env[x], size, options)

    def resized(self, node: fx.Node, x: relax.Expr, size: Sequence[int], options: Sequence[Any]) -> relax.Var:
        """Resize images as a node's operator does, forward or backward, by its arguments behind the sizes."""
        if "bilinear" in node.target.__name__:
            is_aligned, *scales = (*options, None, None)[:3]
            return self._bilinear(x, size, scales, is_aligned=is_aligned)
        return self._nearest(x, size, (*options, None, None)[:2])

    def _nearest(self, x: relax.Expr, size: Sequence[int], scales: Sequence[float | None]) -> relax.Var:
        """Images resized: output i takes input floor(i * in / out), or floor(i / scale) where a scale is given."""
        if not self._is_other(x, scales):
            found = relax.op.image.resize2d(
                x, size, layout="NCHW", method="nearest_neighbor", rounding_method="floor",
                coordinate_transformation_mode="asymmetric",
            )  # fmt: skip
            return self._emit(found)
        for axis, (extent, scale) in enumerate(zip(size, scales, strict=True), start=2):
            places = (np.arange(extent, dtype=np.float32) * np.float32(1 / scale)).astype(np.int64)
            x = self._entries(x, np.minimum(places, int(self.shape_of(x)[axis]) - 1), axis)
        return x

    def _bilinear(
        self, x: relax.Expr, size: Sequence[int], scales: Sequence[float | None], *, is_aligned: bool
    ) -> relax.Var:
        """Images resized: between neighbours of (i + 1/2) * in / out - 1/2, or of (i + 1/2) / scale - 1/2."""
        if is_aligned or not self._is_other(x, scales):
            mode = "align_corners" if is_aligned else "half_pixel"
            found = relax.op.image.resize2d(
                x, size, layout="NCHW", method="linear", coordinate_transformation_mode=mode
            )
            return self._emit(found)
        for axis, (extent, scale) in enumerate(zip(size, scales, strict=True), start=2):
            last = int(self.shape_of(x)[axis]) - 1
            source = (np.arange(int(extent), dtype=np.float32) + np.float32(0.5)) * np.float32(1 / scale)
            source = np.maximum(source - np.float32(0.5), 0)
            below = np.minimum(source.astype(np.int64), last)
            share = (source - below).reshape(-1, *[1] * (3 - axis)).astype(np.float32)
            near, far = (self._entries(x, places, axis) for places in (below, np.minimum(below + 1, last)))
            step = self._emit(relax.op.subtract(far, near))
            x = self._emit(relax.op.add(near, self._emit(relax.op.multiply(step, relax.const(share, "float32")))))
        return x

    def _is_other(self, x: relax.Expr, scales: Sequence[float | None]) -> bool:
        """Whether scales are given that are not those of the images' sizes: our kernels know sizes only."""
        extents = [int(extent) for extent in self.shape_of(x)][-2:]
        return any(
            scale is not None and int(extent * scale) != extent * scale
            for extent, scale in zip(extents, scales, strict=True)
        )

    def _entries(self, x: relax.Expr, places: npt.NDArray[np.int64], axis: int) -> relax.Var:
        return self._emit(relax.op.take(x, relax.const(places, "int64"), axis=axis, mode="fast"))

    def _rolled(self, node: fx.Node) -> relax.Var:
        """Along each axis, the last places before the first ones."""
        x, shifts, axes = (*node.args, ())[:3]
        found, shape = self.env[x], [int(extent) for extent in self.shape_of(self.env[x])]
        if not axes:
            found = self._emit(relax.op.reshape(found, [math.prod(shape)]))
        for shift, axis in zip(shifts, axes or [0], strict=True):
            extent = int(self.shape_of(found)[axis])
            if cut := -shift % extent:
                parts = [
                    self._emit(relax.op.strided_slice(found, [axis], [begin], [end]))
                    for begin, end in ((cut, extent), (0, cut))
                ]
                found = self._emit(relax.op.concat(parts, axis % len(self.shape_of(found))))
        return self._emit(relax.op.reshape(found, shape))

    def _rand(self, node: fx.Node) -> relax.Var:
        return self.uniform(tuple(node.meta["val"].shape))

    def _randn(self, node: fx.Node) -> relax.Var:
        """Normal numbers of two uniform ones (Box and Muller, 1958)."""
        shape, op = tuple(node.meta["val"].shape), relax.op
        first, second = self.uniform(shape), self.uniform(shape)
        above_zero = self._emit(op.subtract(relax.const(1.0, "float32"), first))
        length = self._emit(op.multiply(self._emit(op.log(above_zero)), relax.const(-2.0, "float32")))
        turn = self._emit(op.cos(self._emit(op.multiply(second, relax.const(2 * math.pi, "float32")))))
        return self._emit(op.multiply(self._emit(op.sqrt(length)), turn))


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a node, by position or name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def dtype_of(node: fx.Node) -> str:
    """The element type of what a node gives, by TVM's name."""
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _bounds(node: fx.Node) -> tuple[Any, Any]:
    """The lower and the upper bound of a clamp, None where there is none."""
    name = node.target.overloadpacket.__name__
    if name == "clamp_min":
        return argument(node, 1, "min"), None
    if name == "clamp_max":
        return None, argument(node, 1, "max")
    return argument(node, 1, "min"), argument(node, 2, "max")
