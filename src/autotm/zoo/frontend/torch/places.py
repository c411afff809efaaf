"""Parts of tensors that indices and slices name: read, and put among zeros as their gradients are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from tvm import relax

from autotm.model.files import BadInputError
from autotm.zoo.frontend.torch.formulas import Formulas, dtype_of
from autotm.zoo.frontend.torch.rare import argument
from autotm.zoo.network import gradient_by

_NEGATIVE = torch.tensor(-1)
"""Stands for indices whose values are not known before the step: they may be negative."""


class Places(Formulas):
    """TVM's importer, with reading and writing of parts as PyTorch does both."""

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Conversions by name of PyTorch's operator."""
        return {
            **super().create_convert_map(),
            "as_strided.default": lambda node: self._strided(node, node.args[0], node.args[0], *node.args[1:]),
            "as_strided_scatter.default": lambda node: self._strided(node, *node.args),
            "index.Tensor": lambda node: self._entries_at(self.env[node.args[0]], node.args[1]),
            "index_put.default": self._index_added,
            "new_empty_strided.default": lambda node: self.zeros(node.meta["val"].shape, dtype_of(node)),
            "scatter.src": self._put_in_lines,
            "scatter.value": self._put_in_lines,
            "scatter_add.default": self._scatter_added,
            "select.int": self._selected,
            "select_scatter.default": self._slice_put,
            "slice_scatter.default": self._slice_put,
        }

    # --- indices -----------------------------------------------------------------------------------------------------
    def _entries_at(self, x: relax.Expr, several: Sequence[fx.Node | None]) -> relax.Var:
        """Entries that indices name, along some axes together; from the end where an index is negative."""
        axes = [axis for axis, item in enumerate(several) if item is not None]
        if any(several[axis].meta["val"].dtype == torch.bool for axis in axes):
            raise BadInputError("a mask has no kernel here")
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

    def _index_added(self, node: fx.Node) -> relax.Var:
        """Values added to the entries that indices name."""
        tensor, several, values = node.args[:3]
        if not argument(node, 3, "accumulate"):
            raise BadInputError("accumulate=False has no kernel here")
        x = self.zeros(tensor.meta["val"].shape, dtype_of(tensor))
        read = self._entries_at(x, several)
        slope = self._emit(relax.op.broadcast_to(self.env[values], self.shape_of(read)))
        return self._added(tensor, gradient_by(self.block_builder, x, read, slope))

    def _put_in_lines(self, node: fx.Node) -> relax.Var:
        """A value put into each line along an axis, where an index names the place: safe for every index."""
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

    def _scatter_added(self, node: fx.Node) -> relax.Var:
        """Values added where there is an index for each along an axis."""
        tensor, axis, indices, source = node.args
        if source.meta["val"].shape != indices.meta["val"].shape:
            raise BadInputError("fewer indices than values have no kernel here")
        x = self.zeros(tensor.meta["val"].shape, dtype_of(tensor))
        read = self._emit(relax.op.gather_elements(x, self.env[indices], axis))
        return self._added(tensor, gradient_by(self.block_builder, x, read, self.env[source]))

    # --- slices ------------------------------------------------------------------------------------------------------
    def _selected(self, node: fx.Node) -> relax.Var:
        """One place of an axis, as a slice: where an axis lies does not matter to it."""
        x, axis, place = self.env[node.args[0]], node.args[1], node.args[2]
        shape = [int(extent) for extent in self.shape_of(x)]
        axis, place = axis % len(shape), place % shape[axis]
        part = self._emit(relax.op.strided_slice(x, [axis], [place], [place + 1]))
        return self._emit(relax.op.reshape(part, [*shape[:axis], *shape[axis + 1 :]]))

    def _slice_put(self, node: fx.Node) -> relax.Var:
        """A part in the place of another, or among zeros, as the gradient of a slice is."""
        tensor, part, axis, *bounds = (*node.args, *[0][len(node.args) - 2 :])
        shape = [int(extent) for extent in tensor.meta["val"].shape]
        axis, value = axis % len(shape), self.env[part]
        if "select" in node.target.__name__:
            begin = bounds[0] % shape[axis]
            end, step, value = begin + 1, 1, self._emit(relax.op.expand_dims(value, axis))
        else:
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
        """A tensor's elements by strides, or a part in their place: of all of them in their order, a reshape."""
        lying = tensor.meta["val"]
        is_same = _runs(lying.shape, lying.stride()) == _runs(size, stride)
        if not is_same or offset not in (None, lying.storage_offset()):
            raise BadInputError("other strides have no kernel here")
        return self._emit(relax.op.reshape(self.env[part], list(node.meta["val"].shape)))

    # --- zeros -------------------------------------------------------------------------------------------------------
    def zeros(self, shape: Sequence[int], dtype: str = "float32") -> relax.Var:
        """A tensor of zeros; where only its shape is asked for, it is never computed."""
        return self._emit(relax.op.full([int(extent) for extent in shape], relax.const(0, dtype), dtype))

    def _is_zero(self, node: fx.Node) -> bool:
        """Whether all elements of a node are known to be zero."""
        return node in self.known and not self.known[node].any()

    def _added(self, node: fx.Node, more: relax.Var) -> relax.Var:
        """A node's value and something more."""
        return more if self._is_zero(node) else self._emit(relax.op.add(self.env[node], more))


def _runs(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Extents and strides of as few axes as have the same elements in the same order."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        elif extent != 1:
            runs.append((extent, stride))
    return runs
