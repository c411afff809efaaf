"""Forward pass and loss -> one whole training step: gradients and SGD updates appended."""

from __future__ import annotations

import tvm
from tvm import relax

from autotm.kernels.embedding import Lookup, call_embedding_update
from autotm.lower import operators as _  # noqa: F401  (registers our gradient rules)
from autotm.lower.lookups import lookups_of, together
from autotm.zoo import Network


def training_step(network: Network) -> tvm.IRModule:
    """A module whose `main` takes the network's arguments and returns (loss, updated parameters in argument order).

    The update is new = old - learning_rate * gradient; of a table that is only looked up in, the rows that were.
    """
    forward = network.module["main"]
    trained = [var for var in forward.params if var.name in network.parameters]
    differentiated = relax.transform.Gradient("main", trained)(network.module)
    adjoint = differentiated["main_adjoint"]
    loss, gradients = _outputs(adjoint)
    old = [var for var in adjoint.params if var.name in network.parameters]
    builder = relax.BlockBuilder(differentiated)
    bindings = [binding for block in adjoint.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}
    rate = relax.const(network.learning_rate, "float32")
    updated: dict[relax.Var, relax.Var] = {}
    sparse = []
    for parameter, slope in zip(old, gradients, strict=True):
        if lookups := lookups_of(parameter, slope, bound):
            sparse.append(lookups)
            continue
        change = relax.DataflowVar(f"{parameter.name}_change", parameter.ty)
        updated[parameter] = _updated(parameter)
        bindings.append(relax.VarBinding(change, relax.op.multiply(slope, rate)))
        bindings.append(relax.VarBinding(updated[parameter], relax.op.subtract(parameter, change)))
    for lookups in together(sparse):
        bindings += _update_rows(builder, lookups, network.learning_rate, updated)
    results = [loss, *(updated[parameter] for parameter in old)]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], relax.Tuple(results))
    function = relax.Function(list(adjoint.params), body, relax.TupleType([item.ty for item in results]))
    functions = {var: item for var, item in builder.get().functions.items() if not isinstance(item, relax.Function)}
    step = tvm.IRModule({**functions, tvm.ir.GlobalVar("main"): function.with_attr("global_symbol", "main")})
    # Dead by now: gradients of whole tables.
    return relax.transform.DeadCodeElimination(["main"])(relax.transform.Normalize()(step))


def _updated(parameter: relax.Var) -> relax.Var:
    return relax.Var(f"{parameter.name}_new", parameter.ty)


def _update_rows(
    builder: relax.BlockBuilder, lookups: list[Lookup], rate: float, updated: dict[relax.Var, relax.Var]
) -> list[relax.VarBinding]:
    """The bindings of one kernel's new tables, which are added to `updated`."""
    tables = list(dict.fromkeys(lookup.table for lookup in lookups))
    updated.update({table: _updated(table) for table in tables})
    call = call_embedding_update(builder, lookups, rate)
    if len(tables) == 1:
        return [relax.VarBinding(updated[tables[0]], call)]
    every = relax.DataflowVar("tables_new", relax.TupleType([table.ty for table in tables]))
    parts = [relax.VarBinding(updated[table], relax.TupleGetItem(every, at)) for at, table in enumerate(tables)]
    return [relax.VarBinding(every, call), *parts]


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
