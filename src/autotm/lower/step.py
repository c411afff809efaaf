"""A network's function -> one whole step: gradients that the network marks, and, where it is trained, updates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autotm.lower.operators import fold_transposes
from autotm.lower.rules import bound_value, is_call
from autotm.lower.updates import Updates, append_updates
from autotm.model.errors import AutotmError
from autotm.model.graph import Initial, Role
from autotm.model.training import RATE_SCALE, Training
from autotm.zoo import Fill, Network, is_gradient

_OPERATOR = re.compile(r"relax(\.\w+)+")
_REMEDY = "write it with operators that have one, or register one as the families in src/autotm/lower do"
_NO_GRADIENT = re.compile(r"FPrimalGradient has not been registered for ([\w.]+)")


@dataclass(frozen=True)
class Argument:
    """An argument of a step: its role, and how it is filled before the first step."""

    role: Role
    initial: Fill


@dataclass(frozen=True)
class Result:
    """A result of a step: the name of its tensor, and the argument whose memory the tensor takes, if any."""

    name: str
    replaces: str | None = None

    @classmethod
    def new(cls, argument: str) -> Result:
        """Return the result that is the new value of an argument."""
        return cls(f"{argument}.new", argument)


@dataclass(frozen=True)
class Step:
    """One whole step in Relax.

    Attributes:
        module: its `main` takes the arguments and returns a tuple of the results.
        arguments: by name.
        results: in the order of the tuple.
    """

    module: tvm.IRModule
    arguments: Mapping[str, Argument]
    results: tuple[Result, ...]


def whole_step(network: Network) -> Step:
    """Return the step of a network: its outputs, the new states, and, if it is trained, the updated parameters.

    Raises:
        AutotmError: an operator between the parameters and the loss has no gradient.
    """
    main = _with_results(network.module["main"])
    arguments = {
        **{name: Argument(Role.INPUT, initial) for name, initial in network.inputs.items()},
        **{name: Argument(Role.PARAMETER, initial) for name, initial in network.parameters.items()},
        **{name: Argument(Role.STATE, initial) for name, initial in network.states.items()},
    }
    results = [*map(Result, network.results), *map(Result.new, network.states)]
    if network.training is None:
        results += [Result(f"{name}.gradient") for name in network.gradients or ()]
    module = with_gradients(_replaced(network.module, main), partial(_no_gradient, network))
    module = fold_transposes(module)
    if network.training is not None:
        module, updates = _trained(network, module, network.training)
        for added in updates.arguments:
            if added.name in arguments:
                raise AutotmError(f"network {network.name}: '{added.name}' is what its update rules keep; rename it")
        for state in updates.states:
            arguments[state.name] = Argument(Role.STATE, network.rule_states.get(state.name, Initial("zeros")))
        if updates.rate_scale is not None:
            arguments[RATE_SCALE] = Argument(Role.INPUT, Initial("ones"))
        results += [Result.new(str(old.name)) for old in updates.new]
    # Gradients of whole tables are dead by now: updates read rows.
    module = relax.transform.DeadCodeElimination(["main"])(relax.transform.Normalize()(module))
    return Step(module, arguments, tuple(results))


def _with_results(main: relax.Function) -> relax.Function:
    """Give every result of a function a variable of its own, as differentiation needs it."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}
    returned = bound_value(main.body.body, bound)
    fields = list(returned.fields) if isinstance(returned, relax.Tuple) else [main.body.body]
    results = [relax.Var(f"result{index}", item.ty) for index, item in enumerate(fields)]
    more = [relax.VarBinding(result, item) for result, item in zip(results, fields, strict=True)]
    return _function(main.params, [*bindings, *more], results)


def _trained(network: Network, module: tvm.IRModule, training: Training) -> tuple[tvm.IRModule, Updates]:
    """Append updates to a step, and before these its backward pass, unless the network came with gradients."""
    if network.gradients is None:
        module = _differentiated(network, module)
    adjoint = module["main_adjoint" if network.gradients is None else "main"]
    bindings = [binding for block in adjoint.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}
    returned = list(bound_value(adjoint.body.body, bound).fields)
    if network.gradients is None:
        results, gradients = (list(bound_value(item, bound).fields) for item in returned)
        trained = [var for var in adjoint.params if var.name in network.parameters]
    else:
        count = len(returned) - len(network.gradients)
        results, gradients = returned[:count], returned[count:]
        by_name = {var.name: var for var in adjoint.params}
        trained = [by_name[name] for name in network.gradients]
    # Parameters that the loss does not depend on are not updated, as in PyTorch: they do not even decay.
    pairs = [
        (old, slope)
        for old, slope in zip(trained, gradients, strict=True)
        if not is_call(bound_value(slope, bound), "relax.zeros")
    ]
    builder = relax.BlockBuilder(module)
    olds, slopes = [old for old, _ in pairs], [slope for _, slope in pairs]
    updates = append_updates(builder, olds, slopes, training, bindings)
    params, returned = [*adjoint.params, *updates.arguments], [*results, *updates.new.values()]
    return _replaced(builder.get(), _function(params, updates.bindings, returned)), updates


def _differentiated(network: Network, module: tvm.IRModule) -> tvm.IRModule:
    trained = [var for var in module["main"].params if var.name in network.parameters]
    try:
        return relax.transform.Gradient("main", trained, target_index=0)(module)
    except NotImplementedError as error:
        raise AutotmError(
            f"network {network.name}: {error}{first_use(network, str(error))}; without this there is no gradient: "
            f"{_REMEDY}"
        ) from None
    except RuntimeError as error:
        if (named := _NO_GRADIENT.search(str(error))) is None:
            raise
        raise _no_gradient(network, named[1]) from None


# Marked gradients of a network (`zoo.network.gradient_of`) -> what the rules of their operators compute.


@mutator
class _Expand(PyExprMutator):
    """Replaces each mark by the gradients that the rule of its operator computes."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not is_gradient(call):
            return super().visit_call_(call)
        result, slope = (self.visit_expr(item) for item in call.args[1:])
        applied = self.builder_.lookup_binding(result)
        if isinstance(result.ty, relax.TupleType):
            slope = relax.Tuple([slope])
        slopes = applied.op.get_attr("FPrimalGradient")(result, applied, slope, self.builder_)
        return relax.Tuple([self.builder_.emit(item) for item in list(slopes)[: len(call.ty.fields)]])


def with_gradients(module: tvm.IRModule, no_gradient: Callable[[str], AutotmError]) -> tvm.IRModule:
    """Compute every marked gradient; a forward operator that only its gradient names is dropped.

    Raises:
        AutotmError: an operator has no rule for its gradient: what `no_gradient` returns for its name.
    """
    expanded = module
    for own, function in module.functions.items():
        if not isinstance(function, relax.Function):
            continue
        bound = {binding.var: binding.value for block in function.body.blocks for binding in block.bindings}
        marked = [bound[value.args[1]] for value in bound.values() if is_gradient(value)]
        if not marked:
            continue
        for call in marked:  # TVM turns errors raised within a visitor into others, so this is checked before.
            if call.op.get_attr("FPrimalGradient") is None:
                raise no_gradient(call.op.name)
        expand = _Expand(expanded)
        replaced = expand.visit_expr(function)
        expanded = expand.builder_.get()
        expanded.update_func(own, replaced)
    if expanded is module:
        return module
    for transform in (
        relax.transform.Normalize(), relax.transform.CanonicalizeBindings(),
        relax.transform.EliminateCommonSubexpr(), relax.transform.DeadCodeElimination(["main"]),
    ):  # fmt: skip
        expanded = transform(expanded)
    return expanded


def _no_gradient(network: Network, operator: str) -> AutotmError:
    return AutotmError(
        f"network {network.name}: {operator} has no gradient here{first_use(network, operator)}; {_REMEDY}"
    )


def first_use(network: Network, fault: str) -> str:
    """Say where in its source a network first uses the operator that a fault names, if that is known."""
    lines = network.origin.lines if network.origin else {}
    match = _OPERATOR.search(fault)
    return f" (first used in {lines[match[0]]})" if match and match[0] in lines else ""


def _function(params: list[relax.Var], bindings: list[relax.Binding], results: list[relax.Expr]) -> relax.Function:
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], relax.Tuple(results))
    return relax.Function(list(params), body, relax.TupleType([item.ty for item in results]))


def _replaced(module: tvm.IRModule, main: relax.Function) -> tvm.IRModule:
    """Return a module with the kernels of another and this `main`."""
    functions = {var: item for var, item in module.functions.items() if not isinstance(item, relax.Function)}
    return tvm.IRModule({**functions, tvm.ir.GlobalVar("main"): main.with_attr("global_symbol", "main")})
