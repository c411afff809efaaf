"""Forward pass and loss -> one whole training step: gradients and SGD updates appended."""

from __future__ import annotations

import re

import tvm
from tvm import relax

from autotm.lower import operators as _  # noqa: F401  (registers our gradient rules)
from autotm.lower.update import append_updates
from autotm.model.files import AutotmError
from autotm.zoo import Network

_NO_GRADIENT = re.compile(r"FPrimalGradient has not been registered for ([\w.]+)")


def training_step(network: Network) -> tvm.IRModule:
    """A module whose `main` takes the network's arguments and returns (loss, updated parameters in argument order).

    The update is new = old - learning_rate * gradient; of a table that is only looked up in, the rows that were.

    Raises:
        AutotmError: an operator between the parameters and the loss has no gradient.
    """
    forward = network.module["main"]
    trained = [var for var in forward.params if var.name in network.parameters]
    differentiated = _differentiated(network, trained)
    adjoint = differentiated["main_adjoint"]
    loss, gradients = _outputs(adjoint)
    old = [var for var in adjoint.params if var.name in network.parameters]
    builder = relax.BlockBuilder(differentiated)
    bindings = [binding for block in adjoint.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}
    updated, more = append_updates(builder, old, gradients, network.learning_rate, bound)
    results = [loss, *updated]
    body = relax.SeqExpr([relax.DataflowBlock([*bindings, *more])], relax.Tuple(results))
    function = relax.Function(list(adjoint.params), body, relax.TupleType([item.ty for item in results]))
    functions = {var: item for var, item in builder.get().functions.items() if not isinstance(item, relax.Function)}
    step = tvm.IRModule({**functions, tvm.ir.GlobalVar("main"): function.with_attr("global_symbol", "main")})
    # Dead by now: gradients of whole tables.
    return relax.transform.DeadCodeElimination(["main"])(relax.transform.Normalize()(step))


def _differentiated(network: Network, trained: list[relax.Var]) -> tvm.IRModule:
    try:
        return relax.transform.Gradient("main", trained)(network.module)
    except RuntimeError as error:
        if (found := _NO_GRADIENT.search(str(error))) is None:
            raise
        raise AutotmError(
            f"network {network.name}: {found[1]} has no gradient here; write it with operators that have one, or "
            "register one as src/autotm/lower/operators do"
        ) from None


def _outputs(adjoint: relax.Function) -> tuple[relax.Var, list[relax.Var]]:
    """The loss and the gradients that `Gradient` made the adjoint return."""
    result = adjoint.body.body
    bound = {binding.var: binding.value for block in adjoint.body.blocks for binding in block.bindings}
    while isinstance(result, relax.Var):
        result = bound[result]
    loss, gradients = result.fields
    while isinstance(gradients, relax.Var):
        gradients = bound[gradients]
    return loss, list(gradients.fields)
