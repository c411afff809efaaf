"""The number of the step, and the factors of update rules that depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from autotm.kernels.code import OPAQUE
from autotm.lower.updates.formulas import Formula, bind
from autotm.model.step import RATE_SCALE, STEP

Binding = relax.VarBinding
_FACTOR = relax.TensorType((), "float32")


@dataclass(frozen=True)
class Counter:
    """A kernel that counts steps and computes the factors of some formulas, in float64.

    Attributes:
        old, new: the counter, int64 without axes.
        rate_scale: what learning rates are multiplied by, an input, float64 without axes; None where they are fixed.
        factors: of each formula, in the order given: float32 without axes.
        bindings: that compute them.
    """

    old: relax.Var
    new: relax.Var
    rate_scale: relax.Var | None
    factors: list[tuple[relax.Var, ...]]
    bindings: list[Binding]


def counter(builder: relax.BlockBuilder, formulas: Sequence[Formula], *, scheduled: bool) -> Counter:
    """The counter of formulas that have factors.

    Args:
        builder: of the module that the kernel is put into.
        formulas: whose factors are wanted.
        scheduled: whether their learning rates are numbers of each step.
    """
    old = relax.Var(STEP, relax.TensorType((), "int64"))
    scale = relax.Var(RATE_SCALE, relax.TensorType((), "float64")) if scheduled else None
    call = builder.call_te(
        lambda step, scales: count(step, formulas, *scales),
        old,
        [] if scale is None else [scale],
        primfunc_name_hint="step_factors",
        primfunc_attrs=OPAQUE,
    )
    new = relax.Var(f"{STEP}_new", old.ty)
    factors = [
        tuple(relax.DataflowVar(f"factor{index}", _FACTOR) for index in range(formula.factor_count))
        for formula in formulas
    ]
    return Counter(old, new, scale, factors, bind(call, [new, *(factor for some in factors for factor in some)]))


def count(before: te.Tensor, formulas: Sequence[Formula], rate_scale: te.Tensor | None = None) -> list[te.Tensor]:
    """The kernel of `counter`: the number of the step after `before`, and the factors of all formulas in it."""
    scale = tirx.const(1.0, "float64") if rate_scale is None else rate_scale()
    now = te.compute((), lambda: before() + tirx.const(1, "int64"), name="step")
    values = [value for formula in formulas for value in formula.factors(now().astype("float64"), scale)]
    return [now, *map(_factor, values)]


def _factor(value: tirx.Expr) -> te.Tensor:
    return te.compute((), lambda: value.astype("float32"), name="step_factor")
