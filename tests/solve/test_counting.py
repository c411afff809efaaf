"""Limits that count arguments too: the same exact optimum, and plans that the checker vouches for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from claims import claimed_gap
from exhaustive import optimum_us
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, random_case, random_profile

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import pack
from autotm.model.graph import Role, Tier
from autotm.model.limit import Counts, Limit, counted_by, counting
from autotm.model.plan import Stay
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0)


def counted(case: Case, seed: int) -> Case:
    graph = counting(case.graph, Counts.ALL)
    return Case(graph, random_profile(graph, seed), case.links)


def test_what_shares_memory_becomes_one_tensor_for_the_whole_step() -> None:
    graph = random_case(3).graph
    everything = counting(graph, Counts.ALL)
    weight = everything.by_name["weight"]
    assert "weight_new" not in everything.by_name
    assert weight.is_movable
    assert list(weight.live) == list(range(len(graph.kernels)))
    assert len(graph.kernels) - 1 in weight.users, "the kernel that updates it"
    assert all(tensor.is_movable for tensor in everything.tensors)
    arguments = sum(t.allocated_bytes for t in graph.tensors if not t.is_movable and t.alias_of is None)
    assert everything.peak_live_bytes == graph.peak_live_bytes + arguments
    assert (counted_by(graph), counted_by(everything)) == (Counts.INTERMEDIATES, Counts.ALL)
    assert counting(graph, Counts.INTERMEDIATES) is graph


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@given(
    seed=st.integers(0, 2**31 - 1),
    kernels=st.integers(2, 5),
    limit=st.sampled_from([Limit(1, 2), Limit(1, 1), Limit(5, 1)]),
)
def test_optimum_of_small_graphs(seed: int, kernels: int, limit: Limit, optimizer: str) -> None:
    case = counted(random_case(seed, kernels), seed)
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, EXACT)
    check_plan(case.graph, case.profile, case.links, plan)
    assert plan.counts is Counts.ALL
    assert plan.objective_us == pytest.approx(optimum_us(case, plan.dram_limit_bytes, moves=optimizer != "static"))
    assert claimed_gap(plan) < 1e-6
    check_program(case.graph, plan, compile_program(case.graph, plan, pack(case.graph, plan)))


def test_a_plan_is_for_what_its_limit_counts() -> None:
    few, case = random_case(5), counted(random_case(5), 5)
    plan = solve(case.graph, case.profile, case.links, "static", Limit(1, 1), EXACT)
    with pytest.raises(FaultError, match="another graph"):
        check_plan(few.graph, few.profile, few.links, plan)


def test_arguments_never_move() -> None:
    case = counted(random_case(5), 5)
    plan = solve(case.graph, case.profile, case.links, "all-fast", Limit(0, 1), EXACT)
    stays = [stay for stay in plan.stays if stay.tensor != "weight"]
    last = len(case.graph.kernels)
    halves = [Stay("weight", Tier.FAST, 0, 1), Stay("weight", Tier.SLOW, 1, last)]
    moved = replace(plan, stays=tuple(sorted([*stays, *halves], key=lambda stay: (stay.start, stay.tensor, stay.tier))))
    with pytest.raises(FaultError) as caught:
        check_plan(case.graph, case.profile, case.links, moved)
    assert caught.value.fault is Fault.BAD_SPAN


def test_the_next_step_finds_its_arguments() -> None:
    case = counted(random_case(7), 7)
    plan = solve(case.graph, case.profile, case.links, "all-fast", Limit(0, 1), EXACT)
    layout = pack(case.graph, plan)
    last = len(case.graph.kernels) - 1
    at = {stay.tensor: index for index, stay in enumerate(layout.stays)}
    written = case.graph.kernels[last - 1].outputs[0].tensor
    assert case.graph.by_name["data"].role is Role.INPUT
    offsets = list(layout.offsets)
    offsets[at[written]] = offsets[at["data"]]
    program = compile_program(case.graph, plan, replace(layout, offsets=tuple(offsets)))
    with pytest.raises(FaultError) as caught:
        check_program(case.graph, plan, program)
    assert caught.value.fault in {Fault.STALE, Fault.POOL, Fault.OVERLAP}
