"""Memory for the operands of one kernel: copies in each tier, filled with ordinary numbers."""

import numpy as np
import small_step

from autotm.memory.tiers import open_tiers
from autotm.model.graph import Initial
from autotm.profile.kernel_timing import MAX_COPIES, Filler, plan_operands


def test_an_updated_parameter_shares_its_parameters_memory() -> None:
    graph = small_step.graph()
    plan = plan_operands(graph, graph.kernels[7], 1)
    assert plan.offsets[0] == plan.offsets[2] != plan.offsets[1]
    assert plan.copy_bytes == 2 * 64 * 64 * 4


def test_copies_fill_the_rotation_but_are_bounded() -> None:
    graph = small_step.graph()
    relu = graph.kernels[1]
    assert plan_operands(graph, relu, 1).copies == 2
    assert plan_operands(graph, relu, 10 * plan_operands(graph, relu, 1).copy_bytes).copies == 10
    assert plan_operands(graph, relu, 10**12).copies == MAX_COPIES


def test_views_lie_in_the_tier_of_their_letter_and_copies_do_not_overlap() -> None:
    graph = small_step.graph()
    plan = plan_operands(graph, graph.kernels[1], 1)
    with open_tiers(
        small_step.machine(), small_step.links(), plan.pool_bytes, plan.pool_bytes, small_step.DEVICES
    ) as tiers:
        source, target = plan.views(tiers, "DP", 1)
        source[...], target[...] = 1.0, 2.0
        assert (tiers.fast.view(plan.copy_bytes, (32, 64), "float32") == 1.0).all()
        assert (tiers.slow.view(plan.copy_bytes + plan.offsets[1], (32, 64), "float32") == 2.0).all()
        assert not tiers.fast.view(0, (plan.copy_bytes,), "uint8").any()
        del source, target


def test_operands_are_ordinary_numbers() -> None:
    filler = Filler(seed=3)
    floats = np.zeros((3, 1 << 20), np.float32)
    filler.fill(floats)
    assert floats.min() >= 0.5
    assert floats.max() < 1.5001
    assert len(np.unique(floats)) > 1000
    whole = np.full(100, 7, np.int64)
    filler.fill(whole)
    assert set(whole) == {0, 1}


def test_indices_are_drawn_anew_from_their_whole_range() -> None:
    filler, initial = Filler(seed=3), Initial("integers", 50)
    first, second = np.zeros((20, 30), np.int32), np.zeros((20, 30), np.int32)
    filler.fill(first, initial)
    filler.fill(second, initial)
    assert set(np.unique(first)) == set(range(50))
    assert (first != second).mean() > 0.9
