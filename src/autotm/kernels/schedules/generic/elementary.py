"""Elementary functions written out in float32 arithmetic, which vectors can do.

LLVM would call the C library for each element, which takes 10 to 25 times as long (measured). Errors are at most 6
units in the last place; infinities and NaN go through; exp is infinite from 88.4 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, tirx

_TANH_ODD = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
    6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_EVEN = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_TANH_END = 7.90531
_ERF_ODD = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
    -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_EVEN = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02
)  # fmt: skip
_ERF_END = 4.0
"""Coefficients of the library Eigen, highest power first: x P(x^2) / Q(x^2), and from where on the result is 1."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""Of the library Cephes: (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2."""
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
_EXP_LEAST, _EXP_MOST = -87.33, 88.37


def write_out(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with exp, tanh, erf and sigmoid of float32 numbers as arithmetic."""
    return tvm_ffi.structural_map(func, (ir.Call, _written))


def _written(call: ir.Call) -> tirx.Expr:
    form = _FORMS.get(getattr(call.op, "name", ""))
    if form is None or str(call.ty) not in {"float32", "T.float32"}:
        return call
    # A name: each form reads its argument several times.
    x = tirx.Var("x", "float32")
    return tirx.Let(x, call.args[0], form(x))


def _number(value: float) -> tirx.Expr:
    return tirx.FloatImm("float32", value)


def _polynomial(x: tirx.Expr, coefficients: Sequence[float]) -> tirx.Expr:
    value = _number(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _number(coefficient)
    return value


def _exp(x: tirx.Expr) -> tirx.Expr:
    """2^n exp(r) with x = n log 2 + r."""
    inside = tirx.max(tirx.min(x, _number(_EXP_MOST)), _number(_EXP_LEAST))
    n = tirx.floor(inside * _number(1 / math.log(2)) + _number(0.5))
    r = inside - n * _number(_LOG2_HIGH) - n * _number(_LOG2_LOW)
    exponent = (tirx.Cast("int32", n) + tirx.IntImm("int32", 127)) * tirx.IntImm("int32", 1 << 23)
    value = (_polynomial(r, _EXP) * r * r + r + _number(1.0)) * tirx.reinterpret("float32", exponent)
    below = tirx.Select(x >= _number(_EXP_LEAST), value, _number(0.0))
    return tirx.Select(x <= _number(_EXP_MOST), below, x * tirx.max_value("float32"))


def _sigmoid(x: tirx.Expr) -> tirx.Expr:
    return _number(1.0) / (_number(1.0) + _exp(_number(0.0) - x))


def _odd(odd: Sequence[float], even: Sequence[float], end: float) -> Callable[[tirx.Expr], tirx.Expr]:
    """An odd function that is 1 from `end` on, as x P(x^2) / Q(x^2)."""

    def form(x: tirx.Expr) -> tirx.Expr:
        value = x * _polynomial(x * x, odd) / _polynomial(x * x, even)
        above = tirx.Select(x >= _number(end), _number(1.0), x)
        outside = tirx.Select(x <= _number(-end), _number(-1.0), above)
        return tirx.Select(tirx.all(x > _number(-end), x < _number(end)), value, outside)

    return form


_FORMS: dict[str, Callable[[tirx.Expr], tirx.Expr]] = {
    "tirx.exp": _exp,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _odd(_TANH_ODD, _TANH_EVEN, _TANH_END),
    "tirx.erf": _odd(_ERF_ODD, _ERF_EVEN, _ERF_END),
}
