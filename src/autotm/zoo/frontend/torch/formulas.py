"""Operators that TVM's importer lacks, or computes otherwise than PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import fx
from tvm import relax

from autotm.model.files import BadInputError
from autotm.zoo.frontend.random_numbers import Draws
from autotm.zoo.frontend.torch.corrected import Corrected, given


class Formulas(Corrected):
    """TVM's importer, with PyTorch's formulas.

    Attributes:
        draws: the places of the step that draw random numbers.
    """

    draws: Draws

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Conversions by name of PyTorch's operator."""
        base = super().create_convert_map()
        return {
            **base,
            "adaptive_max_pool2d.default": self._adaptive_max_pool,
            "amax.default": self._extremum(relax.op.max),
            "amin.default": self._extremum(relax.op.min),
            "cumsum.default": self._running_sum,
            "div.Tensor_mode": self._divided,
            "elu.default": self._elu_scaled,
            "linalg_vector_norm.default": self._norm,
            "prod.dim_int": self._product,
            "rand.default": self._rand,
            "rand_like.default": self._rand,
            "randn.default": self._randn,
            "randn_like.default": self._randn,
            "roll.default": self._rolled,
            "scatter_add.default": self._scattered,
            "select.int": self._selected,
            "upsample_bilinear2d.vec": self._bilinear(base["upsample_bilinear2d.vec"]),
            "upsample_nearest2d.vec": self._nearest,
        }

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
        x, dtype = self.env[node.args[0]], str(node.meta["val"].dtype).removeprefix("torch.")
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

    def _nearest(self, node: fx.Node) -> relax.Var:
        """Output i takes input floor(i * in / out), or floor(i / scale) where a scale is given."""
        x, size = self.env[node.args[0]], tuple(int(extent) for extent in node.meta["val"].shape[-2:])
        if (scales := self._other_scales(node)) is not None:
            for axis, (extent, scale) in enumerate(zip(size, scales, strict=True), start=2):
                places = (np.arange(extent, dtype=np.float32) * np.float32(1 / scale)).astype(np.int64)
                x = self._entries(x, np.minimum(places, int(self.shape_of(x)[axis]) - 1), axis)
            return x
        mode, rounding = "asymmetric", "floor"
        found = relax.op.image.resize2d(
            x, size, layout="NCHW", method="nearest_neighbor", rounding_method=rounding,
            coordinate_transformation_mode=mode,
        )  # fmt: skip
        return self._emit(found)

    def _bilinear(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """Between neighbours of (i + 1/2) * in / out - 1/2, or of (i + 1/2) / scale - 1/2 where a scale is given."""

        def converted(node: fx.Node) -> Any:
            scales = None if given(node, 2, "align_corners") else self._other_scales(node)
            if scales is None:
                return convert(node)
            x, size = self.env[node.args[0]], node.meta["val"].shape[-2:]
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

        return converted

    def _other_scales(self, node: fx.Node) -> Sequence[float] | None:
        """The scales of resized images, where they are not those of their sizes: our kernels know sizes only."""
        scales = node.args[-1]
        extents = node.args[0].meta["val"].shape[-2:]
        if not isinstance(scales, list | tuple) or node.args[1] is not None:
            return None
        is_whole = all(int(extent * scale) == extent * scale for extent, scale in zip(extents, scales, strict=True))
        return None if is_whole else scales

    def _entries(self, x: relax.Expr, places: npt.NDArray[np.int64], axis: int) -> relax.Var:
        return self._emit(relax.op.take(x, relax.const(places, "int64"), axis=axis, mode="fast"))

    def _selected(self, node: fx.Node) -> relax.Var:
        """One place of an axis, as a slice: where an axis lies does not matter to it."""
        x, axis, place = self.env[node.args[0]], node.args[1], node.args[2]
        shape = [int(extent) for extent in self.shape_of(x)]
        axis, place = axis % len(shape), place % shape[axis]
        part = self._emit(relax.op.strided_slice(x, [axis], [place], [place + 1]))
        return self._emit(relax.op.reshape(part, [*shape[:axis], *shape[axis + 1 :]]))

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

    def _scattered(self, node: fx.Node) -> relax.Var:
        x, axis, indices, source = node.args
        given = (self.env[item] for item in (x, indices, source))
        return self._emit(relax.op.scatter_elements(*given, axis=axis, reduction="add"))

    def _rand(self, node: fx.Node) -> relax.Var:
        return self._emit(relax.op.grad.no_grad(self.uniform(tuple(node.meta["val"].shape))))

    def _randn(self, node: fx.Node) -> relax.Var:
        """Normal numbers of two uniform ones (Box and Muller, 1958)."""
        shape, op = tuple(node.meta["val"].shape), relax.op
        first, second = self.uniform(shape), self.uniform(shape)
        above_zero = self._emit(op.subtract(relax.const(1.0, "float32"), first))
        length = self._emit(op.multiply(self._emit(op.log(above_zero)), relax.const(-2.0, "float32")))
        turn = self._emit(op.cos(self._emit(op.multiply(second, relax.const(2 * math.pi, "float32")))))
        return self._emit(op.grad.no_grad(self._emit(op.multiply(self._emit(op.sqrt(length)), turn))))
