"""Functions of Relax with branches, and with calls of each other and of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import ir, relax
from tvm.relax.expr import _update_type

Kind = tuple[tuple[int, ...], str]


def tensor_type(kind: Kind) -> relax.TensorType:
    """Return the type of tensors of a shape and an element type."""
    return relax.TensorType(*kind)


def function_variable(name: str, params: Sequence[ir.Type], result: ir.Type) -> ir.GlobalVar:
    """Return a variable for a function of these types, which calls of it can be written with."""
    own = ir.GlobalVar(name)
    _update_type(own, relax.FuncType(list(params), result))
    return own


class FunctionWriter:
    """Writes one function of Relax, with branches and calls, as `relax.BlockBuilder` cannot.

    Attributes:
        own: the function, for calls of it.
        params: by name.
    """

    def __init__(self, name: str, params: Mapping[str, Kind], result: Kind | Sequence[Kind]) -> None:
        """Begin a function that returns a tensor, or a tuple of several."""
        self.params = {key: relax.Var(key, tensor_type(kind)) for key, kind in params.items()}
        is_tensor = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], str)  # noqa: PLR2004
        self.result_type = tensor_type(result) if is_tensor else relax.TupleType([tensor_type(item) for item in result])
        self.own = function_variable(name, [var.ty for var in self.params.values()], self.result_type)
        self._normalizer = relax.BlockBuilder()
        self._bindings: list[relax.VarBinding] = []

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Bind an expression to a variable."""
        expression = self._normalizer.normalize(expression)
        return self._bind(expression, expression.ty)

    def call(self, function: FunctionWriter, *arguments: relax.Expr) -> relax.Var:
        """Call a function that is written here, or this one."""
        return self._bind(relax.Call(function.own, list(arguments)), function.result_type)

    def results(self, function: ir.GlobalVar, arguments: Sequence[relax.Expr]) -> list[relax.Var]:
        """Call a function that returns a tuple, and take that apart."""
        several = self.emit(relax.Call(function, list(arguments)))
        return [self.emit(relax.TupleGetItem(several, index)) for index in range(len(several.ty.fields))]

    def branch(
        self, condition: relax.Expr, then: Callable[[], relax.Expr], otherwise: Callable[[], relax.Expr]
    ) -> relax.Var:
        """Branch on a bool; the sides are written by functions that return their results."""
        sides = [self._side(side) for side in (then, otherwise)]
        return self._bind(relax.If(condition, *sides), sides[0].body.ty)

    def function(self, result: relax.Expr) -> relax.Function:
        """Return the function."""
        body = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        return relax.Function(list(self.params.values()), body, self.result_type)

    def _bind(self, expression: relax.Expr, ty: ir.Type) -> relax.Var:
        var = relax.Var("v", ty)
        self._bindings.append(relax.VarBinding(var, expression))
        return var

    def _side(self, write: Callable[[], relax.Expr]) -> relax.SeqExpr:
        outer, self._bindings = self._bindings, []
        result = self.emit(write())
        side = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        self._bindings = outer
        return side


def as_module(functions: Mapping[FunctionWriter, relax.Function]) -> tvm.IRModule:
    """Return functions, by what wrote them, as one module."""
    made = {writer.own: func.with_attr("global_symbol", writer.own.name_hint) for writer, func in functions.items()}
    return relax.transform.Normalize()(tvm.IRModule(made))


def integer(value: int) -> relax.Constant:
    """Return a whole number as a tensor without axes."""
    return relax.const(value, "int64")
