"""The deterministic contraction schedule: from a fused function to code at the core's multiply-add rate.

The function's main block (a contraction) and its elementwise epilogue are replaced by generated loops around
register tiles; padded and packed operands are root-level buffers, so that they can become workspaces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tvm import s_tir

from autotm.kernels.code import Code, TargetInfo, replace_body
from autotm.kernels.schedules.contraction import build
from autotm.kernels.schedules.contraction.forms import batched_product, each_group
from autotm.kernels.schedules.contraction.parts import Problem, problem_of
from autotm.kernels.schedules.contraction.winograd import (
    winograd_data_gradient,
    winograd_forward,
    winograd_pays,
    winograd_weight_gradient,
    winograd_weights_pay,
)
from autotm.model.step import DEFAULT_IMPLEMENTATION

Generate = Callable[[Problem, TargetInfo, int], Code]


_PLAIN: dict[str, Generate] = {
    "conv2d": build.forward,
    "conv2d_data_gradient": build.data_gradient,
    "conv2d_weight_gradient": build.weight_gradient,
    "matmul": build.product,
    "matmul_nt": build.product_nt,
    "matmul_tn": build.product_tn,
    "batched_matmul": batched_product,
}
_WINOGRAD: dict[str, tuple[Callable[[Problem], bool], Generate]] = {
    "conv2d": (winograd_pays, winograd_forward),
    "conv2d_data_gradient": (winograd_pays, winograd_data_gradient),
    "conv2d_weight_gradient": (winograd_weights_pay, winograd_weight_gradient),
}
_LEAN: dict[str, Generate] = {
    "conv2d": build.forward,
    "conv2d_data_gradient": build.data_gradient,
    "conv2d_weight_gradient": functools.partial(build.weight_gradient, lean=True),
    "matmul_tn": functools.partial(build.product_tn, lean=True),
}
IMPLEMENTATIONS = (DEFAULT_IMPLEMENTATION, "lean")
"""Ways to compute a contraction.

`default` is meant to be the fastest whatever workspace that takes; `lean` takes little. Where the fastest takes little
too, both are the same code.
"""


def others(kind: str) -> tuple[str, ...]:
    """Names of the ways to compute a kind of contraction besides the default."""
    return IMPLEMENTATIONS[1:] if kind in _LEAN else ()


def _generator(problem: Problem, implementation: str) -> Generate:
    if implementation != DEFAULT_IMPLEMENTATION:
        return _LEAN[problem.kind]
    pays, winograd = _WINOGRAD.get(problem.kind, (None, _PLAIN[problem.kind]))
    return winograd if pays and pays(problem) else _PLAIN[problem.kind]


def schedule_contraction(
    sch: s_tir.Schedule,
    main_block: s_tir.schedule.SBlockRV,
    info: TargetInfo,
    threads: int,
    implementation: str = DEFAULT_IMPLEMENTATION,
) -> tuple[str, ...]:
    """Replace the body of the fused function in `sch` by generated code for `threads` threads.

    Returns the names of implementations that are other code for this function.

    Raises:
        ValueError: the function is no contraction with an elementwise epilogue.
    """
    problem = problem_of(sch, main_block)
    generate = _generator(problem, implementation)
    if problem.groups > 1:
        replace_body(sch, each_group(problem, generate, info, threads))
    else:
        replace_body(sch, generate(problem, info, threads))
    return tuple(name for name in others(problem.kind) if _generator(problem, name) is not generate)
