"""Rivals as plans: legal for the independent checker, as long as their simulation, and honest where they do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, StepBuilder, make_links, random_case, roofline_profile, training_step_case, with_engines

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass, Role, Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import AsynchronousLinks, Contention, Links
from autotm.model.plan import RUN_RIVALS, Move, Plan, Status, repeats
from autotm.model.program import Program
from autotm.solve.gpu_rivals import ManagedPaging, run_rival
from autotm.solve.gpu_simulation import run_plan
from autotm.solve.options import SolveOptions
from autotm.solve.placing import fits, solve_and_pack
from autotm.solve.problem import Problem
from autotm.solve.recheck import plan_us

OPTIONS = SolveOptions(fast_operands_only=True, time_limit_s=2.0)
FAULTS = ManagedPaging(block_bytes=4096, faulted_bytes_per_s=1e9)
COPYING = ("lru-paging", "swap-all")


def trained(seed: int, kernels: int = 16) -> Case:
    """A random step whose loss is made half-way."""
    graph = random_case(seed, kernels=kernels).graph
    made = {tensor.producer: tensor for tensor in graph.tensors if tensor.role is Role.INTERMEDIATE}
    loss = min(made.values(), key=lambda tensor: abs(2 * (tensor.producer or 0) - kernels))
    tensors = tuple(replace(one, role=Role.RESULT) if one == loss else one for one in graph.tensors)
    graph = replace(graph, tensors=tensors)
    return with_engines(Case(graph, roofline_profile(graph, seed), make_links(29.0, 12.0, tiny=True)))


def placed(case: Case, optimizer: str, limit: Limit) -> tuple[Plan, Program]:
    """Checked, both of them."""
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, optimizer, limit, OPTIONS)
    check_plan(case.graph, case.profile, case.links, plan, fast_operands_only=True)
    program = compile_program(case.graph, plan, layout)
    check_program(case.graph, plan, program)
    assert program.fits == (fits(plan, layout) or optimizer == "managed-memory")
    return plan, program


def again(plan: Plan) -> list[int]:
    """Kernels that run for the second time."""
    return [plan.calls[number] for number in repeats(plan.calls)]


def beside(plan: Plan) -> list[Move]:
    """Asynchronous moves; what they take from kernels is in plans, and not simulated."""
    return [move for move in plan.moves if move.is_asynchronous]


@given(seed=st.integers(0, 2**31 - 1), limit=st.sampled_from([Limit(0, 1), Limit(2, 3), Limit(4, 1)]))
def test_plans_are_legal_and_last_as_long_as_their_simulation(seed: int, limit: Limit) -> None:
    case = trained(seed)
    problem = Problem(case.graph, case.profile, case.links, limit, OPTIONS)
    for name in RUN_RIVALS:
        plan, program = placed(case, name, limit)
        assert plan.moves or name != "swap-all"
        assert (plan.status, plan.gap, plan.certificate) == (Status.NOT_OPTIMIZED, 0.0, None)
        assert plan_us(problem, plan) == pytest.approx(plan.objective_us)
        found = run_rival(name, problem, FAULTS)
        if name in COPYING:
            own_us = sum(problem.beside.move_us(one, case.graph.by_name[one.tensor].size_bytes) for one in beside(plan))
            same = run_plan(problem, plan)
            assert plan.objective_us - own_us == pytest.approx(same.step_us)
            # At the turn, a map that would be back before it is gone stays in a plan.
            assert same.step_us <= found.step_us * (1 + 1e-9)
            assert same.out_bytes == found.out_bytes or name == "swap-all"
            assert found.fits or not program.fits, "addresses need no less than bytes do"
        else:
            fitted = name == "recompute" and not limit.is_unlimited
            assert plan.objective_us >= found.step_us - 1e-6 or not fitted, "holes ask for more to be repeated"
            repeated_us = sum(case.profile.base_us(case.graph.kernels[index]) for index in again(plan))
            assert plan.objective_us == pytest.approx(found.kernels_us + repeated_us)
            assert not repeated_us or name == "recompute"


@pytest.mark.parametrize("seed", range(2))
def test_limits_that_count_all_leave_arguments_where_they_are(seed: int) -> None:
    case = random_case(seed, kernels=12)
    graph = counting(case.graph, Counts.ALL)
    counted = Case(graph, roofline_profile(graph, seed), case.links)
    for name in RUN_RIVALS:
        plan, _ = placed(counted, name, Limit(1, 2))
        held = {tensor.name for tensor in graph.tensors if tensor.held}
        assert held
        assert not held & {move.tensor for move in plan.moves}


def test_paging_pretends_to_have_less_where_its_addresses_have_holes() -> None:
    made = training_step_case(layers=8, seed=0)
    case = with_engines(Case(made.graph, made.profile, make_links(29.0, 12.0)))
    plan, program = placed(case, "lru-paging", Limit(1, 1))
    assert program.fits
    assert len(plan.attempts_s) > 1
    assert (plan.limit, plan.dram_limit_bytes) == (Limit(1, 1), Limit(1, 1).fast_bytes(case.graph.peak_live_bytes, 0))


def test_checks_find_what_is_wrong_with_a_swap() -> None:
    case = trained(1)
    plan, _ = placed(case, "swap-all", Limit(0, 1))
    given = {"fast_operands_only": True}
    with pytest.raises(FaultError) as found:
        check_plan(case.graph, case.profile, case.links, replace(plan, objective_us=plan.objective_us * 1.01), **given)
    assert found.value.fault is Fault.OBJECTIVE
    move = next(one for one in plan.moves if one.is_asynchronous and one.destination == "pmem")
    longer = replace(move, before=move.before + 1)
    moves = tuple(sorted((longer if one == move else one for one in plan.moves), key=lambda one: one.order))
    stays = tuple(
        replace(one, end=one.end + 1) if (one.tensor, one.end) == (move.tensor, move.before) else one
        for one in plan.stays
    )
    with pytest.raises(FaultError) as found:
        check_plan(case.graph, case.profile, case.links, replace(plan, moves=moves, stays=stays, offsets=()), **given)
    assert found.value.fault in {Fault.WINDOW, Fault.DOUBLE_STAY, Fault.BAD_SPAN, Fault.NO_SOURCE}


def test_a_swap_that_loses_nothing_at_the_turn_lasts_as_long_as_its_simulation() -> None:
    builder = StepBuilder()
    builder.argument("data", 16, Role.INPUT)
    builder.kernel(["data"], {"t0": 1024})
    builder.kernel(["t0"], {"t1": 1024})
    builder.kernel(["t1"], {"t2": 1024})
    builder.kernel(["t2"], {"loss": 1}, role=Role.RESULT)
    builder.kernel(["t2"], {"g2": 1024})
    builder.kernel(["t1", "g2"], {"g1": 1024})
    builder.kernel(["t0", "g1"], {"g0": 1024})
    graph = builder.graph("chain")
    case = Case(graph, roofline_profile(graph, 0), make_links(29.0, 12.0, tiny=True))
    case = replace(case, links=replace(case.links, asynchronous=uncontended(case.links)))
    plan, program = placed(case, "swap-all", Limit(0, 1))
    found = run_rival("swap-all", Problem(graph, case.profile, case.links, Limit(0, 1), OPTIONS), FAULTS)
    assert plan.objective_us == pytest.approx(found.step_us)
    assert program.fits
    assert sorted(move.tensor for move in plan.moves) == ["t0", "t0", "t1", "t1", "t2", "t2"]


def uncontended(links: Links) -> AsynchronousLinks:
    none = dict.fromkeys(OpClass, Contention(0.0, 0.0))
    return AsynchronousLinks(links.to_fast, links.to_slow, none, none, 0.0)


@pytest.mark.parametrize("name", RUN_RIVALS)
def test_they_are_for_gpus_and_nobody_fixes_their_tensors(name: str) -> None:
    case = random_case(1, kernels=6)
    given = case.graph, case.profile, case.links, name, Limit(1, 1)
    with pytest.raises(BadInputError, match="what others do on a GPU"):
        solve_and_pack(*given, SolveOptions())
    fixed = {case.graph.movable[0].name: Tier.FAST}
    with pytest.raises(BadInputError, match="fixed in one memory"):
        solve_and_pack(*given, SolveOptions(fast_operands_only=True, fixed=fixed))


def test_checks_hold_plans_that_search_to_their_limit() -> None:
    case = random_case(3, kernels=16)
    plan, _ = placed(case, "lru-paging", Limit(9, 1))
    with pytest.raises(FaultError) as found:
        check_plan(case.graph, case.profile, case.links, replace(plan, optimizer="synchronous"))
    assert found.value.fault is Fault.LIMIT
