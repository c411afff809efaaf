"""Gradients of arithmetic on two tensors, either of which may be a number or be broadcast."""

from __future__ import annotations

import math

from tvm import relax, te, tirx
from tvm.relax.op.grad import no_grad

from autotm.lower.operators.rules import builtin, differentiates, dtype_of, fitted, is_float, legalizes, number

_Pair = list[relax.Expr]
_BY_PRODUCTS = {2.0, 3.0}
"""Powers that are products: exact, and several times as fast."""


@differentiates("relax.power")
def _power(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Pair:
    """The base's is dy p x^(p - 1), without a power where p is 2 or 3; the exponent's is made if it is no number."""
    (x, exponent), emit, op = call.args, builder.emit, relax.op
    if not is_float(x):
        return [no_grad(x), no_grad(exponent)]
    p = number(exponent)
    if p is None:
        one = relax.const(1, dtype_of(exponent))
        less = emit(op.power(x, emit(op.subtract(exponent, one))))
        zero = relax.const(0, dtype_of(x))
        # As PyTorch: 0^p does not change with p.
        logarithm = emit(op.log(emit(op.where(emit(op.greater(x, zero)), x, emit(op.ones_like(x))))))
        by_exponent = emit(op.multiply(emit(op.multiply(dy, y)), logarithm))
        by_x = emit(op.multiply(dy, emit(op.multiply(exponent, less))))
        return [fitted(by_x, x, builder), fitted(by_exponent, exponent, builder)]
    scaled = emit(op.multiply(dy, relax.const(p, dtype_of(x))))
    if p in _BY_PRODUCTS:
        root = x if p == 2.0 else emit(op.multiply(x, x))  # noqa: PLR2004
        return [op.multiply(scaled, root), no_grad(exponent)]
    less = emit(op.power(x, relax.const(p - 1, dtype_of(x))))
    return [op.multiply(scaled, less), no_grad(exponent)]


@legalizes("relax.power")
def _power_form(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax would pass the exponent as a tensor.
    x, p = call.args[0], number(call.args[1])
    return builtin(builder, call) if p is None or not is_float(x) else builder.call_te(_power_of, x, p)


def _power_of(x: te.Tensor, p: float) -> te.Tensor:
    def element(*at: tirx.Var) -> tirx.Expr:
        value = x(*at)
        if p in _BY_PRODUCTS:
            return math.prod([value] * int(p - 1), start=value)
        return tirx.power(value, tirx.const(p, x.dtype))

    return te.compute(x.shape, element, name="power")


@differentiates("relax.floor_divide")
def _floor_divide(_y: relax.Var, call: relax.Call, _dy: relax.Var, _builder: relax.BlockBuilder) -> _Pair:
    return [no_grad(argument) for argument in call.args]


@differentiates("relax.floor_mod")
@differentiates("relax.mod")
def _remainder(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Pair:
    """The remainder is x - m q, with a whole number q = (x - (x mod m)) / m."""
    (x, m), emit, op = call.args, builder.emit, relax.op
    if not is_float(x):
        return [no_grad(x), no_grad(m)]
    whole = emit(op.round(emit(op.divide(emit(op.subtract(x, _y)), m))))
    by_m = emit(op.negative(emit(op.multiply(dy, whole))))
    return [fitted(dy, x, builder), fitted(by_m, m, builder)]


@differentiates("relax.maximum")
@differentiates("relax.minimum")
def _extremum(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Pair:
    """As PyTorch: of two equal tensors each takes half, a bound lets through what is equal to it."""
    emit, op = builder.emit, relax.op
    if not is_float(y):
        return [no_grad(argument) for argument in call.args]
    a, b = call.args
    zero = relax.const(0, dtype_of(y))
    is_bound = [number(item) is not None for item in call.args]
    if any(is_bound):
        x, bound = (b, a) if is_bound[0] else (a, b)
        is_beyond = emit((op.less if call.op.name == "relax.maximum" else op.greater)(x, bound))
        slope = op.where(is_beyond, zero, dy)
        return [no_grad(a), slope] if is_bound[0] else [slope, no_grad(b)]
    both = emit(op.multiply(dy, relax.const(0.5, dtype_of(y))))
    shared = emit(op.where(emit(op.equal(a, b)), both, dy))
    return [fitted(op.where(emit(op.equal(item, y)), shared, zero), item, builder) for item in (a, b)]


@differentiates("relax.log_add_exp")
def _log_add_exp(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Pair:
    emit, op = builder.emit, relax.op
    parts = [emit(op.exp(emit(op.subtract(item, y)))) for item in call.args]
    return [fitted(op.multiply(dy, part), item, builder) for part, item in zip(parts, call.args, strict=True)]


@differentiates("relax.atan2")
def _atan2(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Pair:
    (a, b), emit, op = call.args, builder.emit, relax.op
    length = emit(op.add(emit(op.multiply(a, a)), emit(op.multiply(b, b))))
    slope = emit(op.divide(dy, length))
    by_b = emit(op.negative(emit(op.multiply(slope, a))))
    return [fitted(op.multiply(slope, b), a, builder), fitted(by_b, b, builder)]


@differentiates("relax.ewise_fma")
def _fma(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> _Pair:
    a, b, _ = call.args
    return [relax.op.multiply(dy, b), relax.op.multiply(dy, a), dy]
