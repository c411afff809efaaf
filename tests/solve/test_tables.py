"""Measured tables and choices of implementation: the optimum, its proof, and what memory buys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from claims import claimed_gap
from exhaustive import exact_optimum_us
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, StepBuilder, exact_case, make_links, training_step_case

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.model.certificate import SlowPrices
from autotm.model.files import hash_of
from autotm.model.graph import Implementation, Operand
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.model.profile import Profile, Timing
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.problem import tabulate
from published_formulation import solve_published

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0, additive_tolerance=0.0)


def plan_of(case: Case, optimizer: str, limit: Limit, options: SolveOptions = EXACT) -> Plan:
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, options)
    check_plan(case.graph, case.profile, case.links, plan)
    return plan


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@given(
    seed=st.integers(0, 2**31 - 1),
    kernels=st.integers(2, 4),
    alternatives=st.booleans(),
    limit=st.sampled_from([Limit(1, 2), Limit(2, 1), Limit(5, 1)]),
)
def test_optimum_of_small_graphs(seed: int, kernels: int, limit: Limit, optimizer: str, *, alternatives: bool) -> None:
    case = exact_case(seed, kernels, alternatives=alternatives)
    moves = optimizer == "synchronous"
    plan = plan_of(case, optimizer, limit)
    expected = exact_optimum_us(case, plan.dram_limit_bytes, moves=moves)
    published = solve_published(case, plan.dram_limit_bytes, moves=moves, exact=True)
    assert published.objective_us == pytest.approx(expected, rel=1e-6)
    assert plan.objective_us == pytest.approx(expected, rel=1e-9)
    assert plan.bound_us <= expected * (1 + 1e-9)
    assert claimed_gap(plan) < 1e-6


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@pytest.mark.parametrize("seed", [20, 21, 22])  # of others the first prices may prove less than half
def test_prices_alone_bound_the_optimum(seed: int, optimizer: str) -> None:
    case = exact_case(seed, kernels=3)
    plan = plan_of(case, optimizer, Limit(2, 1), SolveOptions(gap=0.99, additive_tolerance=0.0))
    optimum = exact_optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert plan.bound_us <= optimum * (1 + 1e-9) <= plan.objective_us * (1 + 2e-9)
    assert plan.bound_us >= 0.5 * optimum, "prices without any meaning prove less"


def test_the_cases_exercise_tables_and_implementations() -> None:
    plans = [plan_of(exact_case(seed, kernels=4), "synchronous", Limit(2, 1)) for seed in range(3)]
    assert sum(len(plan.tabled) for plan in plans) >= 6
    assert any(name != "default" for plan in plans for name in plan.implementations)


def two_ways_case(overlap: float = 1.0) -> Case:
    """One kernel of 100 us that a large workspace makes take 60 us (and 90 us from slow memory); slow tensors: 50 us.

    `overlap` is the share of the two operands' slow time that remains when both are slow.
    """
    builder = StepBuilder()
    builder.kernel([], {"a": 1600})
    builder.kernel(["a"], {"b": 1600})
    graph = builder.graph()
    scratch = Operand("scratch", (16_000,), "float32")
    kernel = replace(graph.kernels[1], alternatives=(Implementation("large", "f1_large", "id1_large", (scratch,)),))
    graph = replace(graph, kernels=(graph.kernels[0], kernel))
    both = round(100 * overlap)
    times = {("id0", "default"): {"D": 100, "P": 150}, ("id1", "default"): {"DD": 100, "PD": 150, "DP": 150}}
    times["id1", "default"] |= {"PP": 100 + both}
    times["id1_large", "large"] = {
        "DDD": 60, "PDD": 110, "DPD": 110, "PPD": 60 + both, "DDP": 90, "PDP": 140, "DPP": 140, "PPP": 90 + both
    }  # fmt: skip
    timings = {
        (*key, configuration): Timing(us * 1000, us * 1000, us * 1000, us * 1000, 5)
        for key, group in times.items()
        for configuration, us in group.items()
    }
    return Case(graph, Profile(hash_of(graph), timings, {}), make_links(29.0, 12.0))


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@pytest.mark.parametrize(
    ("size_bytes", "configurations", "objective_us"),
    [
        (76_800, ("D", "DDD"), 160.0),
        (76_799, ("D", "DDP"), 190.0),
        (12_800, ("D", "DDP"), 190.0),
        (6_400, ("D", "DPP"), 240.0),
        (0, ("P", "PPP"), 340.0),
    ],
)
def test_memory_decides_where_a_workspace_is(
    optimizer: str, size_bytes: int, configurations: tuple[str, ...], objective_us: float
) -> None:
    plan = plan_of(two_ways_case(), optimizer, Limit(size_bytes=size_bytes))
    assert plan.objective_us == pytest.approx(objective_us)
    assert plan.tabled == ()
    assert plan.configurations == configurations


@pytest.mark.parametrize(("operands", "is_tabled"), [(2, True), (10, True), (11, False)])
def test_implementations_that_slow_memory_costs_differently_are_tabled_up_to_10_operands(
    operands: int, *, is_tabled: bool
) -> None:
    builder = StepBuilder()
    inputs = {f"a{number}": 1600 for number in range(operands - 1)}
    builder.kernel([], inputs)
    builder.kernel(list(inputs), {"b": 1600})
    graph = builder.graph()
    kernel = replace(graph.kernels[1], alternatives=(Implementation("other", "f1_other", "id1_other", ()),))
    graph = replace(graph, kernels=(graph.kernels[0], kernel))
    timings = {}
    for key, slow_us in ((("id0", "default"), 10), (("id1", "default"), 10), (("id1_other", "other"), 20)):
        count = len(inputs) if key[0] == "id0" else operands
        for place in range(count + 1):
            us = 100 + (slow_us if place else 0)
            configuration = "".join("P" if index == place - 1 else "D" for index in range(count))
            timings[*key, configuration] = Timing(us * 1000, us * 1000, us * 1000, us * 1000, 5)
    found = tabulate(graph, Profile(hash_of(graph), timings, {}), EXACT)
    assert found.tabled == ((1,) if is_tabled else ())


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
def test_a_small_limit_forces_the_lean_implementation(optimizer: str) -> None:
    case = two_ways_case()
    options = replace(EXACT, fast_operands_only=True)
    found = {}
    for size_bytes in (76_800, 76_736):
        plan = solve(case.graph, case.profile, case.links, optimizer, Limit(size_bytes=size_bytes), options)
        check_plan(case.graph, case.profile, case.links, plan, fast_operands_only=True)
        found[size_bytes] = (plan.implementations, plan.objective_us)
    assert found == {76_800: (("default", "large"), 160.0), 76_736: ((), 200.0)}


def test_operands_that_overlap_make_a_kernel_tabled() -> None:
    assert plan_of(two_ways_case(0.99), "static", Limit(1, 0), SolveOptions()).tabled == ()
    plan = plan_of(two_ways_case(0.6), "static", Limit(1, 0), SolveOptions())
    assert plan.tabled == (1,)
    assert plan.objective_us == pytest.approx(150 + 150)


def test_a_step_without_full_tables_is_read_additively() -> None:
    case = training_step_case(layers=2, branches=2)
    plan = plan_of(case, "synchronous", Limit(2, 1))
    assert (plan.tabled, plan.implementations) == ((), ())


def cheat(plan: Plan, index: int, name: str) -> tuple[str, ...]:
    names = plan.implementations or ("default",) * len(plan.configurations)
    return (*names[:index], name, *names[index + 1 :])


LIES: list[tuple[Callable[[Plan], Plan], Fault]] = [
    (lambda plan: replace(plan, implementations=cheat(plan, 1, "none")), Fault.IMPLEMENTATION),
    (lambda plan: replace(plan, implementations=("default",)), Fault.IMPLEMENTATION),
    (lambda plan: replace(plan, implementations=()), Fault.UNKNOWN_TENSOR),
    (lambda plan: replace(plan, tabled=()), Fault.OBJECTIVE),
    (lambda plan: replace(plan, tabled=(1, 1)), Fault.ORDER),
    (lambda plan: replace(plan, tabled=(7,)), Fault.ORDER),
    (lambda plan: with_slow_prices(plan, (1,), ("a",), ()), Fault.CERTIFICATE),
    (lambda plan: with_slow_prices(plan, (1,), ("nothing",), (1.0,)), Fault.CERTIFICATE),
    (lambda plan: with_slow_prices(plan, (0,), ("a",), (1.0,)), Fault.CERTIFICATE),
    (lambda plan: with_slow_prices(plan, (1, 1), ("a", "a"), (1.0, 1.0)), Fault.CERTIFICATE),
    (lambda plan: with_slow_prices(plan, (1,), ("a",), (float("nan"),)), Fault.CERTIFICATE),
    (lambda plan: with_slow_prices(plan, (1, 1), ("a", "b"), (-1e3, 1e3)), Fault.BOUND),
]


def with_slow_prices(
    plan: Plan, kernels: tuple[int, ...], tensors: tuple[str, ...], prices_us: tuple[float, ...]
) -> Plan:
    assert plan.certificate is not None
    return replace(plan, certificate=replace(plan.certificate, slow=SlowPrices(kernels, tensors, prices_us)))


@pytest.mark.parametrize(("lie", "fault"), LIES, ids=lambda value: getattr(value, "name", None))
def test_a_plan_that_lies_is_refused(lie: Callable[[Plan], Plan], fault: Fault) -> None:
    case = two_ways_case(0.6)
    plan = plan_of(case, "static", Limit(1, 0))
    assert (plan.tabled, plan.implementations) == ((1,), ("default", "large"))
    with pytest.raises(FaultError) as caught:
        check_plan(case.graph, case.profile, case.links, lie(plan))
    assert caught.value.fault is fault
