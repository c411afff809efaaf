"""Elementwise operators whose own form fuses better than Relax's."""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx
from tvm.relax.op.grad import no_grad

from autotm.lower.operators.rules import (
    builtin,
    differentiates,
    dtype_of,
    fitted,
    is_float,
    legalizes,
    number,
    shape_of,
)


@differentiates("relax.nn.relu")
def _relu_gradient(y: relax.Var, _call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    # The mask is read off the output, so that the pre-activation need not be kept and conv + bias + ReLU can fuse.
    return [builder.call_te(_masked, y, dy)]


def _masked(y: te.Tensor, dy: te.Tensor) -> te.Tensor:
    zero = tirx.const(0.0, dy.dtype)
    return te.compute(dy.shape, lambda *at: tirx.Select(y(*at) <= zero, zero, dy(*at)), name="relu_gradient")


# Relax's own take the other number where one is NaN: a step that has gone wrong would look as if it had not.
@legalizes("relax.nn.relu")
def _relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    zero = tirx.const(0, dtype_of(call))

    def positive(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: tirx.Select(x(*at) < zero, zero, x(*at)), name="relu")

    return builder.call_te(positive, call.args[0])


@legalizes("relax.clip")
def _clip(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not is_float(call):
        return builtin(builder, call)
    low, high = (tirx.const(float(bound.value), dtype_of(call)) for bound in call.args[1:])

    def within(value: tirx.Expr) -> tirx.Expr:
        return tirx.Select(value < low, low, tirx.Select(value > high, high, value))

    return builder.call_te(lambda x: te.compute(x.shape, lambda *at: within(x(*at)), name="clip"), call.args[0])


@legalizes("relax.maximum")
@legalizes("relax.minimum")
def _extremum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not is_float(call):
        return builtin(builder, call)
    shape, dtype, is_largest = shape_of(call), dtype_of(call), call.op.name == "relax.maximum"

    def chosen(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        # A comparison with NaN is false, which chooses `b`.
        return tirx.Select(tirx.any(a > b if is_largest else a < b, tirx.isnan(a)), a, b)

    def extremum(*parts: te.Tensor | float) -> te.Tensor:
        return te.compute(shape, lambda *at: chosen(*(_at(part, at, dtype) for part in parts)), name="extremum")

    # The number, if one is, comes second: it is not NaN.
    return builder.call_te(
        extremum, *sorted(map(_immediate, call.args), key=lambda part: isinstance(part, int | float))
    )


@legalizes("relax.nn.softplus")
def _softplus(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax's own overflows in a branch that it then does not take, and approximates.
    return builder.call_te(_log_one_plus_exp, call.args[0]) if float(call.attrs.beta) == 1 else builtin(builder, call)


def _log_one_plus_exp(x: te.Tensor) -> te.Tensor:
    zero, one = (tirx.const(value, x.dtype) for value in (0.0, 1.0))

    def element(*at: tirx.Var) -> tirx.Expr:
        value = x(*at)
        positive, negative = (tirx.Select(is_out, zero, value) for is_out in (value < zero, value > zero))
        return positive + tirx.log(one + tirx.exp(negative - positive))

    return te.compute(x.shape, element, name="softplus")


@differentiates("relax.nn.softplus")
def _softplus_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    beta = relax.const(float(call.attrs.beta), dtype_of(dy))
    scaled = builder.emit(relax.op.multiply(call.args[0], beta))
    return [relax.op.multiply(dy, builder.emit(relax.op.sigmoid(scaled)))]


@legalizes("relax.where")
def _where(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax would pass scalar constants as tensors; as immediates they need no memory.
    shape, dtype = shape_of(call), dtype_of(call)

    def select(condition: te.Tensor | bool, *branches: te.Tensor | float) -> te.Tensor:
        return te.compute(
            shape, lambda *i: tirx.Select(_at(condition, i, dtype), *(_at(b, i, dtype) for b in branches)), name="where"
        )

    return builder.call_te(select, *map(_immediate, call.args))


def _at(value: te.Tensor | float, index: tuple[tirx.Var, ...], dtype: str) -> tirx.PrimExpr:
    """Return an operand's element for one of the result, or the number that it is."""
    if not isinstance(value, te.Tensor):
        return tirx.const(value, "bool" if isinstance(value, bool) else dtype)
    lead = len(index) - len(value.shape)
    return value(*(0 if int(extent) == 1 else i for i, extent in zip(index[lead:], value.shape, strict=True)))


def _immediate(argument: relax.Expr) -> relax.Expr | float:
    if isinstance(argument, tvm.ir.Constant) and not argument.value.shape:
        return argument.value.numpy().item()
    return argument


@differentiates("relax.where")
def _where_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    condition, *branches = call.args
    zero = relax.const(0, dtype_of(dy))
    parts = [relax.op.where(condition, dy, zero), relax.op.where(condition, zero, dy)]
    slopes = [
        fitted(part, branch, builder) if is_float(branch) and number(branch) is None else no_grad(branch)
        for part, branch in zip(parts, branches, strict=True)
    ]
    return [no_grad(condition), *slopes]
