"""Ten times the step takes about ten times as long: nothing on the way is quadratic."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from random_graphs import Case, training_step_case

from autotm.check import check_plan
from autotm.model.plan.plan import Plan
from autotm.model.step.limit import Limit
from autotm.solve import SolveOptions, solve
from deep_graphs import deepened
from modelled_profile import modelled_links, modelled_profile

OPTIONS = SolveOptions(gap=1e-3)


def deep_case(kernels: int) -> Case:
    graph = deepened(training_step_case(layers=4, branches=3).graph, kernels)
    return Case(graph, modelled_profile(graph, noise=0.3), modelled_links())


def placed(case: Case) -> Plan:
    return solve(case.graph, case.profile, case.links, "synchronous", Limit(4, 1), OPTIONS)


def cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def test_deep_steps_are_steps() -> None:
    case = deep_case(300)
    once = training_step_case(layers=4, branches=3).graph
    copies = len(case.graph.kernels) // len(once.kernels)
    assert len(case.graph.kernels) == copies * len(once.kernels) >= 300
    assert case.graph.peak_live_bytes > 0.8 * copies * once.peak_live_bytes
    assert len({kernel.identity for kernel in case.graph.kernels}) == len(case.graph.kernels)


@pytest.mark.wall_clock
def test_solving_and_checking_grow_with_the_step() -> None:
    small, large = deep_case(300), deep_case(2400)
    growth = len(large.graph.kernels) / len(small.graph.kernels)
    plan = placed(small)
    solve_s, check_s = cpu_s(lambda: placed(small)), cpu_s(lambda: checked(small, plan))
    started = time.process_time()
    plan = placed(large)
    assert time.process_time() - started < 3 * growth * solve_s
    assert cpu_s(lambda: checked(large, plan)) < 3 * growth * check_s
    assert plan.gap <= OPTIONS.gap


def checked(case: Case, plan: Plan) -> None:
    check_plan(case.graph, case.profile, case.links, plan)
