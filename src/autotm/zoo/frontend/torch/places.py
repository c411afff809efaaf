"""Parts of tensors that indices, slices and strides name: read, replaced, added to."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from tvm import relax

from autotm.model.files import BadInputError
from autotm.zoo.frontend.torch.formulas import Formulas, argument, dtype_of
from autotm.zoo.network import gradient_by

SAME = (torch.ops.aten.alias.default, torch.ops.aten.detach.default, torch.ops.aten.clone.default)
"""Operators whose result equals their operand."""
_NEGATIVE = torch.tensor(-1)
"""Stands for indices whose values are not known before the step: they may be negative."""
_RANKED = ("sort", "topk", "max.dim", "min.dim", "argmax", "argmin", "kthvalue", "median.dim")
"""Operators whose indices along an axis differ from each other."""


class Places(Formulas):
    """TVM's importer, with reading and writing of parts as PyTorch does both."""

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Conversions by name of PyTorch's operator."""
        base = super().create_convert_map()
        return {
            **base,
            "as_strided.default": self._strided,
            "as_strided_scatter.default": self._strided_put,
            "index.Tensor": self._indexed(base["index.Tensor"]),
            "index_put.default": self._index_put,
            "max.dim": self._extremum_with_place(relax.op.max, relax.op.argmax),
            "min.dim": self._extremum_with_place(relax.op.min, relax.op.argmin),
            "new_empty_strided.default": self._empty_like_node,
            "scatter.src": self._scattered(base["scatter.src"]),
            "scatter.value": self._scattered(base["scatter.value"]),
            "scatter_add.default": self._scatter_added,
            "select.int": self._selected,
            "select_scatter.default": self._slice_put,
            "slice_scatter.default": self._slice_put,
            "unfold.default": self._windows,
            "unfold_backward.default": self._windows_gradient,
        }

    # --- indices -----------------------------------------------------------------------------------------------------
    def _indexed(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        def converted(node: fx.Node) -> Any:
            x, several = node.args
            return convert(node) if any(map(_is_mask, several)) else self.entries_at(self.env[x], several)

        return converted

    def entries_at(self, x: relax.Expr, several: Sequence[fx.Node | None]) -> relax.Var:
        """Entries that indices name, along some axes together; from the end where an index is negative."""
        axes = [axis for axis, item in enumerate(several) if item is not None]
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

    def _index_put(self, node: fx.Node) -> relax.Var:
        """Values in the place of entries that indices name, or added to them."""
        tensor, several, values = node.args[:3]
        if any(map(_is_mask, several)):
            return self._mask_put(tensor, several, values)
        if argument(node, 3, "accumulate"):
            x = self.zeros(tensor.meta["val"].shape, dtype_of(tensor))
            read = self.entries_at(x, several)
            slope = self._emit(relax.op.broadcast_to(self.env[values], self.shape_of(read)))
            return self.added(tensor, gradient_by(self.block_builder, x, read, slope))
        # The number of each entry, read by the same indices: where each value goes, in a tensor of one axis.
        x, shape = self.env[tensor], [int(extent) for extent in tensor.meta["val"].shape]
        numbers = relax.const(np.arange(math.prod(shape), dtype=np.int64).reshape(shape), "int64")
        places = self.entries_at(numbers, several)
        values = self._emit(relax.op.broadcast_to(self.env[values], self.shape_of(places)))
        flat, places, values = (self._emit(relax.op.reshape(each, [-1])) for each in (x, places, values))
        return self._emit(relax.op.reshape(self._emit(relax.op.scatter_elements(flat, places, values, 0)), shape))

    def _mask_put(self, tensor: fx.Node, several: Sequence[fx.Node | None], values: fx.Node) -> relax.Var:
        x = self.env[tensor]
        if len(several) != 1 or math.prod(values.meta["val"].shape) != 1:
            raise BadInputError("values for the places of a mask must be one number here; use torch.where")
        mask, rank = self.env[several[0]], len(self.shape_of(x))
        mask = self._emit(relax.op.reshape(mask, [*self.shape_of(mask), *[1] * (rank - len(self.shape_of(mask)))]))
        value = self._emit(relax.op.reshape(self.env[values], [1] * rank))
        return self._emit(relax.op.where(mask, value, x))

    def _scattered(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """Values in the place of those with an index for each along an axis."""

        def converted(node: fx.Node) -> Any:
            tensor, axis, indices, source = node.args[:4]
            shape, own = ([int(extent) for extent in each.meta["val"].shape] for each in (tensor, indices))
            axis = axis % len(shape) if shape else 0
            others = [extent for other, extent in enumerate(shape) if other != axis]
            if shape and own == [*shape[:axis], 1, *shape[axis + 1 :]]:
                numbers = self._emit(relax.op.arange(0, shape[axis], 1, dtype_of(indices)))
                numbers = self._emit(relax.op.reshape(numbers, [-1, *[1] * (len(shape) - axis - 1)]))
                is_here = self._emit(relax.op.equal(self.env[indices], numbers))
                value, rest = (self._argument_as(each, dtype_of(node)) for each in (source, tensor))
                return self._emit(relax.op.where(is_here, value, rest))
            is_ranked = str(source_of(indices).target).removeprefix("aten.").startswith(_RANKED)
            same = [extent for other, extent in enumerate(own) if other != axis] == others
            if is_ranked and same and self.is_zero(tensor) and isinstance(source, fx.Node):
                x = self.zeros(shape, dtype_of(tensor))
                read = self._emit(relax.op.gather_elements(x, self.env[indices], axis))
                return gradient_by(self.block_builder, x, read, self.env[source])
            return convert(node)

        return converted

    def _scatter_added(self, node: fx.Node) -> relax.Var:
        tensor, axis, indices, source = node.args
        x = self.zeros(tensor.meta["val"].shape, dtype_of(tensor))
        own = [int(extent) for extent in indices.meta["val"].shape]
        read = self._emit(relax.op.gather_elements(x, self.env[indices], axis))
        slope = self.env[source]
        if own != [int(extent) for extent in self.shape_of(slope)]:
            axes = list(range(len(own)))
            slope = self._emit(relax.op.strided_slice(slope, axes, [0] * len(own), own))
        return self.added(tensor, gradient_by(self.block_builder, x, read, slope))

    def _extremum_with_place(
        self, value: Callable[..., relax.Expr], place: Callable[..., relax.Expr]
    ) -> Callable[[fx.Node], tuple[relax.Var, relax.Var]]:
        """The largest or smallest along an axis, and where the first such lies."""

        def converted(node: fx.Node) -> tuple[relax.Var, relax.Var]:
            x, axis, keeps = self.env[node.args[0]], node.args[1], bool(argument(node, 2, "keepdim"))
            is_bool = str(x.ty.dtype.dtype) == "bool"
            if is_bool:
                x = self._emit(relax.op.astype(x, "int32"))
            found = self._emit(value(x, [axis], keepdims=keeps))
            return (
                self._emit(relax.op.astype(found, "bool")) if is_bool else found,
                self._emit(place(x, axis, keepdims=keeps)),
            )

        return converted

    # --- slices ------------------------------------------------------------------------------------------------------
    def _selected(self, node: fx.Node) -> relax.Var:
        """One place of an axis, as a slice: where an axis lies does not matter to it."""
        x, axis, place = self.env[node.args[0]], node.args[1], node.args[2]
        shape = [int(extent) for extent in self.shape_of(x)]
        axis, place = axis % len(shape), place % shape[axis]
        part = self._emit(relax.op.strided_slice(x, [axis], [place], [place + 1]))
        return self._emit(relax.op.reshape(part, [*shape[:axis], *shape[axis + 1 :]]))

    def _slice_put(self, node: fx.Node) -> relax.Var:
        """A part of a tensor replaced."""
        tensor, part, *rest = node.args
        axis, *bounds = (*rest, 0)[: max(1, len(rest))]
        shape = [int(extent) for extent in tensor.meta["val"].shape]
        axis, value = axis % len(shape), self.env[part]
        if "select" in node.target.__name__:
            begin = bounds[0] % shape[axis]
            end, step, value = begin + 1, 1, self._emit(relax.op.expand_dims(value, axis))
        else:
            begin, end, step = slice(*(*bounds, None, None, None)[:3]).indices(shape[axis])
        if (begin, end, step) == (0, shape[axis], 1):
            return value
        if self.is_zero(tensor) and tensor.meta["val"].is_floating_point():
            x = self.zeros(shape)
            part_of_it = self._emit(relax.op.strided_slice(x, [axis], [begin], [end], [step]))
            return gradient_by(self.block_builder, x, part_of_it, value)
        x = self.env[tensor]
        if step != 1:
            return self._emit(relax.op.slice_scatter(x, value, begin, end, step, axis))
        around = [
            [self._emit(relax.op.strided_slice(x, [axis], [first], [last]))] if last > first else []
            for first, last in ((0, begin), (end, shape[axis]))
        ]
        return self._emit(relax.op.concat([*around[0], value, *around[1]], axis))

    # --- strides -----------------------------------------------------------------------------------------------------
    def _strided(self, node: fx.Node) -> relax.Var:
        x, numbers = self.env[node.args[0]], _numbers(node.args[0], *node.args[1:])
        shape = [int(extent) for extent in self.shape_of(x)]
        if (bounds := _as_slice(numbers, shape)) is not None:
            part = self._emit(relax.op.strided_slice(x, list(range(len(shape))), *bounds))
        else:
            flat = self._emit(relax.op.reshape(x, [math.prod(shape)]))
            part = self._emit(relax.op.take(flat, relax.const(numbers.reshape(-1), "int64"), axis=0, mode="fast"))
        return self._emit(relax.op.reshape(part, list(numbers.shape)))

    def _strided_put(self, node: fx.Node) -> relax.Var:
        """A view by strides replaced: of every element, which of the view takes its place."""
        tensor, part, *strides = node.args
        shape = [int(extent) for extent in tensor.meta["val"].shape]
        numbers = _numbers(tensor, *strides)
        if numbers.size == math.prod(shape) and (numbers.reshape(-1) == np.arange(numbers.size)).all():
            return self._emit(relax.op.reshape(self.env[part], shape))
        sources, is_there = np.zeros(math.prod(shape), np.int64), np.zeros(math.prod(shape), bool)
        sources[numbers.reshape(-1)], is_there[numbers.reshape(-1)] = np.arange(numbers.size), True
        flat = self._emit(relax.op.reshape(self.env[part], [numbers.size]))
        put = self._emit(relax.op.take(flat, relax.const(sources.reshape(shape), "int64"), axis=0, mode="fast"))
        return self._emit(relax.op.where(relax.const(is_there.reshape(shape), "bool"), put, self.env[tensor]))

    def _windows(self, node: fx.Node) -> relax.Var:
        return self._windows_of(self.env[node.args[0]], *node.args[1:])

    def _windows_of(self, x: relax.Expr, axis: int, size: int, step: int) -> relax.Var:
        """Windows along an axis, their places last."""
        rank, extent = len(self.shape_of(x)), int(self.shape_of(x)[axis])
        axis %= rank
        places = np.arange(0, extent - size + 1, step)[:, None] + np.arange(size)
        found = self._emit(relax.op.take(x, relax.const(places, "int64"), axis=axis, mode="fast"))
        order = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
        return self._emit(relax.op.permute_dims(found, order))

    def _windows_gradient(self, node: fx.Node) -> relax.Var:
        slope, shape, *windows = node.args
        x = self.zeros(shape)
        return gradient_by(self.block_builder, x, self._windows_of(x, *windows), self.env[slope])

    def _empty_like_node(self, node: fx.Node) -> relax.Var:
        return self.zeros(node.meta["val"].shape, dtype_of(node))

    # --- zeros -------------------------------------------------------------------------------------------------------
    def zeros(self, shape: Sequence[int], dtype: str = "float32") -> relax.Var:
        """A tensor of zeros; where only its shape is asked for, it is never computed."""
        return self._emit(relax.op.full([int(extent) for extent in shape], relax.const(0, dtype), dtype))

    def is_zero(self, node: fx.Node) -> bool:
        """Whether all elements of a node are known to be zero."""
        return node in self.known and not self.known[node].any()

    def added(self, node: fx.Node, more: relax.Var) -> relax.Var:
        """A node's value and something more."""
        return more if self.is_zero(node) else self._emit(relax.op.add(self.env[node], more))


def _is_mask(index: fx.Node | None) -> bool:
    return index is not None and index.meta["val"].dtype == torch.bool


def source_of(node: fx.Node) -> fx.Node:
    """Return the node whose operator computes what a node passes on."""
    while node.target is operator.getitem or node.target in SAME:
        node = node.args[0]
    return node


def _numbers(node: fx.Node, size: Sequence[int], stride: Sequence[int], offset: int | None = 0) -> npt.NDArray[Any]:
    """The elements of a tensor that lie at these strides, each by its number in the tensor's order."""
    tensor = node.meta["val"]
    shape, strides = [int(extent) for extent in tensor.shape], [int(each) for each in tensor.stride()]
    count = 1 + sum((extent - 1) * each for extent, each in zip(shape, strides, strict=True))
    stored = torch.zeros(count, dtype=torch.int64)
    stored.as_strided(shape, strides).copy_(torch.arange(math.prod(shape)).view(shape))
    found: npt.NDArray[Any] = stored.as_strided(list(size), list(stride), offset or 0).numpy()
    return found


def _as_slice(numbers: npt.NDArray[Any], shape: Sequence[int]) -> tuple[list[int], list[int], list[int]] | None:
    """Begins, ends and steps of the slice that has these elements, if one has them."""
    if not numbers.size:
        return None
    table = np.arange(math.prod(shape)).reshape(shape)
    used = [np.unique(places) for places in np.unravel_index(numbers.reshape(-1), shape)]
    steps = [int(places[1] - places[0]) if len(places) > 1 else 1 for places in used]
    begins, ends = [int(places[0]) for places in used], [int(places[-1]) + 1 for places in used]
    part = table[tuple(slice(*each) for each in zip(begins, ends, steps, strict=True))]
    is_same = part.size == numbers.size and (part.reshape(-1) == numbers.reshape(-1)).all()
    return (begins, ends, steps) if is_same else None
