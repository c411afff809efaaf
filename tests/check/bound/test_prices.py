"""Prices of a certificate: whatever they are, the bound holds, and what they do not prove is refused."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest
from exhaustive import exact_optimum_us, optimum_us
from exhaustive_async_moves import optimum_us as flying_optimum_us
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, exact_case, random_case, with_engines

from autotm.check.bound import Engines, certified_bound_us
from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.model.limit import Limit
from autotm.model.plan import Certificate, Cut, KernelPrices, Plan, SlowPrices, SpanPrices
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve


def certified_us(case: Case, plan: Plan, certificate: Certificate) -> float:
    engines = Engines.of(case.graph, case.profile, case.links) if plan.optimizer == "asynchronous" else None
    with_it = replace(plan, certificate=certificate)
    moves = plan.optimizer != "static"
    return certified_bound_us(case.graph, case.profile, case.links, with_it, moves, engines, {}, False)


def random_certificate(case: Case, plan: Plan, draw: random.Random) -> Certificate:
    kernels = tuple(range(len(case.graph.kernels)))

    def prices(scale: float) -> tuple[float, ...]:
        return tuple(scale * draw.expovariate(1.0) if draw.random() < 0.4 else 0.0 for _ in kernels)

    keys = [(index, name) for index in plan.tabled for name in case.graph.slots_of(case.graph.kernels[index])]
    own = {o.tensor for kernel in case.graph.kernels if kernel.alternatives for o in kernel.workspaces}
    told = [(index, name, draw.gauss(0.0, 2.0)) for index, name in keys if name not in own and draw.random() < 0.7]
    slow = SlowPrices(*(tuple(column) for column in zip(*told, strict=True))) if told else SlowPrices()
    flying = plan.optimizer == "asynchronous"
    out, back = (random_spans(len(kernels), draw) if flying else SpanPrices() for _ in range(2))
    cuts = []
    for _ in range(2):
        names = tuple(tensor.name for tensor in case.graph.movable if draw.random() < 0.6)
        cuts.append(Cut(names, tuple(draw.randint(1, 5) for _ in names), kernels, prices(0.5)))
    return Certificate(KernelPrices(kernels, prices(2e-3)), tuple(cuts), slow, out, back)


def random_spans(kernels: int, draw: random.Random) -> SpanPrices:
    spans = [sorted(draw.sample(range(kernels + 1), 2)) for _ in range(draw.randrange(6))]
    return SpanPrices(*map(tuple, zip(*((*span, 1e-3 * draw.expovariate(1.0)) for span in spans), strict=True)))


@given(seed=st.integers(0, 2**31 - 1), optimizer=st.sampled_from(["static", "synchronous", "asynchronous"]))
def test_whatever_the_prices_the_bound_holds(seed: int, optimizer: str) -> None:
    case, draw = with_engines(random_case(seed, kernels=5), 1.0), random.Random(seed)
    plan = solve(case.graph, case.profile, case.links, optimizer, Limit(2, 1), SolveOptions(gap=0.5))
    if optimizer == "asynchronous":
        optimum, _ = flying_optimum_us(case, plan.dram_limit_bytes)
    else:
        optimum = optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert highest_bound_us(case, plan, draw) <= optimum * (1 + 1e-9)


@given(seed=st.integers(0, 2**31 - 1), optimizer=st.sampled_from(["static", "synchronous"]))
def test_so_it_does_with_tables_and_implementations(seed: int, optimizer: str) -> None:
    case, draw = exact_case(seed, kernels=3), random.Random(seed)
    options = SolveOptions(gap=0.5, additive_tolerance=0.0)
    plan = solve(case.graph, case.profile, case.links, optimizer, Limit(2, 1), options)
    optimum = exact_optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert highest_bound_us(case, plan, draw) <= optimum * (1 + 1e-9)


def highest_bound_us(case: Case, plan: Plan, draw: random.Random) -> float:
    """Of random prices, each kind of them mixed with those that the search found, which are near the truth."""
    assert plan.certificate is not None
    bounds_us = []
    for _ in range(25):
        drawn = random_certificate(case, plan, draw)
        kept = {field.name: getattr(plan.certificate, field.name) for field in fields(drawn) if draw.random() < 0.5}
        bounds_us.append(certified_us(case, plan, replace(drawn, **kept)))
    return max(bounds_us)


@pytest.fixture(scope="module")
def case() -> Case:
    return random_case(23, kernels=12)


@pytest.fixture(scope="module")
def plan(case: Case) -> Plan:
    plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(2, 1), SolveOptions(gap=0.0))
    check_plan(case.graph, case.profile, case.links, plan)
    return plan


def test_prices_that_prove_less_are_refused(case: Case, plan: Plan) -> None:
    """Every byte costs ten times as much."""
    assert plan.certificate is not None
    fast = plan.certificate.fast
    raised = replace(fast, prices_us=tuple(10 * price_us for price_us in fast.prices_us))
    with pytest.raises(FaultError) as caught:
        check_plan(
            case.graph,
            case.profile,
            case.links,
            replace(plan, certificate=replace(plan.certificate, fast=raised)),
        )
    assert caught.value.fault is Fault.BOUND


def test_what_leaves_no_plan_at_all_proves_nothing(case: Case, plan: Plan) -> None:
    """Where kernels need fast operands and the limit has no room."""
    with pytest.raises(FaultError) as caught:
        certified_bound_us(
            case.graph, case.profile, case.links, replace(plan, dram_limit_bytes=0), True, None, {}, True
        )
    assert caught.value.fault is Fault.CERTIFICATE
