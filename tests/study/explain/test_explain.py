"""What binds a limit, and why a tensor lives where it does, against the plan, its profile and its certificate."""

from __future__ import annotations

from itertools import pairwise

import pytest
import random_graphs
from synthetic_figures import QUICK
from synthetic_plans import solved

from autotm.model.errors import BadInputError
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.solve.placing import solve_and_pack
from autotm.study.explain import explain_limit, explain_tensor, fast_bytes, tensor_text
from autotm.study.placed import MemoryPrices, Placed

LAYERS = 4


def placed_at(optimizer: str, limit: str = "3:1") -> Placed:
    return solved(optimizer, limit, LAYERS)


@pytest.mark.parametrize("optimizer", ["static", "synchronous", "asynchronous"])
def test_where_memory_has_a_price_it_is_nearly_full(optimizer: str) -> None:
    placed = placed_at(optimizer)
    found = explain_limit(placed)
    assert found.binding
    assert found.saved_us_per_mb == pytest.approx(sum(one.price_us_per_mb for one in found.binding))
    assert list(found.binding) == sorted(found.binding, key=lambda one: -one.price_us_per_mb)
    for one in found.binding:
        assert one.live_bytes >= one.fast_bytes
        assert one.live_bytes > found.limit_bytes, "without a shortage a byte is worth nothing"
    assert max(fast_bytes(placed)) <= found.limit_bytes


def test_more_memory_saves_at_most_what_prices_say() -> None:
    placed = placed_at("static")
    found = explain_limit(placed)
    case = random_graphs.with_engines(random_graphs.training_step_case(LAYERS), slower=3.0)
    more = found.limit_bytes + max(found.limit_bytes // 50, 64)
    better, _ = solve_and_pack(case.graph, case.profile, case.links, "static", Limit(size_bytes=more), QUICK)
    assert found.saved_us_per_mb is not None
    saved = found.saved_us_per_mb * (more - found.limit_bytes) / 1e6
    assert better.objective_us >= found.bound_us - saved - 1e-6 * found.bound_us


def test_what_a_planned_tensor_costs_adds_up() -> None:
    placed = placed_at("synchronous")
    prices = MemoryPrices(placed.plan, len(placed.step.kernels))
    moves_us = uses_us = 0.0
    for tensor in placed.step.movable:
        found = explain_tensor(placed, tensor.name)
        planned, for_life, slow = found.residencies
        assert [use.kernel for use in found.uses] == list(tensor.users)
        assert for_life.held_us == pytest.approx(
            prices.held_us(tensor.allocated_bytes, tensor.live.start, tensor.live.stop)
        )
        assert slow.uses_us == pytest.approx(sum(use.slower_us for use in found.uses))
        moves_us, uses_us = moves_us + planned.moves_us, uses_us + planned.uses_us
        assert len(found.gaps) == len(found.uses) - 1
        assert tensor.name in tensor_text(found)
    assert moves_us == pytest.approx(sum(placed.moves_us))
    assert placed.all_fast_us + uses_us + moves_us == pytest.approx(placed.plan.objective_us)


def test_a_gap_counts_each_tensor_between_once() -> None:
    placed = placed_at("synchronous")
    tensor = max(placed.step.movable, key=lambda one: max((b - a for a, b in pairwise(one.users)), default=0))
    gap = max(explain_tensor(placed, tensor.name).gaps, key=lambda one: one.before - one.after)
    assert gap.before - gap.after > 2
    names = {
        operand.tensor for kernel in placed.step.kernels[gap.after + 1 : gap.before] for operand in kernel.operands
    }
    movable = {one.name: one.size_bytes for one in placed.step.movable}
    assert gap.reuse_bytes == sum(movable.get(name, 0) for name in names)


def test_a_plan_without_prices_says_so() -> None:
    placed = placed_at("all-slow", "1:0")
    assert "nothing says what more memory would save" in explain_limit(placed).text()
    name = placed.step.movable[0].name
    found = explain_tensor(placed, name)
    assert {use.tier for use in found.uses} == {Tier.PMEM}
    assert "The plan has no prices" in tensor_text(found)


def test_with_memory_enough_no_kernel_binds() -> None:
    placed = placed_at("static", "0:1")
    assert "No kernel binds the limit" in explain_limit(placed).text()


def test_tensors_that_are_not_placed_are_named() -> None:
    placed = placed_at("static")
    fixed = next(tensor for tensor in placed.step.tensors if not tensor.is_movable and tensor.alias_of is None)
    with pytest.raises(BadInputError, match=r"in fast memory for good: the limit does not count it\. With --counts"):
        explain_tensor(placed, fixed.name)
    name = placed.step.movable[0].name
    with pytest.raises(BadInputError, match=f"unknown tensor '{name}x'; did you mean .*{name}"):
        explain_tensor(placed, f"{name}x")


def test_an_alias_is_explained_by_what_it_lies_in() -> None:
    placed = placed_at("static")
    alias = next(tensor for tensor in placed.step.tensors if tensor.alias_of is not None)
    with pytest.raises(BadInputError, match="in fast memory for good"):
        explain_tensor(placed, alias.name)
