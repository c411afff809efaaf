"""Rules of operators that work on each value by itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
from tvm import relax, te, tirx
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
    # The mask is read off the output, so that the pre-activation need not be kept and conv + bias + ReLU can fuse.
    return [builder.call_te(_masked, y, dy)]


def _masked(y: te.Tensor, dy: te.Tensor) -> te.Tensor:
    zero = tirx.const(0.0, dy.dtype)
    return te.compute(dy.shape, lambda *at: tirx.Select(y(*at) <= zero, zero, dy(*at)), name="relu_gradient")


@legalizes("relax.nn.relu")
def _relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    zero = tirx.const(0, dtype_of(call))

    def positive(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: tirx.Select(x(*at) < zero, zero, x(*at)), name="relu")

    return builder.call_te(positive, call.args[0])


@legalizes("relax.clip")
def _clip_form(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not is_float(call):
        return builtin(builder, call)
    low, high = (tirx.const(float(bound.value), dtype_of(call)) for bound in call.args[1:])

    def within(value: tirx.Expr) -> tirx.Expr:
        return tirx.Select(value < low, low, tirx.Select(value > high, high, value))

    return builder.call_te(lambda x: te.compute(x.shape, lambda *at: within(x(*at)), name="clip"), call.args[0])


@legalizes("relax.maximum")
@legalizes("relax.minimum")
def _extremum_form(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not is_float(call):
        return builtin(builder, call)
    shape, dtype, is_largest = shape_of(call), dtype_of(call), call.op.name == "relax.maximum"

    def extremum(*parts: te.Tensor | float) -> te.Tensor:
        return te.compute(
            shape, lambda *at: extreme(*(_at(part, at, dtype) for part in parts), is_largest), name="extremum"
        )

    # The number, if one is, comes second: it is not NaN.
    return builder.call_te(
        extremum, *sorted(map(_immediate, call.args), key=lambda part: isinstance(part, int | float))
    )


def extreme(a: tirx.Expr, b: tirx.Expr, is_largest: bool) -> tirx.Expr:
    """Return the larger or smaller of two numbers; NaN if one is: a comparison with it is false, which chooses `b`."""
    return tirx.Select(tirx.any(a > b if is_largest else a < b, tirx.isnan(a)), a, b)


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
def _softplus_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
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

Slope = Callable[[tirx.Expr, Callable[[float], tirx.Expr]], tirx.Expr]
"""Derivative at x; its second argument makes constants of x's type."""


def _elementwise(name: str, slope_of: Callable[[relax.Call], Slope]) -> Gradient:
    """Return the rule dx = dy f'(x)."""

    def rule(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
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
    """Differentiate x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3)  (Hendrycks and Gimpel, 2016)."""
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    bent = tirx.tanh(constant(scale) * (x + constant(cubic) * x * x * x))
    inner = constant(scale) * (constant(1.0) + constant(3 * cubic) * x * x)
    one, half = constant(1.0), constant(0.5)
    return half * (one + bent) + half * x * (one - bent * bent) * inner


def _selu(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return tirx.Select(x > constant(0.0), constant(scale), constant(alpha * scale) * tirx.exp(x))


def _abs(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
    above = tirx.Select(x > constant(0.0), constant(1.0), constant(0.0))
    return tirx.Select(x < constant(0.0), constant(-1.0), above)


def _leaky(call: relax.Call) -> Slope:
    alpha = float(call.attrs.alpha)
    return lambda x, constant: tirx.Select(x > constant(0.0), constant(1.0), constant(alpha))


@differentiates("relax.nn.prelu")
def _prelu(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
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


def _clip_slope(call: relax.Call) -> Slope:
    low, high = (float(bound.value) for bound in call.args[1:])

    def slope(x: tirx.Expr, constant: Callable[[float], tirx.Expr]) -> tirx.Expr:
        is_within = tirx.all(x >= constant(low), x <= constant(high))
        return tirx.Select(is_within, constant(1.0), constant(0.0))

    return slope


_SLOPES: dict[str, Slope] = {
    **dict.fromkeys(("floor", "ceil", "round", "sign", "trunc"), lambda _, constant: constant(0.0)),
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.selu": _selu,
    "abs": _abs,
    "erf": lambda x, constant: constant(2 / math.sqrt(math.pi)) * tirx.exp(-x * x),
    "rsqrt": lambda x, constant: constant(-0.5) / (x * tirx.sqrt(x)),
    "square": lambda x, constant: constant(2.0) * x,
    "tan": lambda x, constant: constant(1.0) / (tirx.cos(x) * tirx.cos(x)),
    "sinh": lambda x, _: tirx.cosh(x),
    "cosh": lambda x, _: tirx.sinh(x),
    "asin": lambda x, constant: constant(1.0) / tirx.sqrt(constant(1.0) - x * x),
    "acos": lambda x, constant: -constant(1.0) / tirx.sqrt(constant(1.0) - x * x),
    "atan": lambda x, constant: constant(1.0) / (constant(1.0) + x * x),
    "asinh": lambda x, constant: constant(1.0) / tirx.sqrt(x * x + constant(1.0)),
    "acosh": lambda x, constant: constant(1.0) / tirx.sqrt(x * x - constant(1.0)),
    "atanh": lambda x, constant: constant(1.0) / (constant(1.0) - x * x),
}
for _name, _slope in _SLOPES.items():
    differentiates(f"relax.{_name}")(_elementwise(_name.removeprefix("nn."), lambda _call, slope=_slope: slope))
differentiates("relax.nn.leakyrelu")(_elementwise("leakyrelu", _leaky))
differentiates("relax.clip")(_elementwise("clip", _clip_slope))


# Gradients of arithmetic on two tensors, either of which may be a number or be broadcast.

_BY_PRODUCTS = {2.0, 3.0}
"""Powers that are products: exact, and several times as fast."""


@differentiates("relax.power")
def _power(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    """Compute dy p x^(p - 1), without a power where p is 2 or 3, and the exponent's gradient if it is a tensor."""
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


@differentiates("relax.floor_mod")
@differentiates("relax.mod")
def _remainder(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    """Differentiate x mod m = x - m q, with a whole number q = (x - (x mod m)) / m."""
    (x, m), emit, op = call.args, builder.emit, relax.op
    if not is_float(x):
        return [no_grad(x), no_grad(m)]
    whole = emit(op.round(emit(op.divide(emit(op.subtract(x, _y)), m))))
    by_m = emit(op.negative(emit(op.multiply(dy, whole))))
    return [fitted(dy, x, builder), fitted(by_m, m, builder)]


@differentiates("relax.maximum")
@differentiates("relax.minimum")
def _extremum_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    """Share the gradient as PyTorch: two equal elements take half each; an element equal to a bound takes all."""
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
def _log_add_exp(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    emit, op = builder.emit, relax.op
    parts = [emit(op.exp(emit(op.subtract(item, y)))) for item in call.args]
    return [fitted(op.multiply(dy, part), item, builder) for part, item in zip(parts, call.args, strict=True)]


@differentiates("relax.atan2")
def _atan2(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    (a, b), emit, op = call.args, builder.emit, relax.op
    length = emit(op.add(emit(op.multiply(a, a)), emit(op.multiply(b, b))))
    slope = emit(op.divide(dy, length))
    by_b = emit(op.negative(emit(op.multiply(slope, a))))
    return [fitted(op.multiply(slope, b), a, builder), fitted(by_b, b, builder)]


@differentiates("relax.ewise_fma")
def _fma(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> Exprs:
    a, b, _ = call.args
    return [relax.op.multiply(dy, b), relax.op.multiply(dy, a), dy]


# Operators whose result has no gradient: whole numbers, truth values, places, fresh constants.

_NONDIFFERENTIABLE = (
    "arange", "argmax", "argmin", "argsort", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bucketize",
    "eye", "eye_like", "floor_divide", "grad.no_grad", "hamming_window", "isfinite", "isinf", "isnan", "left_shift",
    "logical_and", "logical_not", "logical_or", "logical_xor", "multinomial_from_uniform", "nonzero", "one_hot",
    "right_shift", "shape_of", "shape_to_tensor", "size", "unique",
)  # fmt: skip


def _no_gradients(_y: relax.Var, call: relax.Call, _dy: relax.Var, _builder: relax.BlockBuilder) -> Exprs:
    return [no_grad(argument) for argument in call.args]


for _name in _NONDIFFERENTIABLE:
    differentiates(f"relax.{_name}")(_no_gradients)


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
