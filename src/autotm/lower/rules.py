"""Registration of each operator's rules, its gradient and its form as a kernel, and helpers that the rules share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
import tvm_ffi
from tvm import relax, topi
from tvm.relax.op.base import register_gradient

Ints = tuple[int, ...]
Exprs = list[relax.Expr]
Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
Gradient = Callable[[relax.Var, relax.Call, relax.Var, relax.BlockBuilder], Exprs]

LEGALIZE: dict[str, Legalize] = {}
"""Operator name -> how it becomes a call of our own kernel; operators without an entry become Relax's own."""

# A rule that refuses a case is called through TVM, which would turn what it raises into a RuntimeError.
tvm_ffi.register_error("NotImplementedError", NotImplementedError)

_NAMED, _OVERRIDE = 15, 20
"""Registration levels of Relax's rules (10 without the operator's name in their errors) and of ours."""


def legalizes(*operators: str) -> Callable[[Legalize], Legalize]:
    """Register the decorated function as the one that turns calls of these operators into kernels."""

    def register(rule: Legalize) -> Legalize:
        LEGALIZE.update(dict.fromkeys(operators, rule))
        return rule

    return register


def differentiates(*operators: str) -> Callable[[Gradient], Gradient]:
    """Register the decorated function as the one that gives the gradients of these operators, one for each argument.

    Whatever it raises becomes a NotImplementedError that names the operator.
    """

    def register(rule: Gradient) -> Gradient:
        for operator in operators:
            register_gradient(operator, _naming(operator, rule), level=_OVERRIDE)
        return rule

    return register


def _naming(operator: str, rule: Gradient) -> Gradient:
    def gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
        try:
            return rule(y, call, dy, builder)
        except NotImplementedError as error:
            raise NotImplementedError(f"{operator}: {error}") from None
        except Exception as error:
            raise NotImplementedError(f"{operator}: {type(error).__name__}: {error}") from error

    return gradient


for _name in tvm.ir.Op.list_op_names():
    if (_rule := tvm.ir.Op.get(_name).get_attr("FPrimalGradient")) is not None:
        register_gradient(_name, _naming(_name, _rule), level=_NAMED)


def builtin(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Turn a call into a kernel by Relax's own legalization."""
    return call.op.get_attr("FLegalize")(builder, call)


def lowered(builder: relax.BlockBuilder, call: relax.Expr) -> relax.Var:
    """Turn a call into a kernel's, within the legalization of another operator."""
    call = builder.normalize(call)
    rule = LEGALIZE.get(call.op.name) or call.op.get_attr("FLegalize")
    return builder.emit(rule(builder, call))


def is_call(expression: relax.Expr, operator: str) -> bool:
    """Return whether an expression is a call of the operator of that name."""
    return isinstance(expression, tvm.ir.Call) and expression.op == tvm.ir.Op.get(operator)


def shape_of(expression: relax.Expr) -> Ints:
    """Return the static shape of a tensor expression."""
    return ints(expression.ty.shape)


def ints(values: object) -> Ints:
    """Return static extents as integers."""
    return tuple(int(value) for value in values)


def is_float(expression: relax.Expr) -> bool:
    """Return whether a tensor expression holds floating-point numbers."""
    return dtype_of(expression).startswith("float")


def dtype_of(expression: relax.Expr) -> str:
    """Return the element type of a tensor expression, by NumPy's name."""
    dtype = expression.ty.dtype
    return str(getattr(dtype, "dtype", dtype))


def fitted(gradient: relax.Expr, operand: relax.Expr, builder: relax.BlockBuilder) -> relax.Expr:
    """Sum a gradient over the axes along which its operand was broadcast."""
    emitted = builder.emit(gradient)
    shape = shape_of(operand)
    return emitted if shape_of(emitted) == shape else relax.op.collapse_sum_to(emitted, shape)


def bound_value(expression: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """Return the expression that a variable is bound to, through variables that are bound to others."""
    while isinstance(expression, relax.Var) and expression in bound:
        expression = bound[expression]
    return expression


def reduced_axes(call: relax.Call) -> tuple[Ints, Ints]:
    """Return the axes that a call reduces, and its operand's shape with one entry along them."""
    shape, axes = shape_of(call.args[0]), call.attrs.axis
    reduced = tuple(axis % len(shape) for axis in ints(axes)) if axes is not None else tuple(range(len(shape)))
    return reduced, tuple(1 if axis in reduced else extent for axis, extent in enumerate(shape))


def number(expression: relax.Expr) -> float | None:
    """Return the value of a constant without axes; None of anything else."""
    if isinstance(expression, tvm.ir.Constant) and not expression.value.shape:
        return float(expression.value.numpy())
    return None


# Operands whose axes are named by letters, brought to the order of the kernels and back.


def arranged(builder: relax.BlockBuilder, x: relax.Expr, layout: str, wanted: str) -> relax.Expr:
    """Bring `x`, whose axes are named by `layout`, to another order, with axes of one entry that it lacks."""
    own = [letter for letter in wanted if letter in layout]
    if own != list(layout):
        x = builder.emit(builder.call_te(topi.transpose, x, [layout.index(letter) for letter in own]))
    if len(own) == len(wanted):
        return x
    extents = dict(zip(own, shape_of(x), strict=True))
    return builder.emit(relax.op.reshape(x, [extents.get(letter, 1) for letter in wanted]))


def restored(builder: relax.BlockBuilder, result: relax.Expr, layout: str, wanted: str) -> relax.Expr:
    """Bring a kernel's result, with axes named by `layout`, to an order that may lack some axes of one entry."""
    if layout == wanted:
        return result
    result = builder.emit(result)
    kept = "".join(letter for letter in layout if letter in wanted)
    if kept != layout:
        extents = zip(layout, shape_of(result), strict=True)
        result = builder.emit(relax.op.reshape(result, [extent for letter, extent in extents if letter in wanted]))
    return arranged(builder, result, kept, wanted)
