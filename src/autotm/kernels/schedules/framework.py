"""Kernels that an operator of another framework computes: a call by name, with nothing to schedule."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from autotm.kernels.code import GENERATED, OPAQUE, Workspace
from autotm.model.step import OpClass

FRAMEWORK = "autotm.framework"
"""Attribute of such functions: the operator's name, its framework's before it."""
_OP_CLASS, _FLOPS, _WORKSPACE = "autotm.op_class", "autotm.flops", "autotm.workspace_bytes"


def framework_kernel(
    builder: relax.BlockBuilder,
    operands: Sequence[relax.Expr],
    results: Sequence[tuple[tuple[int, ...], str]],
    name: str,
    text: str,
    op_class: OpClass,
    flops: int,
    workspace_bytes: int,
    callee: str,
) -> list[relax.Var]:
    """Emit a call of a function that runs in the framework.

    Args:
        builder: of the step.
        operands: tensors that the function reads.
        results: shape and type of each tensor that it writes.
        name: of the operator, with that of its framework before it, such as `torch_inverse`.
        text: what the function is told about it.
        op_class: what the operator does to memory.
        flops: floating-point operations of a call.
        workspace_bytes: what the framework allocates during a call, at most.
        callee: the name by which compiled code finds the function: it takes `text` and the addresses of all tensors.
    """

    def called(*inputs: te.Tensor) -> list[te.Tensor] | te.Tensor:
        return te.extern(
            [list(shape) for shape, _ in results],
            list(inputs),
            lambda ins, outs: tirx.call_packed(callee, text, *(buffer.data for buffer in (*ins, *outs))),
            name=name,
            dtype=[dtype for _, dtype in results],
        )

    attributes = {
        **OPAQUE, FRAMEWORK: name, _OP_CLASS: str(op_class), _FLOPS: flops, _WORKSPACE: workspace_bytes
    }  # fmt: skip
    call = builder.emit(builder.call_te(called, *operands, primfunc_name_hint=name, primfunc_attrs=attributes))
    if len(results) == 1:
        return [call]
    return [builder.emit(relax.TupleGetItem(call, number)) for number in range(len(results))]


def costs_of(func: tirx.PrimFunc) -> tuple[str, OpClass, int]:
    """Return name, class and floating-point operations of a function that runs in a framework."""
    return str(func.attrs[FRAMEWORK]), OpClass(str(func.attrs[_OP_CLASS])), int(func.attrs[_FLOPS])


def with_workspace(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, tuple[Workspace, ...]]:
    """Return the function ready to be compiled, and the workspace that stands for what the framework allocates.

    The framework allocates it elsewhere, in fast memory; the limit counts it here.
    """
    size = int(func.attrs[_WORKSPACE])
    func = func.with_attr(GENERATED, True).with_attr("tirx.noalias", True)
    if not size:
        return func, ()
    counted = tirx.decl_buffer((size,), "uint8", "workspace")
    return tirx.PrimFunc([*func.params, counted], func.body, func.ret_type, attrs=func.attrs), (((size,), "uint8"),)
