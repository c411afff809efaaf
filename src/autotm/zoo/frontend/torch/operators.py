"""What TVM's importer leaves out of training: running averages, dropout, attention as products, lookups."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax

from autotm.kernels.operators import batch_norm
from autotm.model.files import BadInputError
from autotm.zoo.frontend.torch.formulas import Formulas, argument


class TrainingImporter(Formulas):
    """TVM's importer, with operators as they are in training."""

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Conversions by name of PyTorch's operator."""
        return {
            **super().create_convert_map(),
            "_native_batch_norm_legit_functional.default": self._batch_norm_training,
            "_native_batch_norm_legit.no_stats": self._batch_norm_of_batch,
            "_native_batch_norm_legit_no_training.default": self._batch_norm_fixed,
            "batch_norm.default": self._batch_norm_fixed,
            "bernoulli.p": self._bernoulli,
            "cat.default": self._concat,
            "clone.default": lambda node: self.env[node.args[0]],
            "dropout.default": self._dropout,
            "embedding.default": self._lookup,
            "layer_norm.default": self._layer_norm_any,
            "native_dropout.default": lambda node: (self._dropout(node),),
            "native_layer_norm.default": lambda node: (self._layer_norm_any(node),),
            "scaled_dot_product_attention.default": self._attention,
        }

    def _batch_norm_training(self, node: fx.Node) -> tuple[Any, ...]:
        """(y, _, _, new running mean, new running variance)."""
        x, weight, bias, mean, variance, training, momentum, epsilon = node.args
        if not training:
            fixed = self._batch_norm_by(x, weight, bias, mean, variance, epsilon)
            return (fixed, None, None, self.env[mean], self.env[variance])
        y, *moments = self._normalised(x, weight, bias, epsilon)
        batch, _, *rest = (int(extent) for extent in self.shape_of(self.env[x]))
        old = (self.env[mean], self.env[variance])
        count = batch * math.prod(rest)
        if count == 1:
            raise BadInputError(f"batch norm of {node.meta['val'][0].shape}: one value a channel has no variance")
        new = self.block_builder.call_te(batch_norm.running_averages, *moments, *old, momentum, epsilon, count)
        new = self._emit(new)
        return (y, None, None, *(self._emit(relax.TupleGetItem(new, index)) for index in range(2)))

    def _batch_norm_of_batch(self, node: fx.Node) -> tuple[Any, ...]:
        """Without running averages: the batch's own statistics, in training and after it."""
        x, weight, bias, _training, _momentum, epsilon = node.args
        return (self._normalised(x, weight, bias, epsilon)[0], None, None)

    def _normalised(self, x: fx.Node, weight: Any, bias: Any, epsilon: float) -> tuple[relax.Var, ...]:
        """(y, mean, 1 / sqrt(variance + epsilon)): what our rules make of a batch norm without running averages."""
        channels = int(self.shape_of(self.env[x])[1])
        scale, shift = (self._whole(item, [channels], value) for item, value in ((weight, 1.0), (bias, 0.0)))
        zero, one = (self._whole(None, [channels], value) for value in (0.0, 1.0))
        found = self._emit(
            relax.op.nn.batch_norm(self.env[x], scale, shift, zero, one, axis=1, epsilon=epsilon, momentum=1.0)
        )
        return tuple(self._emit(relax.TupleGetItem(found, index)) for index in range(3))

    def _batch_norm_fixed(self, node: fx.Node) -> tuple[Any, ...]:
        """By given statistics: a scale and a shift of each channel."""
        x, weight, bias, mean, variance, *rest = node.args
        return (self._batch_norm_by(x, weight, bias, mean, variance, rest[-1]), None, None)

    def _batch_norm_by(self, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> relax.Var:
        op, data = relax.op, self.env[x]
        inverse = self._emit(op.rsqrt(self._emit(op.add(self.env[variance], relax.const(epsilon, "float32")))))
        scale = inverse if weight is None else self._emit(op.multiply(self.env[weight], inverse))
        shift = self._emit(op.negative(self._emit(op.multiply(self.env[mean], scale))))
        shift = shift if bias is None else self._emit(op.add(shift, self.env[bias]))
        shape = [1, -1] + [1] * (len(self.shape_of(data)) - 2)
        scaled = self._emit(op.multiply(data, self._emit(op.reshape(scale, shape))))
        return self._emit(op.add(scaled, self._emit(op.reshape(shift, shape))))

    def _layer_norm_any(self, node: fx.Node) -> relax.Var:
        x, shape, weight, bias, epsilon, *_ = (*node.args, *(None,) * 3)
        epsilon = 1e-5 if epsilon is None else epsilon
        axes = list(range(-len(shape), 0))
        scale, shift = (self._whole(item, shape, value) for item, value in ((weight, 1.0), (bias, 0.0)))
        return self._emit(relax.op.nn.layer_norm(self.env[x], scale, shift, axes=axes, epsilon=epsilon))

    def _concat(self, node: fx.Node) -> relax.Var:
        """Without the empty parts, which PyTorch takes in any shape."""
        parts = [self.env[part] for part in node.args[0] if math.prod(part.meta["val"].shape)]
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        return parts[0] if len(parts) == 1 else self._emit(relax.op.concat(parts, axis))

    def _lookup(self, node: fx.Node) -> relax.Var:
        """Rows of a table; the row for padding passes no gradient on."""
        table, indices = (self.env[argument] for argument in node.args[:2])
        if argument(node, 3, "scale_grad_by_freq"):
            raise BadInputError("scale_grad_by_freq=True has no kernel here")
        padding = argument(node, 2, "padding_idx", -1)
        if indices.ty.dtype != "int32":
            indices = self._emit(relax.op.astype(indices, "int32"))
        rows = self._emit(relax.op.take(table, indices, axis=0, mode="fast"))
        if padding is None or padding < 0:
            return rows
        is_padding = self._emit(relax.op.equal(indices, relax.const(padding, "int32")))
        is_padding = self._emit(relax.op.expand_dims(is_padding, -1))
        return self._emit(relax.op.where(is_padding, self._emit(relax.op.grad.no_grad(rows)), rows))

    def _dropout(self, node: fx.Node) -> relax.Var:
        x, share, training = (*node.args, True)[:3]
        return self._dropped(self.env[x], share) if training and share else self.env[x]

    def _dropped(self, x: relax.Expr, share: float) -> relax.Var:
        """Zero with that probability, else divided by the probability that it is not."""
        op = relax.op
        if share >= 1:
            return self._emit(op.multiply(x, relax.const(0.0, "float32")))
        is_kept = self.draws.at_least(self.block_builder, self.shape_of(x), share)
        scaled = self._emit(op.multiply(x, relax.const(1 / (1 - share), "float32")))
        return self._emit(op.where(is_kept, scaled, relax.const(0.0, "float32")))

    def _bernoulli(self, node: fx.Node) -> relax.Var:
        share = node.args[1] if len(node.args) > 1 else node.kwargs["p"]
        drawn = self.draws.at_least(self.block_builder, tuple(node.meta["val"].shape), 1 - share)
        return self._emit(relax.op.astype(drawn, "float32"))

    def _attention(self, node: fx.Node) -> relax.Var:
        """softmax(scale q k^T + mask) v, as `torch.nn.functional.scaled_dot_product_attention` defines it."""
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        query, key, value = (self.env[given[name]] for name in names[:3])
        if given.get("enable_gqa"):
            times = int(self.shape_of(query)[-3]) // int(self.shape_of(key)[-3])
            key, value = (self._emit(relax.op.repeat(item, times, axis=-3)) for item in (key, value))
        rank = len(self.shape_of(query))
        scale = given.get("scale") or 1 / math.sqrt(int(self.shape_of(query)[-1]))
        turned = self._emit(relax.op.permute_dims(key, [*range(rank - 2), rank - 1, rank - 2]))
        scores = self._emit(relax.op.matmul(query, turned))
        scores = self._emit(relax.op.multiply(scores, relax.const(scale, "float32")))
        mask = given.get("attn_mask")
        if mask is not None:
            scores = self._masked(scores, self.env[mask])
        if given.get("is_causal"):
            rows, columns = [int(extent) for extent in self.shape_of(scores)][-2:]
            scores = self._masked(scores, self.constant(torch.ones(rows, columns, dtype=torch.bool).tril()))
        shares = self._emit(relax.op.nn.softmax(scores, axis=-1))
        if mask is not None and not (mask in self.known and self.known[mask].any(-1).all()):
            shares = self._attended(shares, self.env[mask])
        if given.get("dropout_p"):
            shares = self._dropped(shares, given["dropout_p"])
        return self._emit(relax.op.matmul(shares, value))

    def _masked(self, scores: relax.Var, mask: relax.Expr) -> relax.Var:
        if mask.ty.dtype != "bool":
            return self._emit(relax.op.add(scores, mask))
        # Not -inf: a row without any place left would become NaN; `_attended` makes it zero.
        return self._emit(relax.op.where(mask, scores, relax.const(-1e30, "float32")))

    def _attended(self, shares: relax.Var, mask: relax.Expr) -> relax.Var:
        """Shares of places, none where a row of the mask leaves no place."""
        if mask.ty.dtype != "bool":
            return shares
        op, counts = relax.op, self._emit(relax.op.astype(mask, "float32"))
        is_any = self._emit(op.greater(self._emit(op.max(counts, -1, keepdims=True)), relax.const(0.0, "float32")))
        return self._emit(op.where(is_any, shares, relax.const(0.0, "float32")))

    def constant(self, value: torch.Tensor) -> relax.Expr:
        """A tensor known before the step; where all its elements are equal, it takes no memory.

        Raises:
            BadInputError: it is of a kind that has no kernels.
        """
        if value.is_floating_point() and value.dtype != torch.float32:
            raise BadInputError(f"a constant of the module is {value.dtype}; kernels compute in float32: call .float()")
        array, dtype = value.detach().cpu().contiguous().numpy(), str(value.dtype).removeprefix("torch.")
        if array.ndim == 0:
            return relax.const(array, dtype)
        if array.size and (array == array.flat[0]).all():
            return self._emit(relax.op.full(list(array.shape), relax.const(array.flat[0], dtype), dtype))
        return relax.const(array, dtype)
