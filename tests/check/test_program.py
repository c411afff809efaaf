"""The checker rejects each kind of broken program for its own reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults import refused
from random_graphs import Case, random_case

from autotm.check.fault import Fault, FaultError
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import pack
from autotm.model.files import hash_of
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Stay
from autotm.model.program import Address, Instruction, KernelStep, MoveStep, Program
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve


@pytest.fixture(scope="module")
def case() -> Case:
    return random_case(12, kernels=10)


@pytest.fixture(scope="module")
def plan(case: Case) -> Plan:
    return solve(case.graph, case.profile, case.links, "synchronous", Limit(2, 1), SolveOptions(gap=0.0))


@pytest.fixture(scope="module")
def program(case: Case, plan: Plan) -> Program:
    program = compile_program(case.graph, plan, pack(case.graph, plan))
    check_program(case.graph, plan, program)
    return program


Change = Callable[[Instruction], Instruction]


def moves(program: Program, tier: Tier) -> list[int]:
    steps = enumerate(program.steps)
    return [i for i, step in steps if isinstance(step, MoveStep) and step.destination.tier is tier]


def pooled(program: Program, *, operands: int = 1, tier: Tier | None = None) -> int:
    """A kernel step with at least so many operands in pools, all different (in one tier, if given)."""
    for i, step in enumerate(program.steps):
        if isinstance(step, KernelStep):
            found = {a for a in step.addresses if a.offset is not None and tier in {None, a.tier}}
            if len(found) >= operands:
                return i
    raise AssertionError


def changed(program: Program, index: int, change: Change) -> Program:
    return replace(program, steps=(*program.steps[:index], change(program.steps[index]), *program.steps[index + 1 :]))


def first_pooled(step: KernelStep) -> int:
    return next(slot for slot, address in enumerate(step.addresses) if address.offset is not None)


def readdress(program: Program, index: int, slot: int, address: Address) -> Program:
    def change(step: Instruction) -> Instruction:
        assert isinstance(step, KernelStep)
        old = step.addresses[slot]
        return replace(step, addresses=tuple(address if a == old else a for a in step.addresses))

    return changed(program, index, change)


def shifted(program: Program, by: int) -> Program:
    index = pooled(program)
    slot = first_pooled(program.steps[index])
    address = program.steps[index].addresses[slot]
    return readdress(program, index, slot, replace(address, offset=address.offset + by))


def other_tier(program: Program) -> Program:
    index = pooled(program)
    slot = first_pooled(program.steps[index])
    address = program.steps[index].addresses[slot]
    return readdress(program, index, slot, Address(Tier.FAST if address.tier is Tier.SLOW else Tier.SLOW, 0))


def without_offset(program: Program) -> Program:
    index = pooled(program, tier=Tier.FAST)
    slot = next(i for i, a in enumerate(program.steps[index].addresses) if a.offset is not None and a.tier is Tier.FAST)
    return readdress(program, index, slot, Address(Tier.FAST, None))


def argument_in_pool(program: Program) -> Program:
    index = next(
        i
        for i, s in enumerate(program.steps)
        if isinstance(s, KernelStep) and any(a.offset is None for a in s.addresses)
    )
    return readdress(
        program, index, program.steps[index].addresses.index(Address(Tier.FAST, None)), Address(Tier.FAST, 0)
    )


def two_on_one_place(program: Program) -> Program:
    """Two operands of one kernel in one tier are put on the same bytes."""
    tier = Tier.SLOW
    index = pooled(program, operands=2, tier=tier)
    slots = [i for i, a in enumerate(program.steps[index].addresses) if a.offset is not None and a.tier is tier]
    addresses = program.steps[index].addresses
    one = next(slot for slot in slots if addresses[slot] != addresses[slots[0]])
    return readdress(program, index, one, addresses[slots[0]])


def wrong_bytes(program: Program) -> Program:
    return changed(program, moves(program, Tier.SLOW)[0], lambda step: replace(step, size_bytes=step.size_bytes + 64))


def wrong_source(program: Program) -> Program:
    index = moves(program, Tier.SLOW)[0]
    step = program.steps[index]
    elsewhere = 0 if step.source.offset else 64
    return changed(program, index, lambda step: replace(step, source=Address(Tier.FAST, elsewhere)))


def within_one_tier(program: Program) -> Program:
    return changed(program, moves(program, Tier.SLOW)[0], lambda step: replace(step, source=step.destination))


def without_kernel(program: Program) -> Program:
    return replace(program, steps=program.steps[:-1])


def swapped_kernels(program: Program) -> Program:
    first, second = [i for i, step in enumerate(program.steps) if isinstance(step, KernelStep)][:2]
    steps = list(program.steps)
    steps[first], steps[second] = steps[second], steps[first]
    return replace(program, steps=tuple(steps))


def without_move(program: Program) -> Program:
    lost = moves(program, Tier.FAST)[0]
    return replace(program, steps=(*program.steps[:lost], *program.steps[lost + 1 :]))


def late_move(program: Program) -> Program:
    """A move after the kernel it was to precede."""
    index = moves(program, Tier.SLOW)[0]
    steps = list(program.steps)
    later = next(i for i in range(index + 1, len(steps)) if isinstance(steps[i], KernelStep))
    steps.insert(later, steps.pop(index))
    return replace(program, steps=tuple(steps))


def fewer_addresses(program: Program) -> Program:
    index = pooled(program)
    return changed(program, index, lambda step: replace(step, addresses=step.addresses[:-1]))


DEFECTS: list[tuple[Callable[[Program], Program], Fault]] = [
    (lambda p: replace(p, graph_hash="0"), Fault.OTHER_GRAPH),
    (lambda p: replace(p, plan_hash="0"), Fault.OTHER_PLAN),
    (lambda p: replace(p, limit=Limit.parse("1:1")), Fault.OTHER_PLAN),
    (lambda p: replace(p, optimizer="static"), Fault.OTHER_PLAN),
    (lambda p: replace(p, dram_limit_bytes=10**9), Fault.OTHER_PLAN),
    (lambda p: replace(p, fast_bytes=p.dram_limit_bytes + 64), Fault.LIMIT),
    (lambda p: replace(p, fast_bytes=64), Fault.POOL),
    (lambda p: replace(p, slow_bytes=0), Fault.POOL),
    (lambda p: shifted(p, 32), Fault.ALIGNMENT),
    (lambda p: shifted(p, -64 * 10**6), Fault.POOL),
    (lambda p: shifted(p, 64 * 10**6), Fault.POOL),
    (other_tier, Fault.ADDRESS),
    (without_offset, Fault.ADDRESS),
    (argument_in_pool, Fault.ADDRESS),
    (wrong_bytes, Fault.ADDRESS),
    (within_one_tier, Fault.ADDRESS),
    (two_on_one_place, Fault.OVERLAP),
    (wrong_source, Fault.STALE),
    (without_kernel, Fault.STEPS),
    (swapped_kernels, Fault.STEPS),
    (without_move, Fault.STEPS),
    (late_move, Fault.STEPS),
    (fewer_addresses, Fault.SLOTS),
]


@pytest.mark.parametrize(("break_it", "fault"), DEFECTS, ids=lambda value: getattr(value, "name", None))
def test_each_defect_is_named(
    case: Case, plan: Plan, program: Program, break_it: Callable[[Program], Program], fault: Fault
) -> None:
    with refused(fault):
        check_program(case.graph, plan, break_it(program))


def needed_until(plan: Plan, stay: Stay) -> int:
    """A slow stay that ends as the source of a read is held through the kernel, but needed until the read only."""
    source = any(move.tensor == stay.tensor and move.before == stay.end - 1 for move in plan.moves)
    return stay.end - 1 if stay.tier is Tier.SLOW and source else stay.end


def test_bytes_reused_too_early_are_found(case: Case, plan: Plan) -> None:
    """Every pair of stays that are needed at the same time is once put on the same bytes: none of these passes."""
    last = {stay: needed_until(plan, stay) for stay in plan.stays}
    layout = pack(case.graph, plan)
    size = {stay: case.graph.by_name[stay.tensor].allocated_bytes for stay in plan.stays}
    tried = 0
    for i, one in enumerate(plan.stays):
        for j, other in enumerate(plan.stays):
            meet = one.tier is other.tier and one.start < last[other] and other.start < last[one]
            if i == j or not meet or size[one] < size[other]:
                continue
            offsets = list(layout.offsets)
            offsets[j] = offsets[i]
            with pytest.raises(FaultError) as caught:
                check_program(
                    case.graph, plan, compile_program(case.graph, plan, replace(layout, offsets=tuple(offsets)))
                )
            assert caught.value.fault in {Fault.OVERLAP, Fault.STALE}
            tried += 1
    assert tried > 20


def test_the_pool_may_exceed_a_limit_that_is_none(case: Case) -> None:
    plan = solve(case.graph, case.profile, case.links, "all-fast", Limit(0, 1))
    program = compile_program(case.graph, plan, pack(case.graph, plan))
    check_program(case.graph, plan, replace(program, fast_bytes=plan.dram_limit_bytes + 4096))
    same = replace(plan, limit=Limit.parse(f"{plan.dram_limit_bytes}B"))
    bounded = replace(program, limit=same.limit, plan_hash=hash_of(same), fast_bytes=plan.dram_limit_bytes + 4096)
    with refused(Fault.LIMIT):
        check_program(case.graph, same, bounded)
