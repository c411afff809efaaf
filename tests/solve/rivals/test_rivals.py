"""What others do on a GPU, on a step small enough to follow by hand: each kernel takes 2 us, each copy 4 us."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from modelled_problems import COPY_US, FAULTS, KERNEL_US, MAP_BYTES
from modelled_problems import problem_of as modelled_problem
from random_graphs import StepBuilder, random_case

from autotm.model.errors import BadInputError
from autotm.model.graph import Graph, Role
from autotm.model.limit import Limit
from autotm.model.plan import GPU_RIVALS
from autotm.model.timeline import Engine
from autotm.solve.gpu_rivals import RIVALS, run_rival
from autotm.solve.gpu_simulation import Simulated, run_plan
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.problem import Problem


def chain() -> Graph:
    """Three layers, a loss, their gradients, an update: t0 is read by kernels 1 and 6, t1 by 2 and 5, t2 by 3 and 4."""
    values = MAP_BYTES // 4
    builder = StepBuilder()
    builder.argument("data", 16, Role.INPUT)
    builder.argument("weight", 16)
    builder.kernel(["data"], {"t0": values})
    builder.kernel(["t0"], {"t1": values})
    builder.kernel(["t1"], {"t2": values})
    builder.kernel(["t2"], {"loss": 1}, role=Role.RESULT)
    builder.kernel(["t2"], {"g2": values})
    builder.kernel(["t1", "g2"], {"g1": values})
    builder.kernel(["t0", "g1"], {"g0": values})
    builder.kernel(["weight", "g0"], {"weight_new": 16}, role=Role.RESULT)
    builder.aliases["weight_new"] = "weight"
    return builder.graph("chain")


def problem_of(maps: int, graph: Graph | None = None) -> Problem:
    """The step, with device memory for so many of its feature maps."""
    return modelled_problem(maps, graph or chain())


def times(found: Simulated) -> tuple[float, int, int]:
    """Of the step in us, and what was copied, in maps."""
    return found.step_us, found.in_bytes // MAP_BYTES, found.out_bytes // MAP_BYTES


def test_a_step_that_fits_takes_what_its_kernels_take() -> None:
    # Managed blocks hold arguments, too, and feature maps lie across them.
    for name, maps in (("lru-paging", 4), ("managed-memory", 6)):
        found = run_rival(name, problem_of(maps), FAULTS)
        assert (found.fits, times(found)) == (True, (8 * KERNEL_US, 0, 0)), name


def test_paging_evicts_what_was_used_least_recently_and_writes_it_once() -> None:
    # Kernel 4 wants room for g2: t0 goes, and comes back for kernel 6.
    found = run_rival("lru-paging", problem_of(3), FAULTS)
    assert times(found) == (8 * KERNEL_US + 2 * COPY_US, 1, 1)
    assert found.most_bytes == 3 * MAP_BYTES
    assert [(event.engine, event.name, event.start_us) for event in found.events if event.engine != "compute"] == [
        (Engine.OUT, "t0", 8.0),
        (Engine.IN, "t0", 16.0),
    ]


def test_a_kernel_that_has_no_room_does_not_fit() -> None:
    for name in ("lru-paging", "swap-all", "recompute", "save-on-cpu"):
        assert not run_rival(name, problem_of(2), FAULTS).fits, name


def test_swap_all_copies_out_beside_forward_and_in_beside_backward_kernels() -> None:
    # Each kernel that a copy runs beside lasts as long as the copy: 0-2, 2-6, 6-10, 10-14; t2 is brought back at once,
    # until 18; 18-22 beside t1, 22-26 beside t0; then two kernels alone.
    found = run_rival("swap-all", problem_of(4), FAULTS)
    assert times(found) == (30.0, 3, 3)
    # Kernel 5 has t1, g2 and g1, and t0 on its way.
    assert (found.most_bytes, found.fits) == (4 * MAP_BYTES, True)


def test_recomputing_runs_a_dropped_segment_again_and_moves_nothing() -> None:
    # In two segments t0 alone is dropped: kernel 0 runs again before kernel 6.
    found = run_rival("recompute", problem_of(3), FAULTS)
    assert (found.fits, found.repeated_us, times(found)) == (True, KERNEL_US, (9 * KERNEL_US, 0, 0))
    assert found.remark == "2 segments"
    assert [event.name for event in found.events][6:8] == ["kernel_0 again", "kernel_6"]
    assert found.most_bytes == 3 * MAP_BYTES


def test_recomputing_a_chain_within_a_segment_needs_its_input_only() -> None:
    builder = StepBuilder()
    builder.argument("data", 16, Role.INPUT)
    builder.kernel(["data"], {"t0": 1024})
    for layer in range(1, 8):
        builder.kernel([f"t{layer - 1}"], {f"t{layer}": 1024})
    builder.kernel(["t7"], {"loss": 1}, role=Role.RESULT)
    builder.kernel(["t7"], {"g7": 1024})
    for layer in range(6, -1, -1):
        builder.kernel([f"t{layer}", f"g{layer + 1}"], {f"g{layer}": 1024})
    whole = builder.graph()
    assert whole.peak_live_bytes == 9 * MAP_BYTES
    found = run_rival("recompute", problem_of(7, whole), FAULTS)
    assert found.fits
    # No kernel of the last segment runs again, and none twice.
    names = [event.name for event in found.events]
    again = [name for name in names if name.endswith("again")]
    assert 0 < len(again) == len(set(again)) < 8
    assert found.repeated_us == KERNEL_US * len(again)


def test_managed_memory_waits_for_faults_and_for_evictions() -> None:
    steps = [run_rival("managed-memory", problem_of(maps), FAULTS) for maps in (6, 3, 2, 1)]
    assert [one.step_us for one in steps] == sorted(one.step_us for one in steps)
    for one in steps:
        assert one.step_us == 8 * KERNEL_US + 8.0 * (one.in_bytes // MAP_BYTES) + COPY_US * one.out_bytes / MAP_BYTES
        # What leaves the device in a step comes back in one: nothing piles up.
        assert abs(one.in_bytes - one.out_bytes) <= 4 * MAP_BYTES
    assert steps[-1].in_bytes > 0


@pytest.mark.parametrize("maps", [3, 4])
def test_plans_are_no_slower_than_rivals(maps: int) -> None:
    problem = problem_of(maps)
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
    least = solve(case.graph, case.profile, case.links, "synchronous", Limit(0, 1), options)
    problem = Problem(case.graph, case.profile, case.links, Limit(2, 3), options)
    plan = solve(case.graph, case.profile, case.links, "synchronous", problem.limit, options)
    found = run_plan(problem, plan)
    assert found.step_us == pytest.approx(plan.objective_us)
    assert found.step_us >= least.objective_us
    for engine in Engine:
        assert_disjoint([(event.start_us, event.end_us) for event in found.events if event.engine == engine])
    for name in RIVALS:
        rival = run_rival(name, problem, FAULTS)
        assert rival.step_us >= rival.kernels_us + rival.repeated_us - 1e-6
        for engine in Engine:
            assert_disjoint([(event.start_us, event.end_us) for event in rival.events if event.engine == engine])


def assert_disjoint(spans: Sequence[tuple[float, float]]) -> None:
    assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(sorted(spans)))


def test_names_of_rivals_are_those_that_figures_ask_for() -> None:
    assert RIVALS == GPU_RIVALS
    with pytest.raises(BadInputError, match="rival 'lru'"):
        run_rival("lru", problem_of(4), FAULTS)
