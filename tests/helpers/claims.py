"""How close a plan is to the best one by what the solver claims."""

from __future__ import annotations

from autotm.model.plan import Plan


def claimed_gap(plan: Plan) -> float:
    """The gap to the bound that HiGHS claims, or to the certificate's where HiGHS claims no higher one."""
    return plan.gap if plan.solver_gap is None else plan.solver_gap
