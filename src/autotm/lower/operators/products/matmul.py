"""Products of matrices, single and batched."""

from __future__ import annotations

import math

import tvm
from tvm import relax
from tvm.relax.op import _op_gradient as relax_rules

from autotm.kernels.operators import Subscripts, batched_matmul, matmul
from autotm.lower.operators.rules import builtin, differentiates, legalizes, shape_of

_LETTERS = "abcdefgh"


@legalizes("relax.matmul")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    a, b = call.args
    if _is_dense(call):
        rows = builder.emit(relax.op.reshape(a, _flat(a)))
        return relax.op.reshape(builder.emit(builder.call_te(matmul.matmul, rows, b)), shape_of(call))
    if _is_matrix_product(call):
        return builder.call_te(matmul.matmul, a, b)
    letters = _batched(call)
    return builder.call_te(batched_matmul, a, b, str(letters)) if letters else builtin(builder, call)


@differentiates("relax.matmul")
def _gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    a, b = call.args
    if _is_dense(call):
        rows, slopes = (builder.emit(relax.op.reshape(value, _flat(value))) for value in (a, dy))
        by_rows = builder.emit(builder.call_te(matmul.matmul_nt, slopes, b))
        return [relax.op.reshape(by_rows, shape_of(a)), builder.call_te(matmul.matmul_tn, rows, slopes)]
    if _is_matrix_product(call):
        return [builder.call_te(matmul.matmul_nt, dy, b), builder.call_te(matmul.matmul_tn, a, dy)]
    letters = _batched(call)
    if letters is None:
        return relax_rules.matmul_grad(y, call, dy, builder)
    return _batched_gradient(a, b, letters, dy, builder)


@legalizes("relax.einsum")
def _legalize_einsum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    letters = _einsum(call)
    return _product(builder, *call.args[0], letters) if letters else builtin(builder, call)


@differentiates("relax.einsum")
def _einsum_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    letters = _einsum(call)
    if letters is None:
        message = f"einsum '{call.attrs.subscripts}' has no gradient: only batched products of two matrices do"
        raise NotImplementedError(message)
    return [relax.Tuple(_batched_gradient(*call.args[0], letters, dy, builder))]


def _batched_gradient(
    a: relax.Expr, b: relax.Expr, letters: Subscripts, dy: relax.Expr, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    dy, factor = _factored(dy, builder)
    found = [
        builder.emit(_product(builder, dy, b, letters.left_gradient)),
        builder.emit(_product(builder, a, dy, letters.right_gradient)),
    ]
    return found if factor is None else [builder.emit(relax.op.multiply(slope, factor)) for slope in found]


def _product(builder: relax.BlockBuilder, a: relax.Expr, b: relax.Expr, letters: Subscripts) -> relax.Expr:
    """A batched product; of two matrices, the plain one that reads them as they lie."""
    if len(letters.result) == 2:  # noqa: PLR2004  (a matrix)
        row, column = letters.result
        (first, ours), (second, theirs) = sorted(
            ((a, letters.left), (b, letters.right)), key=lambda operand: column in operand[1]
        )
        form = _FORMS.get((ours.index(row), theirs.index(column)))
        if form is not None:
            return builder.call_te(form, first, second)
    return builder.call_te(batched_matmul, a, b, str(letters))


_FORMS = {(0, 1): matmul.matmul, (0, 0): matmul.matmul_nt, (1, 1): matmul.matmul_tn}
"""By where the rows' axis is in the first operand, and the columns' in the second."""


def _factored(dy: relax.Expr, builder: relax.BlockBuilder) -> tuple[relax.Expr, relax.Expr | None]:
    """`dy` as a tensor times a number: behind the products of its gradients, a multiplication costs no kernel."""
    value = builder.lookup_binding(dy)
    if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get("relax.multiply"):
        return dy, None
    x, factor = value.args
    is_number = isinstance(factor, tvm.ir.Constant) and not factor.value.shape
    return (x, factor) if is_number else (dy, None)


def _is_matrix_product(call: relax.Call) -> bool:
    return all(len(shape_of(argument)) == 2 for argument in call.args)  # noqa: PLR2004  (matrices)


def _is_dense(call: relax.Call) -> bool:
    """Whether every row of a tensor of more axes is multiplied by one matrix: to the kernels, rows of a matrix."""
    a, b = (len(shape_of(argument)) for argument in call.args)
    return a > 2 and b == 2  # noqa: PLR2004  (matrices)


def _flat(rows: relax.Expr) -> tuple[int, int]:
    *leading, width = shape_of(rows)
    return math.prod(leading), width


def _batched(call: relax.Call) -> Subscripts | None:
    a, b = (shape_of(argument)[:-2] for argument in call.args)
    if a != b or not 0 < len(a) <= len(_LETTERS):
        return None
    batch = _LETTERS[: len(a)]
    return Subscripts(f"{batch}ij", f"{batch}jk", f"{batch}ik")


def _einsum(call: relax.Call) -> Subscripts | None:
    if len(call.args[0]) != 2:  # noqa: PLR2004  (a product)
        return None
    letters = Subscripts.parse(call.attrs.subscripts)
    return letters if letters.is_product else None
