"""Gradients of elementwise operators, each as one kernel of the operator's argument and the gradient of its result."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax, te, tirx
from tvm.relax.op.grad import no_grad

from autotm.lower.operators.rules import Gradient, differentiates, shape_of

Slope = Callable[[tirx.Expr, Callable[[float], tirx.Expr]], tirx.Expr]
"""Derivative at x; its second argument makes constants of x's type."""


def _elementwise(name: str, slope_of: Callable[[relax.Call], Slope]) -> Gradient:
    """The rule dx = dy f'(x)."""

    def rule(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
        slope = slope_of(call)

        def product(x: te.Tensor, dy: te.Tensor) -> te.Tensor:
            def constant(value: float) -> tirx.Expr:
                return tirx.const(value, x.dtype)

            return te.compute(x.shape, lambda *at: dy(*at) * slope(x(*at), constant), name=f"{name}_gradient")

        return [builder.call_te(product, call.args[0], dy), *map(no_grad, call.args[1:])]

    return rule


def _gelu(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
    """d/dx x Phi(x) = Phi(x) + x phi(x), with the normal distribution Phi and its density phi."""
    below = constant(0.5) * (constant(1.0) + tirx.erf(x * constant(math.sqrt(0.5))))
    return below + x * tirx.exp(x * x * constant(-0.5)) * constant(1 / math.sqrt(2 * math.pi))


def _gelu_tanh(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
    """Of x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3)  (Hendrycks and Gimpel, 2016)."""
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    bent = tirx.tanh(constant(scale) * (x + constant(cubic) * x * x * x))
    inner = constant(scale) * (constant(1.0) + constant(3 * cubic) * x * x)
    one, half = constant(1.0), constant(0.5)
    return half * (one + bent) + half * x * (one - bent * bent) * inner


def _erf(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
    return constant(2 / math.sqrt(math.pi)) * tirx.exp(-x * x)


def _rsqrt(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
    return constant(-0.5) / (x * tirx.sqrt(x))


def _of(slope: Callable[..., tirx.Expr]) -> Slope:
    """A derivative that needs no constant but 1."""
    return lambda x, constant: slope(x, constant(1.0))


def _selu(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return tirx.Select(x > constant(0.0), constant(scale), constant(alpha * scale) * tirx.exp(x))


def _abs(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
    above = tirx.Select(x > constant(0.0), constant(1.0), constant(0.0))
    return tirx.Select(x < constant(0.0), constant(-1.0), above)


def _nothing(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
    del x
    return constant(0.0)


def _leaky(call: relax.Call) -> Slope:
    alpha = float(call.attrs.alpha)
    return lambda x, constant: tirx.Select(x > constant(0.0), constant(1.0), constant(alpha))


@differentiates("relax.nn.prelu")
def _prelu(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    (x, alpha), emit, op = call.args, builder.emit, relax.op
    shape, axis = shape_of(x), int(call.attrs.axis) % len(shape_of(x))
    along = [1] * len(shape)
    along[axis] = shape_of(alpha)[0]
    zero = relax.const(0.0, x.ty.dtype)
    is_above = emit(op.greater(x, zero))
    below = emit(op.multiply(dy, emit(op.reshape(alpha, along))))
    by_alpha = emit(op.where(is_above, emit(op.zeros_like(dy)), emit(op.multiply(dy, x))))
    summed = [other for other in range(len(shape)) if along[other] == 1]
    return [op.where(is_above, dy, below), op.reshape(emit(op.sum(by_alpha, summed)), shape_of(alpha))]


def _clip(call: relax.Call) -> Slope:
    low, high = (float(bound.value) for bound in call.args[1:])

    def slope(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
        is_within = tirx.all(x >= constant(low), x <= constant(high))
        return tirx.Select(is_within, constant(1.0), constant(0.0))

    return slope


for _name, _slope in (("nn.gelu", _gelu), ("nn.gelu_tanh", _gelu_tanh), ("erf", _erf), ("rsqrt", _rsqrt)):
    differentiates(f"relax.{_name}")(_elementwise(_name.removeprefix("nn."), lambda _call, slope=_slope: slope))
for _name in ("floor", "ceil", "round", "sign", "trunc"):
    differentiates(f"relax.{_name}")(_elementwise(_name, lambda _call: _nothing))
for _name, _slope in {
    "nn.selu": _selu,
    "abs": _abs,
    "square": lambda x, constant: constant(2.0) * x,
    "tan": _of(lambda x, one: one / (tirx.cos(x) * tirx.cos(x))),
    "sinh": _of(lambda x, _: tirx.cosh(x)),
    "cosh": _of(lambda x, _: tirx.sinh(x)),
    "asin": _of(lambda x, one: one / tirx.sqrt(one - x * x)),
    "acos": _of(lambda x, one: -one / tirx.sqrt(one - x * x)),
    "atan": _of(lambda x, one: one / (one + x * x)),
    "asinh": _of(lambda x, one: one / tirx.sqrt(x * x + one)),
    "acosh": _of(lambda x, one: one / tirx.sqrt(x * x - one)),
    "atanh": _of(lambda x, one: one / (one - x * x)),
}.items():
    differentiates(f"relax.{_name}")(_elementwise(_name.removeprefix("nn."), lambda _call, slope=_slope: slope))
differentiates("relax.nn.leakyrelu")(_elementwise("leakyrelu", _leaky))
differentiates("relax.clip")(_elementwise("clip", _clip))
