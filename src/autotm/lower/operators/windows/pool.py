"""Pools over NHWC windows."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, te, tirx
from tvm.relax.op import _op_gradient as relax_rules

from autotm.kernels.operators import pooling
from autotm.lower.operators.rules import Ints, builtin, differentiates, ints, legalizes, shape_of


@legalizes("relax.nn.max_pool2d")
def _legalize_max(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _pool(pooling.max_pool2d, builder, call)


@legalizes("relax.nn.avg_pool2d")
def _legalize_avg(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _pool(pooling.avg_pool2d, builder, call)


def _pool(function: Callable[..., object], builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    geometry = _geometry(call)
    return builder.call_te(function, call.args[0], *geometry) if geometry else builtin(builder, call)


@differentiates("relax.nn.max_pool2d")
def _max_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    geometry = _geometry(call)
    if geometry is None:
        return relax_rules.max_pool2d_grad(y, call, dy, builder)
    return [builder.call_te(pooling.max_pool2d_gradient, call.args[0], y, dy, *geometry)]


@differentiates("relax.nn.avg_pool2d")
def _avg_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    geometry = _geometry(call)
    if geometry is None:
        return relax_rules.avg_pool2d_grad(y, call, dy, builder)
    return [builder.call_te(pooling.avg_pool2d_gradient, dy, shape_of(call.args[0]), *geometry)]


@differentiates("relax.nn.adaptive_avg_pool2d")
def _adaptive_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    layout = str(call.attrs.layout)
    if layout not in {"NHWC", "NCHW"}:
        raise NotImplementedError(f"adaptive_avg_pool2d has a gradient in NHWC and NCHW, not in {layout}")
    return [builder.call_te(_spread, dy, shape_of(call.args[0]), layout.index("H"))]


def _spread(dy: te.Tensor, shape: Ints, first: int) -> te.Tensor:
    """Each mean's gradient, shared out over the pixels that it is of: rows floor(i H / n) to ceil((i + 1) H / n)."""
    axes = (first, first + 1)
    means = [te.reduce_axis((0, dy.shape[axis]), f"mean{axis}") for axis in axes]

    def element(*at: tirx.Var) -> tirx.Expr:
        place, inside, count = list(at), [], tirx.const(1, "int32")
        for axis, mean in zip(axes, means, strict=True):
            extent, outputs = int(shape[axis]), int(dy.shape[axis])
            start = tirx.floordiv(mean * extent, outputs)
            stop = tirx.floordiv((mean + 1) * extent + outputs - 1, outputs)
            inside += [at[axis] >= start, at[axis] < stop]
            count, place[axis] = count * (stop - start), mean
        share = dy(*place) / tirx.Cast(dy.dtype, count)
        return te.sum(tirx.Select(tirx.all(*inside), share, tirx.const(0.0, dy.dtype)), axis=means)

    return te.compute(tuple(shape), element, name="adaptive_avg_pool2d_gradient")


def _geometry(call: relax.Call) -> tuple[Ints, Ints, Ints] | None:
    """(window, strides, padding) of a plain NHWC pool whose padding does not count; None for any other."""
    attrs = call.attrs
    if attrs.layout != "NHWC" or ints(attrs.dilation) != (1, 1) or attrs.count_include_pad or attrs.ceil_mode:
        return None
    return ints(attrs.pool_size), ints(attrs.strides), ints(attrs.padding)
