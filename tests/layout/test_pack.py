"""Offsets: never two tensors on one byte, close to the live peak, and fast to find."""

from __future__ import annotations

import importlib
import random
import time

import numpy as np
import pytest

from autotm.check import check_plan, check_program
from autotm.layout import compile_program, pack
from autotm.layout.first_fit import Blocks, first_fit
from autotm.layout.pack import height, pack_blocks
from autotm.model.graph import ALIGNMENT_BYTES
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.model.program import Layout
from autotm.model.tier import Tier
from autotm.solve import SolveOptions, solve
from random_graphs import Case, random_case, training_step_case

packing = importlib.import_module("autotm.layout.pack")
"""The module; the package's own `pack` is its function."""


def random_blocks(seed: int, count: int, kernels: int, longest: int) -> Blocks:
    draw = random.Random(seed)
    sizes = [64 * draw.choice((1, 2, 16, 300, 400, 1000)) for _ in range(count)]
    starts = [draw.randrange(kernels) for _ in range(count)]
    ends = [start + draw.randint(1, longest) for start in starts]
    return Blocks(np.array(sizes), np.array(starts), np.array(ends))


def require_disjoint(blocks: Blocks, offsets: np.ndarray) -> None:
    tops = offsets + blocks.sizes
    meet = (blocks.starts[:, None] < blocks.ends) & (blocks.starts < blocks.ends[:, None])
    share = (offsets[:, None] < tops) & (offsets < tops[:, None])
    np.fill_diagonal(meet, val=False)
    assert not (meet & share).any()
    assert (offsets >= 0).all()
    assert (offsets % ALIGNMENT_BYTES == 0).all()


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_meet_never_share_bytes(seed: int) -> None:
    blocks = random_blocks(seed, count=80, kernels=60, longest=1 + seed)
    offsets = pack_blocks(blocks)
    require_disjoint(blocks, offsets)
    assert blocks.peak_bytes <= height(blocks, offsets) <= blocks.sizes.sum()
    in_order = first_fit(blocks, range(len(blocks)))
    require_disjoint(blocks, in_order)
    assert height(blocks, offsets) <= height(blocks, in_order)


@pytest.mark.parametrize("seed", [2, 3, 6, 7])
def test_packings_learn_from_those_before(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that every greedy order packs at least 0.8 % above the live peak; later orders get a third closer."""
    draw = np.random.default_rng(seed)
    starts = draw.integers(0, 40, 60)
    ends = np.minimum(starts + 1 + draw.geometric(0.15, 60), 45)
    blocks = Blocks(64 * draw.integers(1, 200, 60), starts, ends)
    offsets = pack_blocks(blocks)
    require_disjoint(blocks, offsets)
    excess = height(blocks, offsets) - blocks.peak_bytes
    monkeypatch.setattr(packing, "_LATER_WORK", 0)
    greedy = height(blocks, pack_blocks(blocks)) - blocks.peak_bytes
    assert greedy > 0.008 * blocks.peak_bytes
    assert excess < 0.7 * greedy


def test_first_fit_takes_the_lowest_hole() -> None:
    blocks = Blocks(np.array([64, 128, 64, 128, 64]), np.array([0, 0, 0, 1, 1]), np.array([2, 1, 2, 2, 2]))
    assert first_fit(blocks, range(5)).tolist() == [0, 64, 192, 64, 256]


def test_memory_is_reused_at_the_boundary() -> None:
    blocks = Blocks(np.array([640, 640]), np.array([0, 3]), np.array([3, 5]))
    assert pack_blocks(blocks).tolist() == [0, 0]
    assert height(Blocks(*(np.zeros(0, np.int64),) * 3), np.zeros(0, np.int64)) == 0


def live_peak(case: Case, plan: Plan, tier: Tier) -> int:
    live = np.zeros(len(case.graph.kernels), np.int64)
    for stay in plan.stays:
        if stay.tier is tier:
            live[stay.start : stay.end] += case.graph.by_name[stay.tensor].allocated_bytes
    return int(live.max(initial=0))


def packed(case: Case, optimizer: str, limit: Limit) -> tuple[Plan, Layout]:
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, SolveOptions(gap=0.01, time_limit_s=5.0))
    layout = pack(case.graph, plan)
    check_plan(case.graph, case.profile, case.links, plan)
    return plan, layout


@pytest.mark.parametrize("seed", range(10))
def test_pools_of_random_plans_hold_their_tensors(seed: int) -> None:
    case = random_case(seed, kernels=12)
    for optimizer, limit in (("synchronous", Limit(2, 1)), ("static", Limit(1, 1)), ("all-slow", Limit(1, 0))):
        plan, layout = packed(case, optimizer, limit)
        program = compile_program(case.graph, plan, layout)
        if layout.fast_bytes <= plan.dram_limit_bytes:
            check_program(case.graph, plan, program)
        assert layout.slow_bytes >= live_peak(case, plan, Tier.PMEM)


@pytest.mark.parametrize(
    ("optimizer", "limit"),
    [("all-fast", Limit(0, 1)), ("all-slow", Limit(1, 0)), ("synchronous", Limit(1, 1)), ("static", Limit(1, 1))],
)
def test_pools_stay_within_one_percent_of_the_live_peak(optimizer: str, limit: Limit) -> None:
    case = training_step_case(layers=30)
    plan, layout = packed(case, optimizer, limit)
    assert layout.fast_bytes <= 1.01 * live_peak(case, plan, Tier.DRAM)
    assert layout.slow_bytes <= 1.01 * live_peak(case, plan, Tier.PMEM)


@pytest.mark.wall_clock
def test_three_thousand_stays_take_about_a_second() -> None:
    blocks = random_blocks(1, count=3000, kernels=2000, longest=40)
    started = time.process_time()
    offsets = pack_blocks(blocks)
    assert time.process_time() - started < 6  # generous: the machine may be shared
    require_disjoint(blocks, offsets)


def test_layout_of_another_plan_is_refused() -> None:
    case = random_case(1)
    plan, layout = packed(case, "static", Limit(1, 1))
    other, _ = packed(case, "all-slow", Limit(1, 0))
    assert plan.stays != other.stays
    with pytest.raises(ValueError, match="another plan"):
        compile_program(case.graph, other, layout)
