"""The sum that undoes a broadcast over the last axis: the gradient of a bias."""

from __future__ import annotations

from tvm import relax

from autotm.kernels.code import OPAQUE
from autotm.kernels.schedules.rows import bias
from autotm.lower.operators.rules import builtin, legalizes, shape_of


@legalizes("relax.collapse_sum_to")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    source, result = shape_of(call.args[0]), shape_of(call)
    if len(source) > 1 and result == source[-1:]:
        return builder.call_te(bias.bias_gradient, call.args[0], primfunc_attrs=OPAQUE)
    return builtin(builder, call)
