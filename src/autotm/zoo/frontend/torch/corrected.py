"""What TVM's importer reads otherwise than PyTorch means it: options it leaves out, and cases that it does not know."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from autotm.model.files import BadInputError

_SMALL = 0.5
"""Below it, the series of sinh to x^7 is off by less than float32 rounds; above, the difference of powers is."""


_NEGATIVE = torch.tensor(-1)
"""What indices that nobody knows yet may be."""


class Corrected(ExportedProgramImporter):
    """TVM's importer, corrected.

    Attributes:
        known: the values of nodes that depend on no argument.
    """

    known: Mapping[fx.Node, Any]

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Conversions by name of PyTorch's operator."""
        base = super().create_convert_map()
        clamps = {
            name: self._of_floats(base[name]) for name in ("clamp.default", "clamp_min.default", "clamp_max.default")
        }
        quotients = {name: self._by_more_than_zero(base[name]) for name in ("div.Tensor", "div.Scalar")}
        sums = {name: self._with_alpha(base[name]) for name in ("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")}
        del base["_upsample_bilinear2d_aa.default"]  # It takes no averages.
        return {
            **base,
            **clamps,
            **quotients,
            **sums,
            "avg_pool2d.default": self._divided_by(base["avg_pool2d.default"]),
            "constant_pad_nd.default": self._padded,
            "cosh.default": self._cosh,
            "hypot.default": self._hypot,
            "index.Tensor": self._indexed(base["index.Tensor"]),
            "max_pool2d_with_indices.default": self._without_places(base["max_pool2d_with_indices.default"]),
            "native_group_norm.default": self._group_norm_any,
            "sinh.default": self._sinh,
        }

    def _emit(self, expression: relax.Expr) -> relax.Var:
        return self.block_builder.emit(expression)

    def _number(self, value: float, like: relax.Expr) -> relax.Expr:
        return relax.const(value, str(like.ty.dtype.dtype))

    def _as(self, argument: Any, dtype: str) -> relax.Expr:
        """An argument of a node, a tensor or a number, in that type."""
        if not isinstance(argument, fx.Node):
            return relax.const(argument, dtype)
        value = self.env[argument]
        return value if str(value.ty.dtype.dtype) == dtype else self._emit(relax.op.astype(value, dtype))

    def _with_alpha(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """A sum or difference whose second argument may have a factor."""

        def converted(node: fx.Node) -> Any:
            alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)  # noqa: PLR2004 - add.Scalar's
            if alpha == 1:
                return convert(node)
            dtype, (first, second, *_) = dtype_of(node), node.args
            x = self._as(first, dtype)
            if isinstance(second, fx.Node):
                scaled = self._emit(relax.op.multiply(self._as(second, dtype), relax.const(alpha, dtype)))
            else:
                scaled = self._as(alpha * second, dtype)
            is_sum = node.target.overloadpacket is torch.ops.aten.add
            return self._emit((relax.op.add if is_sum else relax.op.subtract)(x, scaled))

        return converted

    def _by_more_than_zero(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """A quotient; TVM's compiler refuses a divisor that it knows to be zero."""

        def converted(node: fx.Node) -> Any:
            if node.args[1] != 0:
                return convert(node)
            dtype = dtype_of(node)
            return self._emit(relax.op.multiply(self._as(node.args[0], dtype), relax.const(math.inf, dtype)))

        return converted

    def _of_floats(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """A clamp; TVM's takes infinity for a missing bound, which whole numbers have not."""

        def converted(node: fx.Node) -> Any:
            if node.meta["val"].is_floating_point():
                return convert(node)
            dtype = dtype_of(node)
            found = self._as(node.args[0], dtype)
            lower, upper = _bounds(node)
            if lower is not None:
                found = self._emit(relax.op.maximum(found, self._as(lower, dtype)))
            return found if upper is None else self._emit(relax.op.minimum(found, self._as(upper, dtype)))

        return converted

    def _divided_by(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """A mean of windows whose sums may be divided by a number of one's own."""

        def converted(node: fx.Node) -> Any:
            divisor = given(node, 6, "divisor_override")
            if divisor is None:
                return convert(node)
            if given(node, 4, "ceil_mode") or not given(node, 5, "count_include_pad", default=True):
                raise BadInputError("divisor_override goes with ceil_mode=False and count_include_pad=True here")
            size = given(node, 1, "kernel_size")
            area = math.prod(size) if len(size) > 1 else size[0] ** 2
            return self._emit(relax.op.multiply(convert(node), relax.const(area / divisor, dtype_of(node))))

        return converted

    def _without_places(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """The largest of windows; TVM gives zeros for where they are."""

        def converted(node: fx.Node) -> Any:
            if any(user.args[1] == 1 for user in node.users):
                raise BadInputError("return_indices=True has no kernel here")
            return convert(node)

        return converted

    def _padded(self, node: fx.Node) -> relax.Var:
        """Constants around a tensor; of a negative width, less of the tensor."""
        found, widths = self.env[node.args[0]], node.args[1]
        rank, value = len(self.shape_of(found)), given(node, 2, "value", default=0.0)
        pairs = {rank - 1 - number: widths[2 * number : 2 * number + 2] for number in range(len(widths) // 2)}
        cut = {axis: pair for axis, pair in pairs.items() if min(pair) < 0}
        if cut:
            extents = [int(extent) for extent in self.shape_of(found)]
            begins = [max(0, -before) for before, _ in cut.values()]
            ends = [extents[axis] - max(0, -after) for axis, (_, after) in cut.items()]
            found = self._emit(relax.op.strided_slice(found, list(cut), begins, ends))
        around = [max(0, width) for axis in range(rank) for width in pairs.get(axis, (0, 0))]
        return self._emit(relax.op.nn.pad(found, around, "constant", value)) if any(around) else found

    def _indexed(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """Entries that indices name, along some axes together; from the end where an index is negative."""

        def converted(node: fx.Node) -> Any:
            x, several = self.env[node.args[0]], node.args[1]
            axes = [axis for axis, item in enumerate(several) if item is not None]
            if any(several[axis].meta["val"].dtype == torch.bool for axis in axes):
                return convert(node)
            indices = [self.env[several[axis]] for axis in axes]
            if len(axes) == 1 and (self.known.get(several[axes[0]], _NEGATIVE) >= 0).all():
                return self._emit(relax.op.take(x, indices[0], axis=axes[0], mode="fast"))
            others = [axis for axis in range(len(self.shape_of(x))) if axis not in axes]
            first = self._emit(relax.op.permute_dims(x, [*axes, *others])) if axes != list(range(len(axes))) else x
            found = self._emit(relax.op.index_tensor(first, indices))
            # Where the indexed axes are neighbours, what they become stays in their place; else it comes first.
            if axes[0] == 0 or axes != list(range(axes[0], axes[-1] + 1)):
                return found
            rank = len(self.shape_of(found)) - len(others)
            order = [rank + place for place in range(axes[0])] + list(range(rank))
            return self._emit(relax.op.permute_dims(found, [*order, *range(rank + axes[0], rank + len(others))]))

        return converted

    def _group_norm_any(self, node: fx.Node) -> tuple[relax.Var]:
        x, weight, bias, _, channels, _, groups, epsilon = node.args
        scale, shift = (self._whole(item, [channels], value) for item, value in ((weight, 1.0), (bias, 0.0)))
        axes = list(range(2, len(self.shape_of(self.env[x]))))
        return (self._emit(relax.op.nn.group_norm(self.env[x], scale, shift, groups, 1, axes, epsilon)),)

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


def given(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a node, by position or name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def dtype_of(node: fx.Node) -> str:
    """The element type of what a node gives, by TVM's name."""
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _bounds(node: fx.Node) -> tuple[Any, Any]:
    """The lower and the upper bound of a clamp, None where there is none."""
    name = node.target.overloadpacket.__name__
    if name == "clamp_min":
        return given(node, 1, "min"), None
    if name == "clamp_max":
        return None, given(node, 1, "max")
    return given(node, 1, "min"), given(node, 2, "max")
