"""Marked gradients of a network (`zoo.network.gradients`) -> the rules of their operators."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autotm.zoo import is_gradient


class NoGradientError(Exception):
    """An operator, which it names, has no rule."""


def _rule(call: relax.Call) -> Any:
    return call.op.get_attr("FPrimalGradient")


@mutator
class _Expand(PyExprMutator):
    """Puts what the rule of an operator computes in the place of each mark."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not is_gradient(call):
            return super().visit_call_(call)
        result, slope = (self.visit_expr(item) for item in call.args[1:])
        applied = self.builder_.lookup_binding(result)
        if isinstance(result.ty, relax.TupleType):
            slope = relax.Tuple([slope])
        found = _rule(applied)(result, applied, slope, self.builder_)
        return relax.Tuple([self.builder_.emit(item) for item in list(found)[: len(call.ty.fields)]])


def with_gradients(module: tvm.IRModule) -> tvm.IRModule:
    """The module with every marked gradient computed; a forward operator that only its gradient names is dropped.

    Raises:
        NoGradientError: an operator has no rule for it.
    """
    bound = {binding.var: binding.value for block in module["main"].body.blocks for binding in block.bindings}
    marked = [bound[value.args[1]] for value in bound.values() if is_gradient(value)]
    if not marked:
        return module
    for call in marked:  # Now: what is raised within a visitor, TVM turns into another error.
        if _rule(call) is None:
            raise NoGradientError(call.op.name)
    expand = _Expand(module)
    main = expand.visit_expr(module["main"])
    found = expand.builder_.get()
    found.update_func(module.get_global_var("main"), main)
    for transform in (
        relax.transform.Normalize(), relax.transform.CanonicalizeBindings(),
        relax.transform.EliminateCommonSubexpr(), relax.transform.DeadCodeElimination(["main"]),
    ):  # fmt: skip
        found = transform(found)
    return found
