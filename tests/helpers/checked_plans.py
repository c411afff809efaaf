"""Plans that the independent checker accepts, and how close they are to the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from random_graphs import Case

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.model.program import Layout, Program
from autotm.solve.choices import Choices, flows_in
from autotm.solve.options import SolveOptions
from autotm.solve.placing import optimizer_named, solve_and_pack
from autotm.solve.problem import Problem

DEFAULT = SolveOptions()


def solved(
    case: Case, optimizer: str, limit: Limit, options: SolveOptions = DEFAULT, packing: Any | None = None
) -> Plan:
    """A checked plan."""
    plan = optimizer_named(optimizer).solve(Problem(*case, limit, options, packing))
    check_plan(*case, plan, fast_operands_only=options.fast_operands_only)
    return plan


def swept(case: Case, optimizer: str, limits: Sequence[Limit], options: SolveOptions = DEFAULT) -> tuple[Plan, ...]:
    """Checked plans for several limits, which share one model."""
    plans = optimizer_named(optimizer).sweep(Problem(*case, limits[0], options), limits)
    assert [plan.limit for plan in plans] == list(limits)
    for plan in plans:
        check_plan(*case, plan, fast_operands_only=options.fast_operands_only)
    return plans


def forced(case: Case, optimizer: str, limit: Limit, options: SolveOptions, tiers: Mapping[str, Tier]) -> Plan:
    """The plan with some tensors in one tier for life; not checked, since its bound holds for such plans only."""

    class Forced(type(optimizer_named(optimizer))):
        def choices(self, problem: Problem) -> Choices:
            choices: Choices = super().choices(problem)
            fixed = {(flow.tensor, tier): flow for tier in Tier for flow in flows_in(problem, tier)}
            flows = (fixed.get((flow.tensor, tiers.get(flow.tensor)), flow) for flow in choices.flows)
            return replace(choices, flows=tuple(flows))

    plan: Plan = Forced().solve(Problem(*case, limit, options))
    return plan


def packed(case: Case, optimizer: str, limit: Limit, options: SolveOptions = DEFAULT) -> tuple[Plan, Layout, Program]:
    """A checked plan with its layout and its program, which is checked too."""
    plan, layout = solve_and_pack(*case, optimizer, limit, options)
    check_plan(*case, plan, fast_operands_only=options.fast_operands_only)
    program = compile_program(case.graph, plan, layout)
    check_program(case.graph, plan, program)
    return plan, layout, program


def claimed_gap(plan: Plan) -> float:
    """The gap to the bound that HiGHS claims, or to the certificate's where HiGHS claims no higher one."""
    return plan.gap if plan.solver_gap is None else plan.solver_gap
