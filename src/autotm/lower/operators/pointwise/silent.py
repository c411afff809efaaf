"""Operators whose result is no smooth function of what they read: integers, truth values, places, fresh constants."""

from __future__ import annotations

from tvm import relax, te, tirx
from tvm.relax.op.grad import no_grad

from autotm.lower.operators.rules import differentiates, dtype_of, is_float, legalizes, shape_of

_SILENT = (
    "arange", "argmax", "argmin", "argsort", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bucketize",
    "eye", "eye_like", "grad.no_grad", "hamming_window", "isfinite", "isinf", "isnan", "left_shift", "logical_and",
    "logical_not", "logical_or", "logical_xor", "multinomial_from_uniform", "nonzero", "one_hot", "right_shift",
    "shape_of", "shape_to_tensor", "size", "unique",
)  # fmt: skip


def _nothing(_y: relax.Var, call: relax.Call, _dy: relax.Var, _builder: relax.BlockBuilder) -> list[relax.Expr]:
    return [no_grad(argument) for argument in call.args]


@legalizes("relax.arange")
def _arange(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax makes it a constant, which a graph has no place for.
    first, _, step = (number.value for number in call.args)
    dtype = dtype_of(call)

    def numbers() -> te.Tensor:
        def element(at: tirx.Var) -> tirx.Expr:
            return tirx.const(first, dtype) + tirx.Cast(dtype, at) * tirx.const(step, dtype)

        return te.compute(shape_of(call), element, name="arange")

    return builder.call_te(numbers, primfunc_name_hint="arange")


for _name in _SILENT:
    differentiates(f"relax.{_name}")(_nothing)


@legalizes("relax.grad.no_grad")
def _itself(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.args[0]


@differentiates("relax.astype")
def _astype(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> list[relax.Expr]:
    # What was made of integers sends nothing back to the arithmetic on them.
    (x,) = call.args
    return [relax.op.astype(dy, x.ty.dtype) if is_float(x) else no_grad(x)]
