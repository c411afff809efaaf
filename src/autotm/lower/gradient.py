"""Gradient rules that beat Relax's own: NHWC, no transposed copies, no saved pre-activations.

Registered over the built-in rules for every later `relax.transform.Gradient`; where a rule does not cover a case
(another layout, more dimensions) the built-in rule still answers.
"""

from __future__ import annotations

from tvm import relax, te, tirx
from tvm.relax.op import _op_gradient as builtin
from tvm.relax.op.base import register_gradient

from autotm.kernels import conv, matmul, window
from autotm.lower.geometry import conv_geometry, is_matrix_product, pool_geometry, shape_of

_OVERRIDE = 20
"""Registration level; Relax's own rules have 10."""


@register_gradient("relax.nn.conv2d", level=_OVERRIDE)
def _conv2d(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    geometry = conv_geometry(call)
    if geometry is None:
        return builtin.conv2d_grad(y, call, dy, builder)
    x, w = call.args
    return [
        builder.call_te(conv.conv2d_data_gradient, dy, w, shape_of(x), *geometry),
        builder.call_te(conv.conv2d_weight_gradient, x, dy, shape_of(w), *geometry),
    ]


@register_gradient("relax.matmul", level=_OVERRIDE)
def _matmul(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    if not is_matrix_product(call):
        return builtin.matmul_grad(y, call, dy, builder)
    a, b = call.args
    return [builder.call_te(matmul.matmul_nt, dy, b), builder.call_te(matmul.matmul_tn, a, dy)]


@register_gradient("relax.nn.relu", level=_OVERRIDE)
def _relu(y: relax.Var, _call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    # The mask is read off the output, so that the pre-activation need not be kept and conv + bias + ReLU can fuse.
    return [builder.call_te(_masked, y, dy)]


def _masked(y: te.Tensor, dy: te.Tensor) -> te.Tensor:
    zero = tirx.const(0.0, dy.dtype)
    return te.compute(dy.shape, lambda *at: tirx.Select(y(*at) > zero, dy(*at), zero), name="relu_gradient")


@register_gradient("relax.concat", level=_OVERRIDE)
def _concat(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    # Slices fuse with the masks and additions behind them; the built-in split does not.
    axis = int(call.attrs.axis)
    gradients, start = [], 0
    for part in call.args[0]:
        end = start + shape_of(part)[axis]
        gradients.append(builder.emit(relax.op.strided_slice(dy, [axis], [start], [end])))
        start = end
    return [relax.Tuple(gradients)]


@register_gradient("relax.nn.max_pool2d", level=_OVERRIDE)
def _max_pool2d(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    geometry = pool_geometry(call)
    if geometry is None:
        return builtin.max_pool2d_grad(y, call, dy, builder)
    return [builder.call_te(window.max_pool2d_gradient, call.args[0], y, dy, *geometry)]


@register_gradient("relax.nn.avg_pool2d", level=_OVERRIDE)
def _avg_pool2d(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    geometry = pool_geometry(call)
    if geometry is None:
        return builtin.avg_pool2d_grad(y, call, dy, builder)
    return [builder.call_te(window.avg_pool2d_gradient, dy, shape_of(call.args[0]), *geometry)]
