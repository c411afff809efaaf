"""Sets of stays that do not fit together: given up where that costs least, in the repair and as rows of the program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_graphs import Case, random_case, with_engines

from autotm.check.plan import check_plan
from autotm.layout.packing import Addresses
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Stay
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

EXACT = SolveOptions(gap=0.0)
LIMIT = Limit(1, 2)


@dataclass
class Quarrel:
    """A packing for which some stays never fit together, nor longer ones."""

    stays: Sequence[Stay]
    asked: int = 0
    limits: set[int] = field(default_factory=set)

    def fits(self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int) -> bool:
        del implementations
        self.asked += 1
        self.limits.add(limit_bytes)
        return not all(any(covers(mine, stay) for mine in stays) for stay in self.stays)

    def conflict(self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int) -> Sequence[Stay]:
        return () if self.fits(stays, implementations, limit_bytes) else self.stays

    def addresses(self, *_: object) -> Iterator[Addresses]:
        """Nothing has addresses of its own."""
        return iter(())

    def keep(self, *_: object) -> bool:
        return False


def covers(stay: Stay, other: Stay) -> bool:
    same = (stay.tensor, stay.tier) == (other.tensor, other.tier)
    return same and stay.start <= other.start and other.end <= stay.end


def solved(case: Case, optimizer: str, options: SolveOptions, packing: Quarrel | None = None) -> Plan:
    plan = solve(case.graph, case.profile, case.links, optimizer, LIMIT, options, packing)
    check_plan(case.graph, case.profile, case.links, plan, fixed=options.fixed)
    return plan


def fast_stays(plan: Plan) -> list[Stay]:
    return [stay for stay in plan.stays if stay.tier is Tier.FAST]


@given(seed=st.integers(0, 2**31 - 1), data=st.data())
def test_the_cheapest_way_out_is_taken(seed: int, data: st.DataObject) -> None:
    """Two tensors that may not both be fast: the plan is the better of those with either one slow, proven or not."""
    case = random_case(seed, kernels=9)
    first = solved(case, "static", EXACT)
    pairs = list(combinations(fast_stays(first), 2))
    assume(pairs)
    pair = data.draw(st.sampled_from(pairs))
    packing = Quarrel(pair)
    plan = solved(case, "static", EXACT, packing)
    assert not set(pair) <= set(plan.stays)
    slow = [replace(EXACT, fixed={stay.tensor: Tier.SLOW}) for stay in pair]
    assert plan.objective_us == pytest.approx(min(solved(case, "static", way).objective_us for way in slow))
    assert plan.bound_us == pytest.approx(first.bound_us), "the bound is that of the program without conflicts"
    assert packing.limits == {plan.dram_limit_bytes}


@given(seed=st.integers(0, 2**31 - 1), optimizer=st.sampled_from(["synchronous", "asynchronous"]))
def test_moving_tensors_give_up_a_part_of_their_stay(seed: int, optimizer: str) -> None:
    case = with_engines(random_case(seed, kernels=9))
    first = solved(case, optimizer, EXACT)
    packing = Quarrel(fast_stays(first)[:3])
    assume(packing.stays)
    plan = solved(case, optimizer, EXACT, packing)
    assert packing.asked >= 2
    assert not all(any(covers(mine, stay) for mine in plan.stays) for stay in packing.stays)
    slow = [replace(EXACT, fixed={stay.tensor: Tier.SLOW}) for stay in packing.stays]
    assert first.objective_us <= plan.objective_us * (1 + 1e-9)
    way_out_us = min(solved(case, optimizer, way).objective_us for way in slow)
    assert plan.objective_us <= way_out_us * (1 + 1e-9), "one of them in slow memory for life is always a way out"


def test_what_is_never_content_ends_the_search_with_a_plan() -> None:
    case = random_case(3, kernels=9)

    class Discontent(Quarrel):
        """Nothing ever fits."""

        def fits(self, *_: object) -> bool:
            return False

        def conflict(self, stays: Sequence[Stay], *_: object) -> Sequence[Stay]:
            return [stay for stay in stays if stay.tier is Tier.FAST][:1]

    plan = solve(case.graph, case.profile, case.links, "static", LIMIT, EXACT, Discontent(()))
    check_plan(case.graph, case.profile, case.links, plan)
    assert plan.bound_us == pytest.approx(solved(case, "static", EXACT).bound_us)
