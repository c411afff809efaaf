"""Four times the step takes about four times the work: nothing on the way is quadratic (HiGHS apart)."""

from __future__ import annotations

from claims import claimed_gap
from counted_calls import calls_of
from random_graphs import Case, training_step_case

from autotm.check.plan import check_plan
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from deep_graphs import deepened
from modelled_profile import modelled_links, modelled_profile

OPTIONS = SolveOptions(gap=1e-3)


def deep_case(kernels: int) -> Case:
    graph = deepened(training_step_case(layers=4, branches=3).graph, kernels)
    return Case(graph, modelled_profile(graph, noise=0.3), modelled_links())


def placed(case: Case) -> Plan:
    return solve(case.graph, case.profile, case.links, "synchronous", Limit(4, 1), OPTIONS)


def test_deep_steps_are_steps() -> None:
    case = deep_case(300)
    once = training_step_case(layers=4, branches=3).graph
    copies = len(case.graph.kernels) // len(once.kernels)
    assert len(case.graph.kernels) == copies * len(once.kernels) >= 300
    assert case.graph.peak_live_bytes > 0.8 * copies * once.peak_live_bytes
    assert len({kernel.identity for kernel in case.graph.kernels}) == len(case.graph.kernels)


def test_solving_and_checking_grow_with_the_step() -> None:
    small, large = deep_case(80), deep_case(320)
    growth = len(large.graph.kernels) / len(small.graph.kernels)
    plans = [placed(small)]  # once before, for what is only done the first time
    solving, checking = [], []
    for case in (small, large):
        solving.append(calls_of(lambda case=case: plans.append(placed(case))))
        checking.append(calls_of(lambda case=case: check_plan(case.graph, case.profile, case.links, plans[-1])))
        assert claimed_gap(plans[-1]) <= OPTIONS.gap
        assert plans[-1].gap <= 1.1e-2, "the certificate of the smaller step proves 1.09 %"
    assert solving[1] < 1.5 * growth * solving[0]
    assert checking[1] < 1.5 * growth * checking[0]
