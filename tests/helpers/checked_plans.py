"""Plans that the independent checker accepts, and how close they are to the best one."""

from __future__ import annotations

from typing import Any

from random_graphs import Case

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.model.program import Layout, Program
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve, solve_and_pack


def solved(
    case: Case, optimizer: str, limit: Limit, options: SolveOptions | None = None, packing: Any | None = None
) -> Plan:
    """A checked plan."""
    plan = solve(*case, optimizer, limit, options, packing)
    options = options or SolveOptions()
    check_plan(*case, plan, fixed=options.fixed, fast_operands_only=options.fast_operands_only)
    return plan


def packed(
    case: Case, optimizer: str, limit: Limit, options: SolveOptions | None = None
) -> tuple[Plan, Layout, Program]:
    """A checked plan with its layout and its program, which is checked too."""
    plan, layout = solve_and_pack(*case, optimizer, limit, options)
    check_plan(*case, plan, fast_operands_only=options is not None and options.fast_operands_only)
    program = compile_program(case.graph, plan, layout)
    check_program(case.graph, plan, program)
    return plan, layout, program


def claimed_gap(plan: Plan) -> float:
    """The gap to the bound that HiGHS claims, or to the certificate's where HiGHS claims no higher one."""
    return plan.gap if plan.solver_gap is None else plan.solver_gap
