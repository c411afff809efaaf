"""The deterministic contraction schedule: from a fused function to code at the core's multiply-add rate.

The function's main block (a contraction) and its elementwise epilogue are replaced by generated loops around
register tiles; padded and packed operands are root-level buffers, so that they can become workspaces.
"""

from __future__ import annotations

from tvm import s_tir

from autotm.kernels import contraction_build as build
from autotm.kernels.contraction_problem import problem_of
from autotm.kernels.target import TargetInfo

_GENERATORS = {
    "conv2d": build.forward,
    "conv2d_data_gradient": build.data_gradient,
    "conv2d_weight_gradient": build.weight_gradient,
    "matmul": build.product,
    "matmul_nt": build.product_nt,
    "matmul_tn": build.product_tn,
}


def schedule_contraction(
    sch: s_tir.Schedule, main_block: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int
) -> None:
    """Replace the body of the fused function in `sch` by generated code for `threads` threads.

    Raises:
        ValueError: the function is no contraction with an elementwise epilogue.
    """
    problem = problem_of(sch, main_block)
    code = _GENERATORS[problem.kind](problem, info, threads)
    root = sch.get_sref(sch.get_sblock("root"))
    block = root.stmt
    body = s_tir.SBlock(
        iter_vars=[],
        reads=block.reads,
        writes=block.writes,
        name_hint=block.name_hint,
        body=code.body,
        alloc_buffers=list(code.workspaces),
        annotations=block.annotations,
    )
    sch.state.replace(root, body)
