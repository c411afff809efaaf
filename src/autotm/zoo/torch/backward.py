"""Operators of a backward pass as PyTorch captures it: each as the gradient of its forward operator.

`autotm.zoo.network.gradient_of` marks such a gradient; lowering puts the rule of the operator in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax

from autotm.model.errors import BadInputError
from autotm.zoo.network import gradient_by, gradient_of
from autotm.zoo.torch.framework import SAME, source_of
from autotm.zoo.torch.operators import ForwardImporter

_LINES, _KERNELS = ("NCW", "NCHW", "NCDHW"), ("OIW", "OIHW", "OIDHW")
_TRANSPOSED = ("IOW", "IOHW", "IODHW")
_VOLUME = 3
"""Axes of a convolution over volumes."""
_ATEN = torch.ops.aten
_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default)  # noqa: SLF001 - an operator's name


class JointImporter(ForwardImporter):
    """Forward and backward operators of a joint graph.

    Attributes:
        products: products of batches of matrices, in the axes that were made one batch.
    """

    products: dict[fx.Node, relax.Var]

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Return the conversions by name of PyTorch's operator."""
        base = super().create_convert_map()
        forwards = {
            name: self._kept(base[name])
            for name in (
                "_adaptive_avg_pool2d.default", "_log_softmax.default", "_softmax.default",
                "max_pool2d_with_indices.default", "native_group_norm.default", "native_layer_norm.default",
            )
        }  # fmt: skip
        return {
            **base,
            **forwards,
            **dict.fromkeys(("view.default", "_unsafe_view.default", "reshape.default"), self._viewed),
            "_adaptive_avg_pool2d_backward.default": self._mean_gradient,
            "_log_softmax_backward_data.default": self._softmax_gradient,
            "_softmax_backward_data.default": self._softmax_gradient,
            **dict.fromkeys(("alias.default", "clone.default", "detach.default"), lambda node: self.env[node.args[0]]),
            "avg_pool2d_backward.default": self._mean_gradient,
            "bmm.default": self._batched_product,
            "convolution_backward.default": self._convolution_gradient,
            "embedding_dense_backward.default": self._lookup_gradient,
            "max_pool2d_with_indices_backward.default": lambda node: gradient_by(
                self.block_builder, self.env[node.args[1]], self._forward_of(node.args[-1]), self.env[node.args[0]]
            ),
            "native_batch_norm_backward.default": self._batch_norm_gradient,
            "native_dropout.default": self._dropout_with_mask,
            "native_dropout_backward.default": self._dropout_gradient,
            "native_group_norm_backward.default": self._norm_gradient,
            "native_layer_norm_backward.default": self._norm_gradient,
            "upsample_bilinear2d_backward.default": self._resized_gradient,
            "upsample_nearest2d_backward.default": self._resized_gradient,
        }

    def _kept(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """Return a conversion that also keeps the operator's result for its gradient."""

        def converted(node: fx.Node) -> Any:
            result = convert(node)
            self.forwards[node] = result[0] if isinstance(result, tuple) else result
            return result

        return converted

    def _forward_of(self, node: fx.Node) -> relax.Var:
        """Return the result of the forward operator that a node is a result of."""
        source = source_of(node)
        if source not in self.forwards:
            raise BadInputError("what it is the gradient of is not in the graph")
        return self.forwards[source]

    def _convolution_gradient(self, node: fx.Node) -> tuple[Any, ...]:
        dy, x, w, _, strides, padding, dilation, is_transposed, more, groups, wanted = node.args
        dy, x, w = (self.env[item] for item in (dy, x, w))
        rank = len(strides)
        named: dict[str, Any] = {
            "strides": strides, "padding": [*padding, *padding], "dilation": dilation, "groups": groups,
            "data_layout": _LINES[rank - 1], "kernel_layout": (_TRANSPOSED if is_transposed else _KERNELS)[rank - 1],
        }  # fmt: skip
        if is_transposed:
            named["output_padding"] = more
        if is_transposed and rank == _VOLUME:
            raise BadInputError("a transposed convolution of volumes has no gradient here")
        convolution = getattr(relax.op.nn, f"conv{rank}d{'_transpose' if is_transposed else ''}")
        slopes: list[Any] = [None, None]
        if any(wanted[:2]):
            slopes = gradient_of(self.block_builder, self._emit(convolution(x, w, **named)), dy, [x, w])
        by_bias = self._emit(relax.op.sum(dy, [0, *range(2, rank + 2)])) if wanted[2] else None
        return (*slopes, by_bias)

    def _batch_norm_gradient(self, node: fx.Node) -> tuple[Any, ...]:
        """Compute a batch norm's gradients by data, scale and shift."""
        dy, x, weight, mean, variance, saved, _, is_training, epsilon, _ = node.args
        x, channels = self.env[x], [int(extent) for extent in node.args[1].meta["val"].shape[1:2]]
        scale, shift = self._whole(weight, channels, 1.0), self._whole(None, channels, 0.0)
        if is_training:
            results = self._forward_of(saved)
        else:
            averages = self.env[mean], self.env[variance]
            results = self._emit(
                relax.op.nn.batch_norm(x, scale, shift, *averages, 1, epsilon, momentum=1.0, training=False)
            )
        return tuple(gradient_of(self.block_builder, results, self.env[dy], [x, scale, shift]))

    def _norm_gradient(self, node: fx.Node) -> tuple[Any, ...]:
        """Compute the gradients of a layer norm or a group norm by data, scale and shift."""
        if node.target.overloadpacket is torch.ops.aten.native_layer_norm_backward:
            dy, x, shape, saved, _, weight, *_ = node.args
        else:
            dy, x, saved, _, weight, _, channels, *_ = node.args
            shape = [channels]
        operands = [self.env[x], *[self._whole(weight, list(shape), 1.0)] * 2]
        return tuple(gradient_of(self.block_builder, self._forward_of(saved), self.env[dy], operands))

    def _softmax_gradient(self, node: fx.Node) -> relax.Var:
        dy, y = (self.env[item] for item in node.args[:2])
        if (source := source_of(node.args[1])) in self.forwards:
            return gradient_of(self.block_builder, self.forwards[source], dy, [y])[0]
        # This is the gradient of `_safe_softmax`, whose rows may be zeros.
        op = relax.op
        total = self._emit(op.sum(self._emit(op.multiply(dy, y)), node.args[2], keepdims=True))
        return self._emit(op.multiply(y, self._emit(op.subtract(dy, total))))

    def _mean_gradient(self, node: fx.Node) -> relax.Var:
        dy, x = (self.env[item] for item in node.args[:2])
        if options := node.args[2:]:
            size, strides, padding, is_ceiled, counts, _ = options
            named = {"ceil_mode": is_ceiled, "count_include_pad": counts}
            y = relax.op.nn.avg_pool2d(x, size, strides or size, [*padding, *padding], **named)
        else:
            y = relax.op.nn.adaptive_avg_pool2d(x, [int(extent) for extent in self.shape_of(dy)][2:])
        return gradient_of(self.block_builder, self._emit(y), dy, [x])[0]

    def _resized_gradient(self, node: fx.Node) -> relax.Var:
        slope, size, shape, *options = node.args
        x = self.zeros(shape)
        return gradient_by(self.block_builder, x, self.resized(node, x, size, options), self.env[slope])

    def _batched_product(self, node: fx.Node) -> relax.Var:
        """Multiply matrices in the axes that they had before PyTorch made one batch of them.

        A merged batch would have to be copied wherever its axes do not lie side by side.
        """
        left, right = (self._unmerged(each) for each in node.args)
        if left is not None and right is not None and list(left.ty.shape)[:-2] == list(right.ty.shape)[:-2]:
            if _is_turned(node):  # (A B)^T is computed as B^T A^T, which saves a copy.
                product = self._emit(relax.op.matmul(self._turned(right), self._turned(left)))
                product = self._turned(product)
            else:
                product = self._emit(relax.op.matmul(left, right))
            self.products[node] = product
            return self._emit(relax.op.reshape(product, tuple(node.meta["val"].shape)))
        return self._emit(relax.op.matmul(*(self.env[each] for each in node.args)))

    def _viewed(self, node: fx.Node) -> relax.Expr:
        """Reshape a tensor; return a product of matrices as it was computed, if it was in that shape."""
        shape, product = tuple(node.meta["val"].shape), self.products.get(node.args[0])
        if product is not None and tuple(map(int, product.ty.shape)) == shape:
            return product
        return self._emit(relax.op.reshape(self.env[node.args[0]], shape))

    def _unmerged(self, node: fx.Node) -> relax.Expr | None:
        """Return the tensor that a node views with its leading axes merged, or None."""
        if node in self.products:
            return self.products[node]
        op, shape = node.target, tuple(node.meta["val"].shape)
        if op in _VIEWS:
            source = node.args[0]
            before = tuple(source.meta["val"].shape)
            return self.env[source] if before[-2:] == shape[-2:] and len(before) > len(shape) else None
        if op in SAME:
            return self._unmerged(node.args[0])
        inner = self._unmerged(node.args[0]) if _is_transposition(node) else None
        return None if inner is None else self._turned(inner)

    def _turned(self, matrices: relax.Expr) -> relax.Var:
        rank = len(matrices.ty.shape)
        return self._emit(relax.op.permute_dims(matrices, [*range(rank - 2), rank - 1, rank - 2]))

    def _lookup_gradient(self, node: fx.Node) -> relax.Var:
        dy, indices, rows, padding, _ = node.args
        dy, indices = self.env[dy], self.env[indices]
        width = int(self.shape_of(dy)[-1])
        if str(indices.ty.dtype.dtype) != "int32":
            indices = self._emit(relax.op.astype(indices, "int32"))
        if padding >= 0:
            is_padding = self._emit(relax.op.equal(indices, relax.const(padding, "int32")))
            is_padding = self._emit(relax.op.expand_dims(is_padding, -1))
            dy = self._emit(relax.op.where(is_padding, self._number(0.0, dy), dy))
        count = math.prod(int(extent) for extent in self.shape_of(indices))
        dy = self._emit(relax.op.reshape(dy, (count, width)))
        indices = self._emit(relax.op.reshape(indices, (count,)))
        return self._emit(relax.op.grad.take_backward(dy, self.zeros([rows, width]), indices, 0))

    def _dropout_with_mask(self, node: fx.Node) -> tuple[relax.Var, relax.Var]:
        x, share, is_training = (*node.args, True)[:3]
        x = self.env[x]
        if is_training is False or share == 0:
            return x, self._emit(relax.op.full(self.shape_of(x), relax.const(True, "bool"), "bool"))
        is_kept = self.draws.at_least(self.block_builder, self.shape_of(x), share)
        factor = 1 / (1 - share) if share < 1 else 0.0
        scaled = self._emit(relax.op.multiply(x, self._number(factor, x)))
        return self._emit(relax.op.where(is_kept, scaled, self._number(0.0, x))), is_kept

    def _dropout_gradient(self, node: fx.Node) -> relax.Var:
        dy, is_kept = (self.env[item] for item in node.args[:2])
        scaled = self._emit(relax.op.multiply(dy, self._number(node.args[2], dy)))
        return self._emit(relax.op.where(is_kept, scaled, self._number(0.0, dy)))


def _is_transposition(node: fx.Node) -> bool:
    """Return whether a node exchanges the last two axes."""
    rank = len(node.meta["val"].shape)
    if node.target is _ATEN.transpose.int:
        return {axis % rank for axis in node.args[1:]} == {rank - 2, rank - 1}
    return node.target is _ATEN.permute.default and [axis % rank for axis in node.args[1]] == [
        *range(rank - 2), rank - 1, rank - 2
    ]  # fmt: skip


def _is_turned(node: fx.Node) -> bool:
    """Return whether a node's value is wanted with its last two axes exchanged, and not otherwise."""
    while len(node.users) == 1:
        (node,) = node.users
        if node.op == "call_function" and _is_transposition(node):
            return True
        if node.target not in (*_VIEWS, *SAME, _ATEN.mul.Scalar, _ATEN.mul.Tensor):
            return False
    return False
