"""What holds for every plan: bounds, baselines, monotony, restrictions, refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from claims import claimed_gap
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, random_case, training_step_case

from autotm.check.plan import check_plan
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.files import hash_of
from autotm.model.graph import Role, Tensor, Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Status
from autotm.solve.choices import Choices
from autotm.solve.optimizer import Placement
from autotm.solve.optimizers import Static
from autotm.solve.options import SolveOptions, optimizer_names
from autotm.solve.placing import solve
from autotm.solve.problem import Problem
from autotm.solve.recheck import SolverDefectError

LIMITS = [Limit(1, 0), Limit(19, 1), Limit(4, 1), Limit(1, 1), Limit(1, 3), Limit(0, 1)]


@pytest.fixture(scope="module")
def step() -> Case:
    return training_step_case(layers=4, branches=3)


def plan_of(case: Case, optimizer: str, limit: Limit, options: SolveOptions | None = None) -> Plan:
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, options)
    fixed, operands = (options.fixed, options.fast_operands_only) if options else ({}, False)
    check_plan(case.graph, case.profile, case.links, plan, fixed=fixed, fast_operands_only=operands)
    return plan


def test_registry() -> None:
    of_linux = ("linux-balancing", "linux-interleave", "linux-preferred", "linux-weighted-interleave")
    assert optimizer_names() == (
        "all-fast", "all-slow", "asynchronous", *of_linux, "lru-paging", "managed-memory", "memory-mode", "numa",
        "recompute", "static", "swap-all", "synchronous",
    )  # fmt: skip


def test_unknown_optimizer_names_the_nearest(step: Case) -> None:
    with pytest.raises(BadInputError, match=r"'synchronos'; did you mean 'synchronous'\?"):
        solve(step.graph, step.profile, step.links, "synchronos", Limit(1, 1))


@pytest.fixture(scope="module")
def plans(step: Case) -> dict[str, list[Plan]]:
    """Plans of both optimizers at every limit, tightest first; no clock decides how near to the best."""
    unhurried = SolveOptions(time_limit_s=1000.0)
    return {name: [plan_of(step, name, limit, unhurried) for limit in LIMITS] for name in ("static", "synchronous")}


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
def test_bounds_baselines_and_monotony(step: Case, plans: dict[str, list[Plan]], optimizer: str) -> None:
    fastest = plan_of(step, "all-fast", Limit(0, 1)).objective_us
    slowest = plan_of(step, "all-slow", Limit(1, 0)).objective_us
    found = plans[optimizer]
    assert found[0].objective_us == pytest.approx(slowest)
    assert found[-1].objective_us == pytest.approx(fastest)
    assert all(claimed_gap(plan) <= 1e-3 for plan in found)
    assert all(plan.gap <= 4e-3 for plan in found), "certificates prove 0.37 % at worst, of `static` at 1:1"
    assert all((plan.gap <= 1e-3) == (plan.status in {Status.OPTIMAL, Status.WITHIN_GAP}) for plan in found)
    for tighter, looser in pairwise(found):
        assert fastest * (1 - 1e-9) <= looser.objective_us <= slowest
        assert looser.bound_us <= tighter.objective_us
        assert looser.objective_us <= tighter.objective_us * 1.001


def test_synchronous_never_loses_to_static(plans: dict[str, list[Plan]]) -> None:
    for static, synchronous in zip(plans["static"], plans["synchronous"], strict=True):
        assert synchronous.bound_us <= static.objective_us
        assert synchronous.objective_us <= static.objective_us * 1.001


def test_everything_is_fast_when_it_fits(step: Case) -> None:
    for optimizer in ("static", "synchronous", "all-fast"):
        plan = plan_of(step, optimizer, Limit(0, 1))
        assert not any("P" in configuration for configuration in plan.configurations)
        assert plan.gap == 0


def test_equal_calls_give_equal_plans(step: Case) -> None:
    # Within a gap that no clock decides.
    first, second = (plan_of(step, "synchronous", Limit(1, 1), SolveOptions(gap=0.1)) for _ in range(2))
    assert (first.stays, first.moves, first.bound_us) == (second.stays, second.moves, second.bound_us)


def test_time_limit_returns_a_legal_plan_with_its_true_gap(step: Case, plans: dict[str, list[Plan]]) -> None:
    """Neither of two searches for the same limit proves more than the other has found."""
    unhurried = plans["synchronous"][LIMITS.index(Limit(19, 1))]
    plan = plan_of(step, "synchronous", Limit(19, 1), SolveOptions(gap=0.0, time_limit_s=0.05))
    assert plan.status in {Status.TIME_LIMIT, Status.OPTIMAL}
    assert plan.bound_us <= unhurried.objective_us * (1 + 1e-9)
    assert unhurried.bound_us <= plan.objective_us * (1 + 1e-9)


@given(seed=st.integers(0, 2**31 - 1), unused=st.booleans())
def test_kernels_that_need_fast_operands(seed: int, *, unused: bool) -> None:
    """A parameter that nothing uses takes its memory, too."""
    case = random_case(seed, kernels=7)
    if unused:
        parameter = Tensor("unused", Role.PARAMETER, (100,), "float32", 400, None, (), held=(0, 7))
        graph = replace(case.graph, tensors=(*case.graph.tensors, parameter))
        case = replace(case, graph=graph, profile=replace(case.profile, graph_hash=hash_of(graph)))
    options = SolveOptions(gap=0.0, fast_operands_only=True)
    with pytest.raises(InfeasibleLimitError) as caught:
        solve(case.graph, case.profile, case.links, "synchronous", Limit(size_bytes=64), options)
    smallest = int(str(caught.value).split("smallest feasible limit is ")[1].split()[0])
    assert f"{smallest - 64} bytes short" in str(caught.value)
    with pytest.raises(InfeasibleLimitError, match=r"64 bytes short; the smallest feasible limit"):
        solve(case.graph, case.profile, case.links, "synchronous", Limit(size_bytes=smallest - 64), options)
    plan = plan_of(case, "synchronous", Limit(size_bytes=smallest), options)
    assert not any("P" in configuration for configuration in plan.configurations)
    assert plan_of(case, "synchronous", Limit(0, 1), options).moves == ()


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
def test_fixed_tensors_stay_where_they_are_told(optimizer: str) -> None:
    case = random_case(3, kernels=7)
    fast, slow = case.graph.movable[0], case.graph.movable[1]
    options = SolveOptions(gap=0.0, fixed={fast.name: Tier.FAST, slow.name: Tier.SLOW})
    plan = plan_of(case, optimizer, Limit(1, 1), options)
    tiers = {name: {stay.tier for stay in plan.stays if stay.tensor == name} for name in (fast.name, slow.name)}
    assert tiers == {fast.name: {Tier.FAST}, slow.name: {Tier.SLOW}}


def test_infeasible_limit_names_kernel_shortage_and_remedy() -> None:
    case = random_case(3, kernels=7)
    peak = case.graph.peak_live_bytes
    kernel = case.graph.live_bytes.index(peak)
    with pytest.raises(InfeasibleLimitError) as caught:
        solve(case.graph, case.profile, case.links, "all-fast", Limit(size_bytes=peak - 100))
    text = str(caught.value)
    assert f"kernel {kernel} '{case.graph.kernels[kernel].name}'" in text
    assert "100 bytes short" in text
    assert f"smallest feasible limit is {peak} bytes" in text
    plan_of(case, "all-fast", Limit(size_bytes=peak))


@pytest.mark.parametrize(
    ("options", "optimizer", "message"),
    [
        ({"fast_operands_only": True}, "all-slow", "fast operands"),
        ({"fixed": {"t0_0": Tier.SLOW}}, "all-fast", "fixed in slow memory"),
        ({"fixed": {"t0_0": Tier.FAST}}, "all-slow", "fixed in fast memory"),
        ({"fixed": {"t0_0": Tier.SLOW}, "fast_operands_only": True}, "static", "fixed in slow memory"),
        ({"fixed": {"t0-0": Tier.SLOW}}, "static", "did you mean 't0_0'"),
    ],
)
def test_contradicting_restrictions(options: dict[str, object], optimizer: str, message: str) -> None:
    case = random_case(3, kernels=5)
    with pytest.raises(BadInputError, match=message):
        solve(case.graph, case.profile, case.links, optimizer, Limit(1, 1), SolveOptions(**options))


@pytest.mark.parametrize(
    "bad",
    [{"gap": -0.1}, {"gap": 1.0}, {"time_limit_s": 0.0}, {"threads": 0}, {"seed": -1}, {"additive_tolerance": -0.1}],
)
def test_bad_options(bad: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match=next(iter(bad))):
        SolveOptions(**bad)


def test_steps_without_choices() -> None:
    case = random_case(5, kernels=4)
    bare = replace(case.graph, kernels=(), tensors=())
    plan = solve(bare, case.profile, case.links, "synchronous", Limit(1, 1))
    assert (plan.stays, plan.objective_us, plan.gap) == ((), 0.0, 0.0)


class _Broken(Static):
    """A static optimizer whose search returns half of its stays, or all of them fast."""

    def __init__(self, defect: str) -> None:
        self.defect = defect

    def place(self, problem: Problem, choices: Choices) -> Placement:
        found = super().place(problem, choices)
        if self.defect == "lost":
            return replace(found, stays=found.stays[::2])
        if self.defect == "optimist":
            return replace(found, bound_us=found.bound_us * 2)
        return replace(found, stays=[replace(stay, tier=Tier.FAST) for stay in found.stays])


@pytest.mark.parametrize(("defect", "message"), [("lost", "in no memory"), ("greedy", "the limit is")])
def test_a_broken_search_never_returns_a_plan(step: Case, defect: str, message: str) -> None:
    problem = Problem(step.graph, step.profile, step.links, Limit(4, 1), SolveOptions())
    with pytest.raises(SolverDefectError, match=message):
        _Broken(defect).solve(problem)


def test_a_bound_never_exceeds_the_objective(step: Case) -> None:
    problem = Problem(step.graph, step.profile, step.links, Limit(4, 1), SolveOptions())
    plan = _Broken("optimist").solve(problem)
    assert plan.bound_us == plan.objective_us
