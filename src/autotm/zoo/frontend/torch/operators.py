"""What TVM's importer leaves out of training: running averages, norms, softmax of masked scores, lookups."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax

from autotm.kernels.operators import batch_norm
from autotm.model.files import BadInputError
from autotm.zoo.frontend.torch.framework import has_own_type, stored_constant
from autotm.zoo.frontend.torch.places import Places


class TrainingImporter(Places):
    """TVM's importer, with operators as they are in training.

    Attributes:
        forwards: what operators gave whose gradients need it.
    """

    forwards: dict[fx.Node, relax.Var]

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Conversions by name of PyTorch's operator."""
        return {
            **super().create_convert_map(),
            "_safe_softmax.default": self._safe_softmax,
            "_native_batch_norm_legit_functional.default": self._batch_norm_training,
            "_native_batch_norm_legit.no_stats": self._batch_norm_of_batch,
            "_native_batch_norm_legit_no_training.default": self._batch_norm_fixed,
            "bernoulli.p": self._bernoulli,
            "cat.default": self._concat,
            "embedding.default": self._lookup,
            "native_layer_norm.default": lambda node: (self._layer_norm_any(node), None, None),
        }

    def _batch_norm_training(self, node: fx.Node) -> tuple[Any, ...]:
        """(y, _, _, new running mean, new running variance)."""
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
        new = self.block_builder.call_te(batch_norm.running_averages, *moments, *old, momentum, epsilon, count)
        new = self._emit(new)
        return (y, None, None, *(self._emit(relax.TupleGetItem(new, index)) for index in range(2)))

    def _batch_norm_of_batch(self, node: fx.Node) -> tuple[Any, ...]:
        """Without running averages: the batch's own statistics, in training and after it."""
        x, weight, bias, _training, _momentum, epsilon = node.args
        return (self._normalised(node, x, weight, bias, epsilon)[0], None, None)

    def _normalised(self, node: fx.Node, x: fx.Node, weight: Any, bias: Any, epsilon: float) -> tuple[relax.Var, ...]:
        """(y, mean, 1 / sqrt(variance + epsilon)): what our rules make of a batch norm without running averages."""
        channels = int(self.shape_of(self.env[x])[1])
        scale, shift = (self._whole(item, [channels], value) for item, value in ((weight, 1.0), (bias, 0.0)))
        zero, one = (self._whole(None, [channels], value) for value in (0.0, 1.0))
        found = self._emit(
            relax.op.nn.batch_norm(self.env[x], scale, shift, zero, one, axis=1, epsilon=epsilon, momentum=1.0)
        )
        self.forwards[node] = found
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
        """Rows of a table."""
        table, indices = (self.env[argument] for argument in node.args[:2])
        if indices.ty.dtype != "int32":
            indices = self._emit(relax.op.astype(indices, "int32"))
        return self._emit(relax.op.take(table, indices, axis=0, mode="fast"))

    def _bernoulli(self, node: fx.Node) -> relax.Var:
        share = node.args[1] if len(node.args) > 1 else node.kwargs["p"]
        drawn = self.draws.at_least(self.block_builder, tuple(node.meta["val"].shape), 1 - share)
        return self._emit(relax.op.astype(drawn, "float32"))

    def _safe_softmax(self, node: fx.Node) -> relax.Var:
        """Softmax; zeros where all numbers that share an axis are -inf."""
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
        """Whether no row of these scores is -inf all over: nothing masks them, or a mask that is known."""
        name = node.target.__name__ if node.op == "call_function" else ""
        if name.startswith(("view", "_unsafe_view", "expand", "mul", "div")):
            return self._is_attending(node.args[0])
        if name.startswith("add") and isinstance(node.args[1], fx.Node) and node.args[1] in self.known:
            return bool((self.known[node.args[1]] > -math.inf).any(-1).all()) and self._is_attending(node.args[0])
        return name.startswith("bmm")

    def constant(self, value: torch.Tensor) -> relax.Expr:
        """A tensor known before the step; where all its elements are equal, it takes no memory."""
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
