"""Rules of operators that work on each value by itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.op.grad import no_grad

from autotm.lower.rules import (
    Exprs,
    Gradient,
    builtin,
    differentiates,
    dtype_of,
    fitted,
    is_float,
    legalizes,
    number,
    shape_of,
)

# Forms that fuse better than Relax's, or keep NaN where Relax takes the other number: a step that has gone wrong would
# look as if it had not.


@differentiates("relax.nn.relu")
def _relu_gradient(y: relax.Var, _call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    def masked(y: te.Tensor, dy: te.Tensor) -> te.Tensor:
        zero = tirx.const(0.0, dy.dtype)
        return te.compute(dy.shape, lambda *at: tirx.Select(y(*at) <= zero, zero, dy(*at)), name="relu_gradient")

    # The mask is read off the output, so that the pre-activation need not be kept and conv + bias + ReLU can fuse.
    return [builder.call_te(masked, y, dy)]


@legalizes("relax.nn.relu")
def _relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    zero = tirx.const(0, dtype_of(call))
    return _map(builder, lambda x: tirx.Select(x < zero, zero, x), call.args[0], "relu")


@legalizes("relax.clip")
def _clip_form(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not is_float(call):
        return builtin(builder, call)
    low, high = (tirx.const(float(bound.value), dtype_of(call)) for bound in call.args[1:])

    def within(value: tirx.Expr) -> tirx.Expr:
        return tirx.Select(value < low, low, tirx.Select(value > high, high, value))

    return _map(builder, within, call.args[0], "clip")


def _map(
    builder: relax.BlockBuilder, element: Callable[[tirx.Expr], tirx.Expr], x: relax.Expr, name: str
) -> relax.Expr:
    kernel = lambda x: te.compute(x.shape, lambda *at: element(x(*at)), name=name)  # noqa: E731
    return builder.call_te(kernel, x, primfunc_name_hint=name)


@legalizes("relax.maximum", "relax.minimum")
def _extremum_form(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not is_float(call):
        return builtin(builder, call)
    shape, dtype, is_largest = shape_of(call), dtype_of(call), call.op.name == "relax.maximum"

    def extremum(*parts: te.Tensor | float) -> te.Tensor:
        return te.compute(
            shape, lambda *at: extreme(*(_at(part, at, dtype) for part in parts), is_largest), name="extremum"
        )

    # An operand that is a number comes second, as it is not NaN.
    return builder.call_te(
        extremum, *sorted(map(_immediate, call.args), key=lambda part: isinstance(part, int | float))
    )


def extreme(a: tirx.Expr, b: tirx.Expr, is_largest: bool) -> tirx.Expr:
    """Return the larger or smaller of two numbers; NaN if one is: a comparison with NaN is false, which chooses `b`."""
    return tirx.Select(tirx.any(a > b if is_largest else a < b, tirx.isnan(a)), a, b)


@legalizes("relax.nn.softplus")
def _softplus(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if float(call.attrs.beta) != 1:
        return builtin(builder, call)
    zero, one = (tirx.const(value, dtype_of(call)) for value in (0.0, 1.0))

    def log_one_plus_exp(x: tirx.Expr) -> tirx.Expr:
        positive, negative = (tirx.Select(is_out, zero, x) for is_out in (x < zero, x > zero))
        return positive + tirx.log(one + tirx.exp(negative - positive))

    # Relax's own form approximates, and overflows in a branch that it then does not take.
    return _map(builder, log_one_plus_exp, call.args[0], "softplus")


@differentiates("relax.nn.softplus")
def _softplus_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> Exprs:
    return [dy * relax.op.sigmoid(call.args[0] * relax.const(float(call.attrs.beta), dtype_of(dy)))]


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
def _where_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    condition, *branches = call.args
    zero = relax.const(0, dtype_of(dy))
    parts = [relax.op.where(condition, dy, zero), relax.op.where(condition, zero, dy)]
    slopes = [
        fitted(part, branch, builder) if is_float(branch) and number(branch) is None else no_grad(branch)
        for part, branch in zip(parts, branches, strict=True)
    ]
    return [no_grad(condition), *slopes]


# Gradients of elementwise operators, each as one kernel of the operator's argument and the gradient of its result.

Constant = Callable[[float], tirx.Expr]
Slope = Callable[[tirx.Expr, Constant, relax.Call], tirx.Expr]
"""Derivative at x; its second argument makes constants of x's type, its third is the call of the operator."""


def _elementwise(name: str, slope: Slope) -> Gradient:
    """Return the rule dx = dy f'(x)."""

    def rule(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
        def product(x: te.Tensor, dy: te.Tensor) -> te.Tensor:
            def constant(value: float) -> tirx.Expr:
                return tirx.const(value, x.dtype)

            return te.compute(x.shape, lambda *at: dy(*at) * slope(x(*at), constant, call), name=f"{name}_gradient")

        return [builder.call_te(product, call.args[0], dy), *map(no_grad, call.args[1:])]

    return rule


def _gelu(x: tirx.Expr, constant: Constant, _call: relax.Call) -> tirx.Expr:
    """Return d/dx x Phi(x) = Phi(x) + x phi(x), with the normal distribution Phi and its density phi."""
    below = constant(0.5) * (constant(1.0) + tirx.erf(x * constant(math.sqrt(0.5))))
    return below + x * tirx.exp(x * x * constant(-0.5)) * constant(1 / math.sqrt(2 * math.pi))


def _gelu_tanh(x: tirx.Expr, constant: Constant, _call: relax.Call) -> tirx.Expr:
    """Differentiate x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3)  (Hendrycks and Gimpel, 2016)."""
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    bent = tirx.tanh(constant(scale) * (x + constant(cubic) * x * x * x))
    inner = constant(scale) * (constant(1.0) + constant(3 * cubic) * x * x)
    one, half = constant(1.0), constant(0.5)
    return half * (one + bent) + half * x * (one - bent * bent) * inner


def _selu(x: tirx.Expr, constant: Constant, _call: relax.Call) -> tirx.Expr:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return tirx.Select(x > constant(0.0), constant(scale), constant(alpha * scale) * tirx.exp(x))


def _abs(x: tirx.Expr, constant: Constant, _call: relax.Call) -> tirx.Expr:
    above = tirx.Select(x > constant(0.0), constant(1.0), constant(0.0))
    return tirx.Select(x < constant(0.0), constant(-1.0), above)


def _clip_slope(x: tirx.Expr, constant: Constant, call: relax.Call) -> tirx.Expr:
    low, high = (constant(float(bound.value)) for bound in call.args[1:])
    return tirx.Select(tirx.all(x >= low, x <= high), constant(1.0), constant(0.0))


_SLOPES: dict[str, Slope] = {
    **dict.fromkeys(("floor", "ceil", "round", "sign", "trunc"), lambda _x, constant, _: constant(0.0)),
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.leakyrelu": lambda x, c, call: tirx.Select(x > c(0.0), c(1.0), c(float(call.attrs.alpha))),
    "nn.selu": _selu,
    "abs": _abs,
    "clip": _clip_slope,
    "erf": lambda x, c, _: c(2 / math.sqrt(math.pi)) * tirx.exp(-x * x),
    "rsqrt": lambda x, c, _: c(-0.5) / (x * tirx.sqrt(x)),
    "square": lambda x, c, _: c(2.0) * x,
    "tan": lambda x, c, _: c(1.0) / (tirx.cos(x) * tirx.cos(x)),
    "sinh": lambda x, _c, _: tirx.cosh(x),
    "cosh": lambda x, _c, _: tirx.sinh(x),
    "asin": lambda x, c, _: c(1.0) / tirx.sqrt(c(1.0) - x * x),
    "acos": lambda x, c, _: -c(1.0) / tirx.sqrt(c(1.0) - x * x),
    "atan": lambda x, c, _: c(1.0) / (c(1.0) + x * x),
    "asinh": lambda x, c, _: c(1.0) / tirx.sqrt(x * x + c(1.0)),
    "acosh": lambda x, c, _: c(1.0) / tirx.sqrt(x * x - c(1.0)),
    "atanh": lambda x, c, _: c(1.0) / (c(1.0) - x * x),
}
for _name, _slope in _SLOPES.items():
    differentiates(f"relax.{_name}")(_elementwise(_name.removeprefix("nn."), _slope))


# Gradients of arithmetic on two tensors, either of which may be a number or be broadcast.

_BY_PRODUCTS = {2.0, 3.0}
"""Powers that are products: exact, and several times as fast."""


@differentiates("relax.power")
def _power(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    """Compute dy p x^(p - 1), without a power where p is 2 or 3, and the exponent's gradient if it is a tensor."""
    (x, exponent), op = call.args, relax.op
    if not is_float(x):
        return [no_grad(x), no_grad(exponent)]
    p = number(exponent)
    if p is None:
        less = builder.emit(x ** (exponent - relax.const(1, dtype_of(exponent))))
        # As in PyTorch, the derivative of 0^p by p is zero.
        base = op.where(x > relax.const(0, dtype_of(x)), x, op.ones_like(x))
        by_exponent = builder.emit(dy * y * op.log(base))
        return [fitted(dy * (exponent * less), x, builder), fitted(by_exponent, exponent, builder)]
    scaled = builder.emit(dy * relax.const(p, dtype_of(x)))
    if p in _BY_PRODUCTS:
        return [scaled * (x if p == 2.0 else x * x), no_grad(exponent)]  # noqa: PLR2004
    return [scaled * x ** relax.const(p - 1, dtype_of(x)), no_grad(exponent)]


@legalizes("relax.power")
def _power_form(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax would pass the exponent as a tensor.
    x, p = call.args[0], number(call.args[1])
    if not is_float(x):
        return builder.call_te(_whole_power, *call.args)
    if p is None:
        return builtin(builder, call)

    def power(value: tirx.Expr) -> tirx.Expr:
        if p in _BY_PRODUCTS:
            return math.prod([value] * int(p - 1), start=value)
        return tirx.power(value, tirx.const(p, dtype_of(x)))

    return _map(builder, power, x, "power")


def _whole_power(x: te.Tensor, exponent: te.Tensor) -> te.Tensor:
    """Compute a power of whole numbers, which is exact as far as float64 has every one of them."""
    power = topi.power(topi.cast(x, "float64"), topi.cast(exponent, "float64"))
    return topi.cast(topi.round(power), x.dtype)


@differentiates("relax.floor_mod", "relax.mod")
def _remainder(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    """Differentiate x mod m = x - m q, with a whole number q = (x - (x mod m)) / m."""
    x, m = call.args
    if not is_float(x):
        return [no_grad(x), no_grad(m)]
    by_m = builder.emit(-(dy * relax.op.round((x - y) / m)))
    return [fitted(dy, x, builder), fitted(by_m, m, builder)]


@differentiates("relax.maximum", "relax.minimum")
def _extremum_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    """Share the gradient as PyTorch does: two equal elements take half each; an element equal to a bound takes all."""
    (a, b), op = call.args, relax.op
    if not is_float(y):
        return [no_grad(a), no_grad(b)]
    zero = relax.const(0, dtype_of(y))
    is_bound = [number(item) is not None for item in call.args]
    if any(is_bound):
        x, bound = (b, a) if is_bound[0] else (a, b)
        is_beyond = x < bound if call.op.name == "relax.maximum" else x > bound
        slope = op.where(is_beyond, zero, dy)
        return [no_grad(a), slope] if is_bound[0] else [slope, no_grad(b)]
    both = builder.emit(dy * relax.const(0.5, dtype_of(y)))
    shared = builder.emit(op.where(op.equal(a, b), both, dy))
    return [fitted(op.where(op.equal(item, y), shared, zero), item, builder) for item in (a, b)]


@differentiates("relax.nn.prelu")
def _prelu(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    (x, alpha), op = call.args, relax.op
    axis = int(call.attrs.axis) % len(shape_of(x))
    others = [other for other in range(len(shape_of(x))) if other != axis or shape_of(alpha)[0] == 1]
    along = [1 if other in others else extent for other, extent in enumerate(shape_of(x))]
    is_above = builder.emit(x > relax.const(0.0, dtype_of(x)))
    below = builder.emit(dy * op.reshape(alpha, along))
    by_alpha = builder.emit(op.sum(op.where(is_above, op.zeros_like(dy), dy * x), others))
    return [op.where(is_above, dy, below), op.reshape(by_alpha, shape_of(alpha))]


# Operators whose result has no gradient: whole numbers, truth values, places, fresh constants.

_NONDIFFERENTIABLE = (
    "arange", "argmax", "argmin", "argsort", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bucketize",
    "eye", "eye_like", "floor_divide", "grad.no_grad", "hamming_window", "isfinite", "isinf", "isnan", "left_shift",
    "logical_and", "logical_not", "logical_or", "logical_xor", "multinomial_from_uniform", "nonzero", "one_hot",
    "right_shift", "shape_of", "shape_to_tensor", "size", "unique",
)  # fmt: skip


differentiates(*(f"relax.{name}" for name in _NONDIFFERENTIABLE))(
    lambda _y, call, _dy, _builder: [no_grad(argument) for argument in call.args]
)


@legalizes("relax.arange")
def _arange(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax makes it a constant, which a graph has no place for.
    first, _, step = (number.value for number in call.args)
    dtype = dtype_of(call)

    def numbers() -> te.Tensor:
        def element(at: tirx.Var) -> tirx.Expr:
            return tirx.const(first, dtype) + tirx.Cast(dtype, at) * tirx.const(step, dtype)

        return te.compute(shape_of(call), element, name="arange")

    return builder.call_te(numbers, primfunc_name_hint="arange")


@legalizes("relax.grad.no_grad")
def _itself(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.args[0]


@differentiates("relax.astype")
def _astype(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> Exprs:
    # A tensor that was cast from integers passes no gradient on to them.
    (x,) = call.args
    return [relax.op.astype(dy, x.ty.dtype) if is_float(x) else no_grad(x)]
