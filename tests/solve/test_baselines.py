"""Memory mode and first touch: plans that search nothing, priced, and checked by other means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from checked_plans import packed, solved
from faults import refused
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, StepBuilder, make_links, random_case, random_profile, training_step_case

from autotm.check.fault import Fault
from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import layout_of
from autotm.model.cache import CachedPool, amplified_bytes
from autotm.model.graph import Graph, Role, Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import MachineRates
from autotm.model.plan import Plan, Status
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

LIMITS = [Limit(1, 0), Limit(8, 1), Limit(1, 1), Limit(0, 1), Limit(size_bytes=50_000)]


def planned(case: Case, limit: Limit) -> Plan:
    return solve(*case, "memory-mode", limit, SolveOptions())


@given(seed=st.integers(0, 2**31 - 1), limit=st.sampled_from(LIMITS))
def test_plans_and_programs_are_vouched_for(seed: int, limit: Limit) -> None:
    plan, _, program = packed(random_case(seed, kernels=8), "memory-mode", limit)
    assert plan.status is Status.NOT_OPTIMIZED
    assert plan.bound_us == plan.objective_us
    assert {stay.tier for stay in plan.stays} == {Tier.SLOW}
    assert (program.fast_bytes, program.slow_bytes) == (0, plan.cached.size_bytes)


@pytest.mark.parametrize("sizes", [3, 12])
def test_a_training_step_is_vouched_for_block_by_block(sizes: int) -> None:
    case = training_step_case(layers=sizes)
    for limit in (Limit(8, 1), Limit(2, 1)):
        plan = planned(case, limit)
        check_plan(*case, plan)
        assert sum(plan.cached.dirty_misses) > 0
        assert plan.objective_us > sum(map(case.profile.base_us, case.graph.kernels))


def test_what_the_cache_does_for_itself_takes_what_copies_take() -> None:
    case = training_step_case(layers=10)
    free = planned(case, Limit(2, 1))
    links = replace(case.links, rates=MachineRates(flop_per_s=1e12, copy_bytes_per_s=1e9))
    plan = solve(case.graph, case.profile, links, "memory-mode", Limit(2, 1), SolveOptions())
    check_plan(case.graph, case.profile, links, plan)
    fetched = [each for each, _ in plan.cached.traffic_bytes]
    own_bytes = sum(map(amplified_bytes, [case.graph] * len(fetched), case.graph.kernels, fetched))
    assert own_bytes > sum(fetched) > 0
    assert plan.objective_us - free.objective_us == pytest.approx(own_bytes / 1e9 * 1e6)


def test_a_cache_of_everything_costs_nothing() -> None:
    case = training_step_case(layers=10)
    plan, fast = (solve(*case, name, Limit(0, 1), SolveOptions()) for name in ("memory-mode", "all-fast"))
    assert sum(plan.cached.clean_misses) == sum(plan.cached.dirty_misses) == 0
    assert plan.objective_us == pytest.approx(fast.objective_us)


def test_addresses_are_those_of_first_fit_in_execution_order() -> None:
    case = training_step_case(layers=10)
    plan = planned(case, Limit(4, 1))
    at = {stay.tensor: (stay, offset) for stay, offset in zip(plan.stays, plan.cached.offsets, strict=True)}
    for stay, offset in at.values():
        size_bytes = case.graph.by_name[stay.tensor].allocated_bytes
        held = [
            (other, other + case.graph.by_name[rival.tensor].allocated_bytes)
            for rival, other in at.values()
            if rival.start < stay.start < rival.end
        ]
        ends = [0, *(end for _, end in held)]
        lower = [end for end in ends if end < offset and all(e <= end or s >= end + size_bytes for s, e in held)]
        same_kernel = any(rival.start == stay.start and rival is not stay for rival, _ in at.values())
        assert not lower or same_kernel, f"'{stay.tensor}' could lie at {lower[0]}, not {offset}"


def lookup(rows: int) -> Graph:
    """A step that reads `rows` rows of a table of 64 blocks."""
    builder = StepBuilder()
    table = builder.argument("table", 64 * 1024)
    builder.kernel([table, builder.argument("indices", rows, Role.INPUT)], {"rows": 16 * rows}, {})
    builder.kernel(["rows"], {"last": 16}, {})
    graph = builder.graph()
    first = graph.kernels[0]
    operands = (replace(first.inputs[0], shape=(4096, 16)), replace(first.inputs[1], dtype="int32"))
    return replace(graph, kernels=(replace(first, op="embedding", inputs=operands), *graph.kernels[1:]))


@pytest.mark.parametrize(("rows", "blocks"), [(128, 2), (100, 2), (4096, 64), (5000, 64)])
def test_of_a_table_the_rows_count_that_are_looked_up(rows: int, blocks: int) -> None:
    graph = counting(lookup(rows), Counts.ALL)
    case = Case(graph, random_profile(graph, 3), make_links(29.0, 12.0))
    for limit in (Limit(0, 1), Limit(4, 1)):
        plan = planned(case, limit)
        check_plan(*case, plan)
        touched = plan.cached.hits[0] + plan.cached.clean_misses[0] + plan.cached.dirty_misses[0]
        others = [operand for operand in graph.kernels[0].operands if operand.tensor != "table"]
        at = {stay.tensor: offset for stay, offset in zip(plan.stays, plan.cached.offsets, strict=True)}
        ends = [(at[o.tensor], at[o.tensor] + o.size_bytes - 1) for o in others]
        assert touched == blocks + sum(end // 4096 - start // 4096 + 1 for start, end in ends)


def fewer_misses(pool: CachedPool) -> dict[str, object]:
    dirty = list(pool.dirty_misses)
    dirty[next(index for index, number in enumerate(dirty) if number)] -= 1
    return {"dirty_misses": tuple(dirty)}


BROKEN: list[tuple[Callable[[CachedPool], dict[str, object]], Fault]] = [
    (fewer_misses, Fault.CACHE),
    (lambda pool: {"cache_blocks": pool.cache_blocks + 1}, Fault.LIMIT),
    (lambda _: {"block_bytes": 3 * 4096}, Fault.CACHE),
    (lambda _: {"block_bytes": 8192}, Fault.CACHE),
    (lambda pool: {"hits": pool.hits[:-1]}, Fault.CACHE),
    (lambda pool: {"offsets": pool.offsets[:-1]}, Fault.CACHE),
    (lambda pool: {"offsets": (pool.offsets[0] + 8, *pool.offsets[1:])}, Fault.ALIGNMENT),
    (lambda pool: {"size_bytes": pool.size_bytes - 64}, Fault.POOL),
]


@pytest.mark.parametrize(("breaks", "fault"), BROKEN)
def test_a_wrong_plan_is_told(breaks: Callable[[CachedPool], dict[str, object]], fault: Fault) -> None:
    case = training_step_case(layers=10)
    plan = planned(case, Limit(4, 1))
    with refused(fault):
        check_plan(*case, replace(plan, cached=replace(plan.cached, **breaks(plan.cached))))


def test_a_program_elsewhere_or_charged_otherwise_is_told() -> None:
    case = training_step_case(layers=5)
    plan = planned(case, Limit(4, 1))
    program = compile_program(case.graph, plan, layout_of(case.graph, plan))
    for wrong, fault in (
        (replace(program, cache_traffic_bytes=()), Fault.CACHE),
        (replace(program, slow_bytes=program.slow_bytes + 64), Fault.CACHE),
    ):
        with refused(fault):
            check_program(case.graph, plan, wrong)


KB = 256
"""Elements of 4 bytes in 1 KiB."""


def case_of(graph: Graph) -> Case:
    return Case(graph, random_profile(graph, 0), make_links(29.0, 12.0))


def tiers(plan: Plan) -> dict[str, Tier]:
    return {stay.tensor: stay.tier for stay in plan.stays}


def chain(*kib: int) -> Graph:
    """Kernel i writes tensor `t{i}` of that size; the last kernel reads them all."""
    builder = StepBuilder()
    builder.argument("data", KB)
    for index, size in enumerate(kib):
        builder.kernel(["data"], {f"t{index}": size * KB}, {})
    builder.kernel([f"t{index}" for index in range(len(kib))], {"last": 16}, {})
    return builder.graph()


def test_who_comes_first_has_the_room() -> None:
    plan = solved(case_of(chain(4, 3, 2, 1)), "numa", Limit(size_bytes=6 * 1024), SolveOptions())
    tier_of = tiers(plan)
    assert [tier_of[f"t{index}"] for index in range(4)] == [Tier.FAST, Tier.SLOW, Tier.FAST, Tier.SLOW]


def test_room_is_given_back() -> None:
    builder = StepBuilder()
    builder.argument("data", KB)
    builder.kernel(["data"], {"first": 2 * KB}, {})
    builder.kernel(["first"], {"second": KB}, {})
    builder.kernel(["second"], {"third": 2 * KB}, {})
    builder.kernel(["third"], {"last": 16}, {})
    plan = solve(*case_of(builder.graph()), "numa", Limit(size_bytes=3 * 1024), SolveOptions())
    assert set(tiers(plan).values()) == {Tier.FAST}, "'first' is dead when 'third' is born"


@given(seed=st.integers(0, 2**31 - 1), limit=st.sampled_from([Limit(1, 0), Limit(4, 1), Limit(1, 1), Limit(0, 1)]))
def test_plans_are_legal_and_never_beat_the_bound(seed: int, limit: Limit) -> None:
    case = random_case(seed, kernels=8)
    plan, _, _ = packed(case, "numa", limit)
    assert plan.objective_us >= solve(*case, "static", limit, SolveOptions(gap=0.0)).bound_us * (1 - 1e-9)
    if limit == Limit(0, 1):
        assert set(tiers(plan).values()) == {Tier.FAST}
