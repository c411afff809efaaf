"""Normalizations by the mean and variance of groups of channels, and by the root mean square."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax

from autotm.lower.operators.rules import Ints, differentiates, dtype_of, ints, legalizes, lowered, shape_of

Emit = Callable[[relax.Expr], relax.Var]


@differentiates("relax.nn.rms_norm")
def _rms_norm_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    """With r = 1 / sqrt(mean(x^2) + eps) and g = dy w: dx = r (g - x r^2 mean(g x)), dw = sum(dy x r)."""
    (x, weight), emit, op = call.args, builder.emit, relax.op
    rank = len(shape_of(x))
    axes = sorted(axis % rank for axis in ints(call.attrs.axes))
    if axes != list(range(rank - len(axes), rank)):
        raise NotImplementedError("rms_norm has a gradient along the last axes only")
    root = _inverse_root(emit, x, axes, float(call.attrs.epsilon))
    scaled, normed = emit(op.multiply(dy, weight)), emit(op.multiply(x, root))
    shared = emit(op.mean(emit(op.multiply(scaled, normed)), axes, keepdims=True))
    inner = emit(op.subtract(scaled, emit(op.multiply(normed, shared))))
    by_weight = emit(op.multiply(dy, normed))
    others = list(range(rank - len(axes)))
    return [op.multiply(root, inner), op.sum(by_weight, others) if others else by_weight]


@legalizes("relax.nn.rms_norm")
def _rms_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x, weight), op = call.args, relax.op
    rank = len(shape_of(x))

    def emit(value: relax.Expr) -> relax.Var:
        return lowered(builder, value)

    root = _inverse_root(emit, x, [axis % rank for axis in ints(call.attrs.axes)], float(call.attrs.epsilon))
    return emit(op.multiply(emit(op.multiply(x, root)), weight))


def _inverse_root(emit: Emit, x: relax.Expr, axes: list[int], epsilon: float) -> relax.Var:
    """1 / sqrt(mean(x^2) + epsilon) over axes, which are kept."""
    op = relax.op
    square = emit(op.mean(emit(op.multiply(x, x)), axes, keepdims=True))
    return emit(op.rsqrt(emit(op.add(square, relax.const(epsilon, dtype_of(x))))))


@dataclass(frozen=True)
class _Groups:
    """The axes of a tensor whose channels are split into groups.

    Attributes:
        shape: the tensor's.
        apart: its shape with the channel axis as (groups, channels of a group).
        channel: the channel axis.
        axes: of `apart`, over which mean and variance are.
        epsilon: added to the variance.
    """

    shape: Ints
    apart: Ints
    channel: int
    axes: list[int]
    epsilon: float

    @classmethod
    def of(cls, call: relax.Call) -> _Groups:
        """Of `group_norm`; of `instance_norm`, where every channel is a group.

        Raises:
            NotImplementedError: it has no scale or no shift.
        """
        attrs, shape = call.attrs, shape_of(call)
        if not (attrs.center and attrs.scale):
            raise NotImplementedError(f"{call.op.name} is known with scale and shift only")
        channel = int(attrs.channel_axis) % len(shape)
        groups = int(attrs.num_groups) if "group" in call.op.name else shape[channel]
        apart = (*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :])
        spatial = [axis % len(shape) for axis in ints(attrs.axes)]
        # An instance's axes may name the channel's neighbours only.
        axes = sorted([channel + 1, *(axis + (axis > channel) for axis in spatial if axis != channel)])
        return cls(shape, apart, channel, axes, float(attrs.epsilon))

    def per_channel(self, emit: Emit, vector: relax.Expr) -> relax.Var:
        """A scale or shift, with an axis for each of `apart`."""
        kept = {self.channel, self.channel + 1}
        return emit(relax.op.reshape(vector, [n if axis in kept else 1 for axis, n in enumerate(self.apart)]))

    def mean(self, emit: Emit, value: relax.Expr) -> relax.Var:
        return emit(relax.op.mean(value, self.axes, keepdims=True))

    def normed(self, emit: Emit, x: relax.Expr) -> tuple[relax.Var, relax.Var]:
        """`x`, in groups, less its mean and divided by its deviation; and 1 / deviation."""
        op = relax.op
        values = emit(op.reshape(x, self.apart))
        centred = emit(op.subtract(values, self.mean(emit, values)))
        variance = self.mean(emit, emit(op.multiply(centred, centred)))
        root = emit(op.rsqrt(emit(op.add(variance, relax.const(self.epsilon, dtype_of(x))))))
        return emit(op.multiply(centred, root)), root


@legalizes("relax.nn.group_norm")
@legalizes("relax.nn.instance_norm")
def _group_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x, gamma, beta), groups, op = call.args, _Groups.of(call), relax.op

    def emit(value: relax.Expr) -> relax.Var:
        return lowered(builder, value)

    normed, _ = groups.normed(emit, x)
    scaled = emit(op.multiply(normed, groups.per_channel(emit, gamma)))
    return op.reshape(emit(op.add(scaled, groups.per_channel(emit, beta))), groups.shape)


@differentiates("relax.nn.group_norm")
@differentiates("relax.nn.instance_norm")
def _group_norm_gradient(
    _y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    """With x^ = (x - mean) r and g = dy gamma, means over a group: dx = r (g - mean(g) - x^ mean(g x^))."""
    (x, gamma, _), groups, emit, op = call.args, _Groups.of(call), builder.emit, relax.op
    normed, root = groups.normed(emit, x)
    slopes = emit(op.reshape(dy, groups.apart))
    scaled = emit(op.multiply(slopes, groups.per_channel(emit, gamma)))
    shared = emit(op.multiply(normed, groups.mean(emit, emit(op.multiply(scaled, normed)))))
    inner = emit(op.subtract(emit(op.subtract(scaled, groups.mean(emit, scaled))), shared))
    others = [axis for axis in range(len(groups.apart)) if axis not in {groups.channel, groups.channel + 1}]
    sums = [emit(op.sum(value, others)) for value in (emit(op.multiply(slopes, normed)), slopes)]
    return [
        op.reshape(emit(op.multiply(root, inner)), groups.shape),
        *(op.reshape(value, (groups.shape[groups.channel],)) for value in sums),
    ]
