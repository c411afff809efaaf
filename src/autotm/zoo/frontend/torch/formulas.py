"""Operators that TVM's importer lacks, or computes otherwise than PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from autotm.model.files import BadInputError
from autotm.zoo.frontend.random_numbers import Draws
from autotm.zoo.frontend.torch.rare import argument


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
        return {
            **base,
            **{name: self._with_alpha(base[name]) for name in ("add.Tensor", "sub.Tensor")},
            "amax.default": self._extremum(relax.op.max),
            "amin.default": self._extremum(relax.op.min),
            "constant_pad_nd.default": self._padded,
            "cumsum.default": self._running_sum,
            "linalg_vector_norm.default": self._norm,
            "max_pool2d_with_indices.default": self._largest_of_windows,
            "native_group_norm.default": self._group_norm_any,
            "roll.default": self._rolled,
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
            alpha = argument(node, 2, "alpha", 1)
            if alpha == 1:
                return convert(node)
            x, y = (self._argument_as(item, dtype_of(node)) for item in node.args[:2])
            scaled = self._emit(relax.op.multiply(y, self._number(alpha, y)))
            is_sum = node.target.overloadpacket is torch.ops.aten.add
            return self._emit((relax.op.add if is_sum else relax.op.subtract)(x, scaled))

        return converted

    def _largest_of_windows(self, node: fx.Node) -> tuple[relax.Var, None]:
        """The largest of windows of images; where they are is for their gradient alone."""
        x, size = self.env[node.args[0]], node.args[1]
        padding = argument(node, 3, "padding", (0, 0))
        y = relax.op.nn.max_pool2d(
            x, size, argument(node, 2, "stride") or size, [*padding, *padding],
            argument(node, 4, "dilation", (1, 1)), bool(argument(node, 5, "ceil_mode")),
        )  # fmt: skip
        return self._emit(y), None

    def _padded(self, node: fx.Node) -> relax.Var:
        """Constants around a tensor; of a negative width, which gradients of padding have, less of the tensor."""
        x, widths = self.env[node.args[0]], node.args[1]
        extents = [int(extent) for extent in self.shape_of(x)]
        pairs = [(0, 0)] * (len(extents) - len(widths) // 2) + list(zip(widths[-2::-2], widths[::-2], strict=True))
        if min(widths) < 0:
            ends = [extent + min(after, 0) for extent, (_, after) in zip(extents, pairs, strict=True)]
            begins = [max(-before, 0) for before, _ in pairs]
            x = self._emit(relax.op.strided_slice(x, list(range(len(extents))), begins, ends))
        around = [max(width, 0) for pair in pairs for width in pair]
        return self._emit(relax.op.nn.pad(x, around, "constant", argument(node, 2, "value", 0.0))) if any(around) else x

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

    def _extremum(self, operator: Callable[..., relax.Expr]) -> Callable[[fx.Node], relax.Var]:
        def converted(node: fx.Node) -> relax.Var:
            x, axes, keeps, *_ = (*node.args, None, None)
            return self._emit(operator(self.env[x], list(axes) if axes else None, keepdims=bool(keeps)))

        return converted

    def _norm(self, node: fx.Node) -> relax.Var:
        """The Euclidean norm."""
        x, order, axes, keeps, *_ = (*node.args, *(2, None, False)[len(node.args) - 1 :])
        if order != 2:  # noqa: PLR2004 - the Euclidean norm
            raise BadInputError(f"a norm of order {order} has no kernel here")
        squares = self._emit(relax.op.multiply(self.env[x], self.env[x]))
        total = self._emit(relax.op.sum(squares, list(axes) if axes else None, keepdims=bool(keeps)))
        return self._emit(relax.op.sqrt(total))

    def _running_sum(self, node: fx.Node) -> relax.Var:
        """Truth values are counted, not joined."""
        return self._emit(relax.op.cumsum(self._argument_as(node.args[0], dtype_of(node)), node.args[1]))

    def _resized(self, node: fx.Node) -> relax.Var:
        x, size, *options = node.args
        return self.resized(node, self.env[x], size, options)

    def resized(self, node: fx.Node, x: relax.Expr, size: Sequence[int], options: Sequence[Any]) -> relax.Var:
        """Resize images as a node's operator does, forward or backward, by its arguments behind the sizes."""
        mode, is_aligned = "asymmetric", False
        if is_linear := "bilinear" in node.target.__name__:
            is_aligned, *options = options
            mode = "align_corners" if is_aligned else "half_pixel"
        extents = [int(extent) for extent in self.shape_of(x)][2:]
        scales = zip(extents, options, strict=False)
        if not is_aligned and any(scale and int(extent * scale) != extent * scale for extent, scale in scales):
            raise BadInputError("a scale that is not that of the sizes has no kernel here")
        how = {} if is_linear else {"rounding_method": "floor"}
        how |= {"method": "linear" if is_linear else "nearest_neighbor", "coordinate_transformation_mode": mode}
        return self._emit(relax.op.image.resize2d(x, size, layout="NCHW", **how))

    def _rolled(self, node: fx.Node) -> relax.Var:
        """Along each axis, the last places before the first ones."""
        x, shifts, axes = node.args
        rolled = self.env[x]
        for shift, axis in zip(shifts, axes, strict=True):
            extent = int(self.shape_of(rolled)[axis])
            if cut := -shift % extent:
                parts = [
                    self._emit(relax.op.strided_slice(rolled, [axis], [begin], [end]))
                    for begin, end in ((cut, extent), (0, cut))
                ]
                rolled = self._emit(relax.op.concat(parts, axis % len(self.shape_of(rolled))))
        return rolled


def dtype_of(node: fx.Node) -> str:
    """The element type of what a node gives, by TVM's name."""
    return str(node.meta["val"].dtype).removeprefix("torch.")
