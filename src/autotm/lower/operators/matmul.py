"""Products of matrices."""

from __future__ import annotations

from tvm import relax
from tvm.relax.op import _op_gradient as relax_rules

from autotm.kernels import matmul
from autotm.lower.operators.rules import builtin, differentiates, legalizes, shape_of


@legalizes("relax.matmul")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(matmul.matmul, *call.args) if _is_matrix_product(call) else builtin(builder, call)


@differentiates("relax.matmul")
def _gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    if not _is_matrix_product(call):
        return relax_rules.matmul_grad(y, call, dy, builder)
    a, b = call.args
    return [builder.call_te(matmul.matmul_nt, dy, b), builder.call_te(matmul.matmul_tn, a, dy)]


def _is_matrix_product(call: relax.Call) -> bool:
    return all(len(shape_of(argument)) == 2 for argument in call.args)  # noqa: PLR2004  (matrices)
