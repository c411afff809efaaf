"""Tables that are only looked up in: their gradient is never made, the looked-up rows are updated in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from autotm.kernels.operators import Lookup
from autotm.lower.operators import ints, shape_of

_TAKE_BACKWARD = "relax.grad.take_backward"


def lookups_of(table: relax.Var, gradient: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> list[Lookup] | None:
    """The lookups whose gradients `gradient` is the sum of, in order; None if it is of anything else too.

    Args:
        table: a parameter.
        gradient: of the whole table.
        bound: the value of every variable of the step.
    """
    value = _value(gradient, bound)
    if not isinstance(value, tvm.ir.Call):
        return None
    if value.op == tvm.ir.Op.get("relax.add"):
        parts = [lookups_of(table, argument, bound) for argument in value.args]
        return None if None in parts else [lookup for part in parts for lookup in part]
    if value.op != tvm.ir.Op.get(_TAKE_BACKWARD) or value.attrs.axis != 0 or len(shape_of(value)) != 2:  # noqa: PLR2004
        return None
    slope, _, indices = value.args
    return [Lookup(table, indices, *_columns(slope, bound))]


def together(lookups: Sequence[list[Lookup]]) -> list[list[Lookup]]:
    """The lookups of several tables, by table, put together where they read the same slope: one kernel for each list.

    A table with several lookups stays by itself, which keeps all of it in one kernel.
    """
    groups: dict[object, list[Lookup]] = {}
    for number, of_table in enumerate(lookups):
        key = of_table[0].slope if len(of_table) == 1 else number
        groups.setdefault(key, []).extend(of_table)
    return list(groups.values())


def _columns(slope: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> tuple[relax.Expr, int]:
    """Where a slope can be read: some columns of a wider matrix instead of their copy."""
    source = _value(slope, bound)
    is_slice = isinstance(source, tvm.ir.Call) and source.op == tvm.ir.Op.get("relax.strided_slice")
    if not is_slice or ints(source.args[1]) != (1,):
        return slope, 0
    wide, _, begin = source.args[:3]
    return (wide, ints(begin)[0]) if len(shape_of(wide)) == 2 else (slope, 0)  # noqa: PLR2004  (matrices)


def _value(expression: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    while isinstance(expression, relax.Var) and expression in bound:
        expression = bound[expression]
    return expression
