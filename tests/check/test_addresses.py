"""Offsets that a plan states: accepted as they were found, refused where stays would share bytes or leave the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_graphs import Case, random_case

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_addresses, check_plan
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.solve.placing import solve_and_pack

LIMIT = Limit(1, 1)


def packed(seed: int) -> tuple[Case, Plan]:
    case = random_case(seed, kernels=12)
    plan, _ = solve_and_pack(case.graph, case.profile, case.links, "synchronous", LIMIT)
    check_plan(case.graph, case.profile, case.links, plan)
    return case, plan


def meet(case: Case, plan: Plan, one: int, other: int) -> bool:
    """Whether two stays share kernels and bytes of a tier."""
    first, second = plan.stays[one], plan.stays[other]
    sizes = [case.graph.by_name[plan.stays[number].tensor].allocated_bytes for number in (one, other)]
    together = first.tier is second.tier and first.start < second.end and second.start < first.end
    low, high = plan.offsets[one], plan.offsets[other]
    return together and low < high + sizes[1] and high < low + sizes[0]


@pytest.mark.parametrize("seed", range(2))  # Each tries hundreds of offsets.
def test_any_other_offset_is_judged_as_by_looking_at_every_pair(seed: int) -> None:
    case, plan = packed(seed)
    refused = 0
    for number, stay in enumerate(plan.stays):
        for offset in {*plan.offsets, plan.offsets[number] + 64}:
            offsets = (*plan.offsets[:number], offset, *plan.offsets[number + 1 :])
            moved = replace(plan, offsets=offsets, dram_limit_bytes=1 << 40)
            if any(meet(case, moved, number, other) for other in range(len(offsets)) if other != number):
                refused += 1
                with pytest.raises(FaultError, match=f"'{stay.tensor}'") as error:
                    check_addresses(case.graph, moved)
                assert error.value.fault is Fault.OVERLAP
            else:
                check_addresses(case.graph, moved)
    assert refused


def test_limit_alignment_and_number_are_kept() -> None:
    case, plan = packed(0)
    fast = next(number for number, stay in enumerate(plan.stays) if stay.tier is Tier.FAST)
    top = plan.dram_limit_bytes // 64 * 64

    def at(offset: int) -> Plan:
        return replace(plan, offsets=(*plan.offsets[:fast], offset, *plan.offsets[fast + 1 :]))

    for broken, fault in (
        (at(top), Fault.LIMIT),
        (at(plan.offsets[fast] + 8), Fault.ALIGNMENT),
        (at(-64), Fault.ALIGNMENT),
        (replace(plan, offsets=plan.offsets[1:]), Fault.ADDRESS),
    ):
        with pytest.raises(FaultError) as error:
            check_plan(case.graph, case.profile, case.links, broken)
        assert error.value.fault is fault
