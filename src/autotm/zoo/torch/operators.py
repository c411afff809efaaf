"""Operators of PyTorch that TVM's importer lacks, computes otherwise, or leaves out of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from autotm.kernels import normalization
from autotm.model.errors import BadInputError
from autotm.zoo.network import gradient_by
from autotm.zoo.torch.framework import argument, has_own_type, stored_constant
from autotm.zoo.torch.random_numbers import Draws

_NEGATIVE = torch.tensor(-1)
"""Stands for indices whose values are not known before the step: they may be negative."""


class ForwardImporter(ExportedProgramImporter):
    """TVM's importer, with PyTorch's formulas, and with operators as they are in training.

    Attributes:
        draws: the places of the step that draw random numbers.
        known: the values of nodes that depend on no argument.
        forwards: results of operators whose gradients need them.
    """

    draws: Draws
    known: Mapping[fx.Node, Any]
    forwards: dict[fx.Node, relax.Var]

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Return the conversions by name of PyTorch's operator."""
        return {
            **super().create_convert_map(),
            **dict.fromkeys(
                (f"{name}.{kind}" for name in ("any", "all") for kind in ("default", "dim", "dims")), self._any
            ),
            "constant_pad_nd.default": self._padded,
            # Truth values are counted, not joined.
            "cumsum.default": lambda node: self._emit(
                relax.op.cumsum(self._argument_as(node.args[0], dtype_of(node)), node.args[1])
            ),
            "linalg_vector_norm.default": self._norm,
            "max_pool2d_with_indices.default": self._largest_of_windows,
            "native_group_norm.default": self._group_norm_any,
            "roll.default": self._rolled,
            **dict.fromkeys(
                ("upsample_bilinear2d.default", "upsample_nearest2d.default"),
                lambda node: self.resized(node, self.env[node.args[0]], node.args[1], node.args[2:]),
            ),
            "as_strided.default": lambda node: self._strided(node, node.args[0], node.args[0], *node.args[1:]),
            "as_strided_scatter.default": lambda node: self._strided(node, *node.args),
            "index.Tensor": lambda node: self._entries_at(self.env[node.args[0]], node.args[1]),
            "index_put.default": self._index_added,
            "new_empty_strided.default": lambda node: self.zeros(node.meta["val"].shape, dtype_of(node)),
            "scatter.src": self._put_in_lines,
            "scatter.value": self._put_in_lines,
            "select.int": self._selected,
            "slice_scatter.default": self._slice_put,
            "_safe_softmax.default": self._safe_softmax,
            "_native_batch_norm_legit_functional.default": self._batch_norm_training,
            # Without running averages: the batch's own statistics, in training and after it.
            "_native_batch_norm_legit.no_stats": lambda node: _alone(
                self._normalised(node, *node.args[:3], node.args[5])[0]
            ),
            "_native_batch_norm_legit_no_training.default": lambda node: _alone(
                self._batch_norm_by(*node.args[:5], node.args[-1])
            ),
            "bernoulli.p": self._bernoulli,
            "cat.default": self._concat,
            "embedding.default": self._lookup,
            "native_layer_norm.default": self._layer_norm_any,
        }

    def _emit(self, expression: relax.Expr) -> relax.Var:
        return self.block_builder.emit(expression)

    def _number(self, value: float, like: relax.Expr) -> relax.Expr:
        return relax.const(value, str(like.ty.dtype.dtype))

    def _argument_as(self, argument: Any, dtype: str) -> relax.Expr:
        """Cast an argument of a node, a tensor or a number, to a type."""
        if not isinstance(argument, fx.Node):
            return relax.const(argument, dtype)
        value = self.env[argument]
        return value if str(value.ty.dtype.dtype) == dtype else self._emit(relax.op.astype(value, dtype))

    def _any(self, node: fx.Node) -> relax.Var:
        """Say whether any, or all, of the elements are true."""
        true = self.env[node.args[0]]
        if dtype_of(node.args[0]) != "bool":
            true = self._emit(relax.op.not_equal(true, self._number(0, true)))
        axes, keeps = (*node.args[1:], None, False)[:2]
        most = relax.op.max if node.target.overloadpacket.__name__ == "any" else relax.op.min
        counted = self._emit(relax.op.astype(true, "int32"))
        return self._emit(relax.op.astype(self._emit(most(counted, axes, keepdims=bool(keeps))), "bool"))

    def _largest_of_windows(self, node: fx.Node) -> tuple[relax.Var, None]:
        """Take the maximum of windows of images; only its gradient needs the places."""
        x, size = self.env[node.args[0]], node.args[1]
        padding = argument(node, 3, "padding", (0, 0))
        y = relax.op.nn.max_pool2d(
            x, size, argument(node, 2, "stride") or size, [*padding, *padding],
            argument(node, 4, "dilation", (1, 1)), bool(argument(node, 5, "ceil_mode")),
        )  # fmt: skip
        return self._emit(y), None

    def _padded(self, node: fx.Node) -> relax.Var:
        """Pad with constants; a negative width, as in gradients of padding, cuts the tensor."""
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
        scale, shift = self._scale_and_shift(weight, bias, [channels])
        axes = list(range(2, len(self.shape_of(self.env[x]))))
        return _alone(self._emit(relax.op.nn.group_norm(self.env[x], scale, shift, groups, 1, axes, epsilon)))

    def _scale_and_shift(self, weight: Any, bias: Any, shape: Sequence[int]) -> list[relax.Expr]:
        return [self._whole(item, list(shape), value) for item, value in ((weight, 1.0), (bias, 0.0))]

    def _whole(self, node: fx.Node | None, shape: list[int], value: float) -> relax.Expr:
        """Return a scale or shift, or ones or zeros in place of none."""
        if node is not None:
            return self.env[node]
        return self._emit(relax.op.full(list(shape), relax.const(value, "float32"), "float32"))

    def _norm(self, node: fx.Node) -> relax.Var:
        """Compute the Euclidean norm."""
        x, order, axes, keeps, *_ = (*node.args, *(2, None, False)[len(node.args) - 1 :])
        if order != 2:  # noqa: PLR2004 - the Euclidean norm
            raise BadInputError(f"a norm of order {order} has no kernel here")
        squares = self._emit(relax.op.multiply(self.env[x], self.env[x]))
        total = self._emit(relax.op.sum(squares, list(axes) if axes else None, keepdims=bool(keeps)))
        return self._emit(relax.op.sqrt(total))

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
        """Put the last places of each axis before the first ones."""
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

    # Parts of tensors that indices name: read, and put among zeros as their gradients are.

    def _entries_at(self, x: relax.Expr, several: Sequence[fx.Node | None]) -> relax.Var:
        """Read entries that indices name, along some axes together; from the end where an index is negative."""
        axes = [axis for axis, item in enumerate(several) if item is not None]
        if any(several[axis].meta["val"].dtype == torch.bool for axis in axes):
            raise BadInputError("a mask has no kernel here")
        indices = [self.env[several[axis]] for axis in axes]
        if len(axes) == 1 and (self.known.get(several[axes[0]], _NEGATIVE) >= 0).all():
            return self._emit(relax.op.take(x, indices[0], axis=axes[0], mode="fast"))
        others = [axis for axis in range(len(self.shape_of(x))) if axis not in axes]
        first = self._emit(relax.op.permute_dims(x, [*axes, *others])) if axes != list(range(len(axes))) else x
        entries = self._emit(relax.op.index_tensor(first, indices))
        # The axes of the indices take the place of indexed axes that are neighbours; else they come first.
        if axes[0] == 0 or axes != list(range(axes[0], axes[-1] + 1)):
            return entries
        rank = len(self.shape_of(entries)) - len(others)
        order = [rank + place for place in range(axes[0])] + list(range(rank))
        return self._emit(relax.op.permute_dims(entries, [*order, *range(rank + axes[0], rank + len(others))]))

    def _index_added(self, node: fx.Node) -> relax.Var:
        """Add values to the entries that indices name."""
        tensor, several, values = node.args[:3]
        if not argument(node, 3, "accumulate"):
            raise BadInputError("accumulate=False has no kernel here")
        x = self.zeros(tensor.meta["val"].shape, dtype_of(tensor))
        read = self._entries_at(x, several)
        slope = self._emit(relax.op.broadcast_to(self.env[values], self.shape_of(read)))
        added = gradient_by(self.block_builder, x, read, slope)
        return added if self._is_zero(tensor) else self._emit(relax.op.add(self.env[tensor], added))

    def _put_in_lines(self, node: fx.Node) -> relax.Var:
        """Put a value into each line along an axis where an index names the place: safe for every index."""
        tensor, axis, indices, source = node.args[:4]
        shape = list(tensor.meta["val"].shape)
        one_each = [*shape[:axis], 1, *shape[axis:][1:]]
        for item in (indices, source):
            if isinstance(item, fx.Node) and list(item.meta["val"].shape) != one_each:
                raise BadInputError("several indices in a line have no kernel here")
        numbers = self._emit(relax.op.arange(0, shape[axis], 1, dtype_of(indices)))
        numbers = self._emit(relax.op.reshape(numbers, [-1, *[1] * len(shape[axis:][1:])]))
        is_here = self._emit(relax.op.equal(self.env[indices], numbers))
        value, rest = (self._argument_as(item, dtype_of(node)) for item in (source, tensor))
        return self._emit(relax.op.where(is_here, value, rest))

    # Parts of tensors that slices name.

    def _selected(self, node: fx.Node) -> relax.Var:
        """Select one place of an axis by a slice, which works in every order of axes."""
        x, axis, place = self.env[node.args[0]], node.args[1], node.args[2]
        shape = [int(extent) for extent in self.shape_of(x)]
        axis, place = axis % len(shape), place % shape[axis]
        part = self._emit(relax.op.strided_slice(x, [axis], [place], [place + 1]))
        return self._emit(relax.op.reshape(part, [*shape[:axis], *shape[axis + 1 :]]))

    def _slice_put(self, node: fx.Node) -> relax.Var:
        """Put a part in the place of another, or among zeros, as the gradient of a slice is."""
        tensor, part, axis, *bounds = (*node.args, *[0][len(node.args) - 2 :])
        shape = [int(extent) for extent in tensor.meta["val"].shape]
        axis, value = axis % len(shape), self.env[part]
        begin, end, step = slice(*(*bounds, None, None, None)[:3]).indices(shape[axis])
        if (begin, end, step) == (0, shape[axis], 1):
            return value
        if self._is_zero(tensor) and tensor.meta["val"].is_floating_point():
            x = self.zeros(shape)
            part_of_it = self._emit(relax.op.strided_slice(x, [axis], [begin], [end], [step]))
            return gradient_by(self.block_builder, x, part_of_it, value)
        if step != 1:
            raise BadInputError("a part with steps has no kernel here")
        x = self.env[tensor]
        around = [
            [self._emit(relax.op.strided_slice(x, [axis], [first], [last]))] if last > first else []
            for first, last in ((0, begin), (end, shape[axis]))
        ]
        return self._emit(relax.op.concat([*around[0], value, *around[1]], axis))

    def _strided(
        self, node: fx.Node, tensor: fx.Node, part: fx.Node, size: Sequence[int], stride: Sequence[int],
        offset: int | None = None,
    ) -> relax.Var:  # fmt: skip
        """Reshape a tensor that is read, or written, by strides; other strides than its own are refused."""
        lying = tensor.meta["val"]
        is_same = _runs(lying.shape, lying.stride()) == _runs(size, stride)
        if not is_same or offset not in (None, lying.storage_offset()):
            raise BadInputError("other strides have no kernel here")
        return self._emit(relax.op.reshape(self.env[part], list(node.meta["val"].shape)))

    def zeros(self, shape: Sequence[int], dtype: str = "float32") -> relax.Var:
        """Return a tensor of zeros; where only its shape is asked for, it is never computed."""
        return self._emit(relax.op.full([int(extent) for extent in shape], relax.const(0, dtype), dtype))

    def _is_zero(self, node: fx.Node) -> bool:
        """Return whether all elements of a node are known to be zero."""
        return node in self.known and not self.known[node].any()

    # Operators as they are in training: running averages, norms, softmax of masked scores, lookups.

    def _batch_norm_training(self, node: fx.Node) -> tuple[Any, ...]:
        """Return (y, _, _, new running mean, new running variance)."""
        x, weight, bias, mean, variance, training, momentum, epsilon = node.args
        if not training:
            fixed = self._batch_norm_by(x, weight, bias, mean, variance, epsilon)
            return (fixed, None, None, self.env[mean], self.env[variance])
        y, *moments = self._normalised(node, x, weight, bias, epsilon)
        batch, _, *rest = (int(extent) for extent in self.shape_of(self.env[x]))
        old = (self.env[mean], self.env[variance])
        count = batch * math.prod(rest)
        if count == 1:
            raise BadInputError(f"batch norm of {node.meta['val'][0].shape}: one value a channel has no variance")
        new = self.block_builder.call_te(normalization.running_averages, *moments, *old, momentum, epsilon, count)
        new = self._emit(new)
        return (y, None, None, *(self._emit(relax.TupleGetItem(new, index)) for index in range(2)))

    def _normalised(self, node: fx.Node, x: fx.Node, weight: Any, bias: Any, epsilon: float) -> tuple[relax.Var, ...]:
        """Return (y, mean, 1 / sqrt(variance + epsilon)) of a batch norm without running averages."""
        channels = int(self.shape_of(self.env[x])[1])
        scale, shift = self._scale_and_shift(weight, bias, [channels])
        zero, one = (self._whole(None, [channels], value) for value in (0.0, 1.0))
        norm = self._emit(
            relax.op.nn.batch_norm(self.env[x], scale, shift, zero, one, axis=1, epsilon=epsilon, momentum=1.0)
        )
        self.forwards[node] = norm
        return tuple(self._emit(relax.TupleGetItem(norm, index)) for index in range(3))

    def _batch_norm_by(self, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> relax.Var:
        """Scale and shift each channel by given statistics."""
        op, data = relax.op, self.env[x]
        inverse = self._emit(op.rsqrt(self._emit(op.add(self.env[variance], relax.const(epsilon, "float32")))))
        scale = inverse if weight is None else self._emit(op.multiply(self.env[weight], inverse))
        shift = self._emit(op.negative(self._emit(op.multiply(self.env[mean], scale))))
        shift = shift if bias is None else self._emit(op.add(shift, self.env[bias]))
        shape = [1, -1] + [1] * (len(self.shape_of(data)) - 2)
        scaled = self._emit(op.multiply(data, self._emit(op.reshape(scale, shape))))
        return self._emit(op.add(scaled, self._emit(op.reshape(shift, shape))))

    def _layer_norm_any(self, node: fx.Node) -> tuple[Any, ...]:
        x, shape, weight, bias, epsilon, *_ = (*node.args, *(None,) * 3)
        how = {"axes": list(range(-len(shape), 0)), "epsilon": 1e-5 if epsilon is None else epsilon}
        scale, shift = self._scale_and_shift(weight, bias, shape)
        return _alone(self._emit(relax.op.nn.layer_norm(self.env[x], scale, shift, **how)))

    def _concat(self, node: fx.Node) -> relax.Var:
        """Concatenate without the empty parts, which PyTorch takes in any shape."""
        parts = [self.env[part] for part in node.args[0] if math.prod(part.meta["val"].shape)]
        return parts[0] if len(parts) == 1 else self._emit(relax.op.concat(parts, argument(node, 1, "dim", 0)))

    def _lookup(self, node: fx.Node) -> relax.Var:
        """Look up rows of a table."""
        table, indices = (self.env[argument] for argument in node.args[:2])
        if indices.ty.dtype != "int32":
            indices = self._emit(relax.op.astype(indices, "int32"))
        return self._emit(relax.op.take(table, indices, axis=0, mode="fast"))

    def _bernoulli(self, node: fx.Node) -> relax.Var:
        drawn = self.draws.at_least(self.block_builder, tuple(node.meta["val"].shape), 1 - argument(node, 1, "p"))
        return self._emit(relax.op.astype(drawn, "float32"))

    def _safe_softmax(self, node: fx.Node) -> relax.Var:
        """Compute softmax; zeros where all numbers that share an axis are -inf."""
        x, axis, op = self.env[node.args[0]], node.args[1], relax.op
        shares = self._emit(op.nn.softmax(x, axis=axis))
        if axis in (-1, len(self.shape_of(x)) - 1) and self._is_attending(node.args[0]):
            self.forwards[node] = shares
            return shares
        # Counted, for the maximum of a row of -inf is the lowest finite number here.
        places = self._emit(op.astype(self._emit(op.greater(x, relax.const(-math.inf, "float32"))), "float32"))
        is_any = self._emit(op.greater(self._emit(op.max(places, axis, keepdims=True)), relax.const(0.0, "float32")))
        return self._emit(op.where(is_any, shares, relax.const(0.0, "float32")))

    def _is_attending(self, node: fx.Node) -> bool:
        """Return whether no row of these scores is all -inf: they have no mask, or the mask is known."""
        name = node.target.__name__ if node.op == "call_function" else ""
        if name.startswith(("view", "_unsafe_view", "expand", "mul", "div")):
            return self._is_attending(node.args[0])
        if name.startswith("add") and isinstance(node.args[1], fx.Node) and node.args[1] in self.known:
            return bool((self.known[node.args[1]] > -math.inf).any(-1).all()) and self._is_attending(node.args[0])
        return name.startswith("bmm")

    def constant(self, value: torch.Tensor) -> relax.Expr:
        """Return a tensor known before the step; where all its elements are equal, it takes no memory."""
        if not has_own_type(value):
            return stored_constant(value)
        if value._is_zerotensor():  # noqa: SLF001 - no other name
            value = torch.zeros(value.shape, dtype=value.dtype)
        array, dtype = value.detach().cpu().contiguous().numpy(), str(value.dtype).removeprefix("torch.")
        if array.ndim == 0:
            return relax.const(array, dtype)
        if array.size and (array == array.flat[0]).all():
            return self._emit(relax.op.full(list(array.shape), relax.const(array.flat[0], dtype), dtype))
        return relax.const(array, dtype)


def _alone(result: relax.Var) -> tuple[relax.Var, None, None]:
    """Return the first of an operator's three results; its gradient computes what it needs of the others."""
    return result, None, None


def dtype_of(node: fx.Node) -> str:
    """Return the element type of a node's value, by TVM's name."""
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _runs(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return the extents and strides with axes merged where neither the elements nor their order change."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        elif extent != 1:
            runs.append((extent, stride))
    return runs
