"""What others do on a GPU, on steps small enough to follow by hand: each kernel takes 2 us, each copy 4 us."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from random_graphs import StepBuilder, one_slow_profile, random_case

from autotm.model.graph import Graph, OpClass, Role, Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import AsynchronousLinks, Contention, Link, Links
from autotm.model.machine import GpuManagedMemory
from autotm.model.plan import GPU_RIVALS
from autotm.model.timeline import Engine
from autotm.solve.gpu_rivals import run_rival, saved
from autotm.solve.gpu_simulation import Simulated, last_forward_kernel, run_plan
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.problem import Problem

MAP_BYTES = 4096
VALUES = MAP_BYTES // 4
KERNEL_US, COPY_US = 2.0, 4.0
FAULTS = GpuManagedMemory(source="made up", block_bytes=MAP_BYTES, faulted_bytes_per_s=MAP_BYTES / 8e-6)
"""A block takes 8 us to come in, twice as long as a copy."""


def problem_of(maps: int, graph: Graph) -> Problem:
    """The step on a modelled GPU that has memory for so many of its feature maps."""
    profile = one_slow_profile(graph, lambda _: round(1e3 * KERNEL_US), lambda *_: 0)
    copy_ns = round(1e3 * COPY_US)
    both = [Link(tier, ((MAP_BYTES, copy_ns), (2 * MAP_BYTES, 2 * copy_ns))) for tier in (Tier.FAST, Tier.SLOW)]
    none = dict.fromkeys(OpClass, Contention(0.0, 0.0))
    links = Links(*both, 1e12, 1.0, AsynchronousLinks(*both, none, none, 0.0))
    return Problem(graph, profile, links, Limit(size_bytes=maps * MAP_BYTES), SolveOptions(fast_operands_only=True))


def chain() -> Graph:
    """Three layers, a loss, their gradients, an update: t0 is read by kernels 1 and 6, t1 by 2 and 5, t2 by 3 and 4."""
    builder = StepBuilder()
    builder.argument("data", 16, Role.INPUT)
    builder.argument("weight", 16)
    builder.chain(3, VALUES)
    builder.update(["weight", "g0"], "weight_new", "weight")
    return builder.graph("chain")


def times(step: Simulated) -> tuple[float, int, int]:
    """Microseconds of the step, and the number of maps copied in and out."""
    return step.step_us, step.in_bytes // MAP_BYTES, step.out_bytes // MAP_BYTES


def test_a_step_that_fits_takes_what_its_kernels_take() -> None:
    # Managed blocks hold arguments, too, and feature maps lie across them.
    for name, maps in (("lru-paging", 4), ("managed-memory", 6)):
        step = run_rival(name, problem_of(maps, chain()), FAULTS)
        assert (step.fits, times(step)) == (True, (8 * KERNEL_US, 0, 0)), name


def test_paging_evicts_what_was_used_least_recently_and_writes_it_once() -> None:
    # Kernel 4 wants room for g2: t0 goes, and comes back for kernel 6.
    step = run_rival("lru-paging", problem_of(3, chain()), FAULTS)
    assert times(step) == (8 * KERNEL_US + 2 * COPY_US, 1, 1)
    assert step.most_bytes == 3 * MAP_BYTES
    assert [(event.engine, event.name, event.start_us) for event in step.events if event.engine != "compute"] == [
        (Engine.OUT, "t0", 8.0),
        (Engine.IN, "t0", 16.0),
    ]


def test_paging_keeps_an_old_tensor_that_was_just_read() -> None:
    builder = StepBuilder()
    builder.kernel([], {"old": VALUES})
    builder.kernel([], {"idle": VALUES})
    builder.kernel(["old"], {"c": VALUES})
    builder.kernel(["c"], {"d": VALUES})
    builder.kernel(["old", "idle", "d"], {"loss": 1}, role=Role.RESULT)
    step = run_rival("lru-paging", problem_of(3, builder.graph()), FAULTS)
    assert [event.name for event in step.events if event.engine != "compute"][:1] == ["idle"]


def test_a_kernel_that_has_no_room_does_not_fit() -> None:
    for name in ("lru-paging", "swap-all", "recompute", "save-on-cpu"):
        assert not run_rival(name, problem_of(2, chain()), FAULTS).fits, name


def test_swap_all_copies_out_beside_forward_and_in_beside_backward_kernels() -> None:
    # Each kernel that a copy runs beside lasts as long as the copy: 0-2, 2-6, 6-10, 10-14; t2 is brought back at once,
    # until 18; 18-22 beside t1, 22-26 beside t0; then two kernels alone.
    step = run_rival("swap-all", problem_of(4, chain()), FAULTS)
    assert times(step) == (30.0, 3, 3)
    # Kernel 5 has t1, g2 and g1, and t0 on its way.
    assert (step.most_bytes, step.fits) == (4 * MAP_BYTES, True)


def test_recomputing_runs_a_dropped_segment_again_and_moves_nothing() -> None:
    # In two segments t0 alone is dropped: kernel 0 runs again before kernel 6.
    step = run_rival("recompute", problem_of(3, chain()), FAULTS)
    assert (step.fits, step.repeated_us, times(step)) == (True, KERNEL_US, (9 * KERNEL_US, 0, 0))
    assert step.remark == "2 segments"
    assert [event.name for event in step.events][6:8] == ["kernel_0 again", "kernel_6"]
    assert step.most_bytes == 3 * MAP_BYTES


def test_recomputing_a_chain_within_a_segment_needs_its_input_only() -> None:
    builder = StepBuilder()
    builder.argument("data", 16, Role.INPUT)
    builder.chain(8, 1024)
    whole = builder.graph()
    assert whole.peak_live_bytes == 9 * MAP_BYTES
    step = run_rival("recompute", problem_of(7, whole), FAULTS)
    assert step.fits
    # No kernel of the last segment runs again, and none twice.
    again = [event.name for event in step.events if event.name.endswith("again")]
    assert 0 < len(again) == len(set(again)) < 8
    assert step.repeated_us == KERNEL_US * len(again)


def test_managed_memory_waits_for_faults_and_for_evictions() -> None:
    steps = [run_rival("managed-memory", problem_of(maps, chain()), FAULTS) for maps in (6, 3, 2, 1)]
    assert [one.step_us for one in steps] == sorted(one.step_us for one in steps)
    for one in steps:
        assert one.step_us == 8 * KERNEL_US + 8.0 * (one.in_bytes // MAP_BYTES) + COPY_US * one.out_bytes / MAP_BYTES
        # What leaves the device in a step comes back in one: nothing piles up.
        assert abs(one.in_bytes - one.out_bytes) <= 4 * MAP_BYTES
    assert steps[-1].in_bytes > 0


@pytest.mark.parametrize("maps", [3, 4])
def test_plans_are_no_slower_than_rivals(maps: int) -> None:
    problem = problem_of(maps, chain())
    plans = {
        name: solve(problem.graph, problem.profile, problem.links, name, problem.limit, problem.options)
        for name in ("synchronous", "asynchronous")
    }
    steps = {name: run_plan(problem, plan) for name, plan in plans.items()}
    assert steps["synchronous"].step_us == pytest.approx(plans["synchronous"].objective_us)
    assert steps["asynchronous"].step_us <= steps["synchronous"].step_us
    assert steps["synchronous"].step_us <= min(
        run_rival(name, problem, FAULTS).step_us for name in ("lru-paging", "swap-all", "managed-memory", "save-on-cpu")
    )
    for one in steps.values():
        assert one.fits
        assert one.most_bytes <= problem.limit_bytes


@pytest.mark.parametrize("seed", range(5))
def test_engines_do_one_thing_at_a_time_and_copies_lie_within_their_kernels(seed: int) -> None:
    case = random_case(seed, kernels=16)
    options = SolveOptions(fast_operands_only=True)
    least = solve(*case, "synchronous", Limit(0, 1), options)
    problem = Problem(*case, Limit(2, 3), options)
    plan = solve(*case, "synchronous", problem.limit, options)
    step = run_plan(problem, plan)
    assert step.step_us == pytest.approx(plan.objective_us)
    assert step.step_us >= least.objective_us
    for engine in Engine:
        assert_disjoint([(event.start_us, event.end_us) for event in step.events if event.engine == engine])
    for name in GPU_RIVALS:
        rival = run_rival(name, problem, FAULTS)
        assert rival.step_us >= rival.kernels_us + rival.repeated_us - 1e-6
        for engine in Engine:
            assert_disjoint([(event.start_us, event.end_us) for event in rival.events if event.engine == engine])


def assert_disjoint(spans: Sequence[tuple[float, float]]) -> None:
    assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(sorted(spans)))


def branched() -> Graph:
    """A map `x` that three operations save: two products, and the kernel that gives its gradient.

    Kernels: 0 makes x, 1 and 2 are products of it with a weight each, 3 gives the loss; 4 and 5 are the gradients of
    both products; 6 and 7 those of the first product's factors, which share a gradient, 8 and 9 of the other's; 10 adds
    them up where x lets them through.
    """
    builder = StepBuilder()
    builder.argument("data", VALUES, Role.INPUT)
    for weight in ("w1", "w2"):
        builder.argument(weight, VALUES)
    builder.kernel(["data"], {"x": VALUES})
    builder.kernel(["x", "w1"], {"y1": 16})
    builder.kernel(["x", "w2"], {"y2": 16})
    builder.kernel(["y1", "y2"], {"loss": 1}, role=Role.RESULT)
    builder.kernel(["y1"], {"g1": 16})
    builder.kernel(["y2"], {"g2": 16})
    for number in (1, 2):
        builder.kernel([f"g{number}", f"w{number}"], {f"dx{number}": VALUES})
        builder.update([f"g{number}", "x", f"w{number}"], f"w{number}_new", f"w{number}")
    builder.kernel(["dx1", "dx2", "x"], {"dx": VALUES})
    builder.kernel(["dx", "data"], {"out": 16})
    return builder.graph("branched")


def test_every_saved_tensor_goes_out_and_comes_back_and_no_copy_is_beside_a_kernel() -> None:
    builder = StepBuilder()
    builder.argument("data", 16, Role.INPUT)
    builder.chain(3, VALUES)
    step = run_rival("save-on-cpu", problem_of(3, builder.graph("chain")), FAULTS)
    assert step.step_us == 7 * KERNEL_US + 6 * COPY_US
    assert (step.in_bytes, step.out_bytes) == (3 * MAP_BYTES, 3 * MAP_BYTES)
    # Kernel 5 has t1, g2 and g1.
    assert (step.most_bytes, step.fits) == (3 * MAP_BYTES, True)
    ends = sorted((event.start_us, event.end_us) for event in step.events)
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    assert [event.name for event in step.events if event.engine is Engine.IN] == ["t2", "t1", "t0"]


@pytest.mark.parametrize("counts", Counts)
def test_parameters_and_inputs_are_saved_and_each_operation_saves_for_itself(counts: Counts) -> None:
    graph = counting(branched(), counts)
    assert last_forward_kernel(branched()) == 3
    wanted = saved(graph)
    # w1 is wanted by kernel 6 only: 7 writes it anew.
    assert wanted["w1"] == [range(6, 7)]
    assert wanted["w2"] == [range(8, 9)]
    assert wanted["data"] == [range(11, 12)]
    assert wanted["x"] == [range(7, 8), range(9, 10), range(10, 11)]
    assert set(wanted) == {"w1", "w2", "data", "x", "y1", "y2"}


def test_kernels_of_one_operation_share_its_copy() -> None:
    builder = StepBuilder()
    builder.argument("weight", VALUES)
    builder.kernel(["weight"], {"x": VALUES})
    builder.kernel(["x"], {"loss": 1}, role=Role.RESULT)
    builder.kernel(["x"], {"g": VALUES})
    builder.kernel(["g", "x"], {"sums": 16})
    builder.kernel(["g"], {"bias": 16})
    builder.kernel(["g", "x", "sums"], {"dx": VALUES})
    builder.update(["dx", "weight"], "weight_new", "weight")
    assert saved(builder.graph("normalization")) == {"x": [range(2, 3), range(3, 6)]}


def test_copies_of_arguments_take_device_memory_while_they_are_wanted() -> None:
    # Kernel 10 has dx1, dx2, x and dx; kernel 6 the copy of w1, and dx1.
    graph = branched()
    step = run_rival("save-on-cpu", problem_of(5, graph), FAULTS)
    assert step.most_bytes == 4 * MAP_BYTES
    with_arguments = run_rival("save-on-cpu", problem_of(8, counting(graph, Counts.ALL)), FAULTS)
    # Then data and both weights are there, too, for good.
    assert with_arguments.most_bytes >= 7 * MAP_BYTES
    assert with_arguments.step_us == step.step_us


def test_without_a_backward_pass_nothing_is_saved() -> None:
    builder = StepBuilder()
    builder.argument("data", VALUES, Role.INPUT)
    builder.kernel(["data"], {"t0": VALUES})
    builder.kernel(["t0"], {"out": 1}, role=Role.RESULT)
    assert saved(builder.graph("inference")) == {}
