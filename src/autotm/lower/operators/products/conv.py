"""Convolution, NHWC x HWIO."""

from __future__ import annotations

from tvm import relax
from tvm.relax.op import _op_gradient as relax_rules

from autotm.kernels.operators import conv, depthwise
from autotm.lower.operators.rules import Ints, builtin, differentiates, ints, legalizes, shape_of


@legalizes("relax.nn.conv2d")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    geometry = _geometry(call)
    if geometry is None:
        return builtin(builder, call)
    if _is_depthwise(call):
        return builder.call_te(depthwise.depthwise_conv2d, *call.args, *geometry[:2])
    return builder.call_te(conv.conv2d, *call.args, *geometry)


@differentiates("relax.nn.conv2d")
def _gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    geometry = _geometry(call)
    if geometry is None:
        return relax_rules.conv2d_grad(y, call, dy, builder)
    x, w = call.args
    if _is_depthwise(call):
        return [
            builder.call_te(depthwise.depthwise_conv2d_data_gradient, dy, w, shape_of(x), *geometry[:2]),
            builder.call_te(depthwise.depthwise_conv2d_weight_gradient, x, dy, shape_of(w), *geometry[:2]),
        ]
    return [
        builder.call_te(conv.conv2d_data_gradient, dy, w, shape_of(x), *geometry),
        builder.call_te(conv.conv2d_weight_gradient, x, dy, shape_of(w), *geometry),
    ]


def _geometry(call: relax.Call) -> tuple[Ints, Ints, int] | None:
    """(strides, padding, groups) of an NHWC x HWIO convolution; None for other layouts.

    Raises:
        NotImplementedError: it is dilated.
    """
    attrs = call.attrs
    if attrs.data_layout != "NHWC" or attrs.kernel_layout != "HWIO":
        return None
    if ints(attrs.dilation) != (1, 1):
        raise NotImplementedError(
            f"conv2d of {shape_of(call.args[0])} with {shape_of(call.args[1])}: dilation {ints(attrs.dilation)} has no "
            "kernel; use dilation 1, or spread the weights with zeros"
        )
    return ints(attrs.strides), ints(attrs.padding), int(attrs.groups)


def _is_depthwise(call: relax.Call) -> bool:
    window, attrs = shape_of(call.args[1]), call.attrs
    return window[2] == 1 and int(attrs.groups) > 1 and depthwise.fits(window[:2], ints(attrs.padding))
