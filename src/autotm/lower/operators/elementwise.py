"""Elementwise operators whose own form fuses better than Relax's."""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx

from autotm.lower.operators.rules import differentiates, legalizes, shape_of


@differentiates("relax.nn.relu")
def _relu_gradient(y: relax.Var, _call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    # The mask is read off the output, so that the pre-activation need not be kept and conv + bias + ReLU can fuse.
    return [builder.call_te(_masked, y, dy)]


def _masked(y: te.Tensor, dy: te.Tensor) -> te.Tensor:
    zero = tirx.const(0.0, dy.dtype)
    return te.compute(dy.shape, lambda *at: tirx.Select(y(*at) > zero, dy(*at), zero), name="relu_gradient")


@legalizes("relax.where")
def _where(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax would pass scalar constants as tensors; as immediates they need no memory.
    shape = shape_of(call)

    def select(condition: te.Tensor, *branches: te.Tensor | float) -> te.Tensor:
        def at(value: te.Tensor | float, index: tuple[tirx.Var, ...]) -> tirx.PrimExpr:
            if not isinstance(value, te.Tensor):
                return tirx.const(value, "float32")
            lead = len(index) - len(value.shape)
            return value(*(0 if int(extent) == 1 else i for i, extent in zip(index[lead:], value.shape, strict=True)))

        return te.compute(shape, lambda *i: tirx.Select(at(condition, i), *(at(b, i) for b in branches)), name="where")

    return builder.call_te(select, *(_immediate(argument) for argument in call.args))


def _immediate(argument: relax.Expr) -> relax.Expr | float:
    if isinstance(argument, tvm.ir.Constant) and not argument.value.shape:
        return float(argument.value.numpy())
    return argument
