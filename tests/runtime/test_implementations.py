"""A step some of whose kernels are computed in another way: the same program, other code and other workspaces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_step
import two_ways

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import pack
from autotm.memory.tiers import open_tiers
from autotm.model.files import hash_of
from autotm.model.graph import DEFAULT_IMPLEMENTATION, Configuration, Graph, Tier
from autotm.model.limit import Counts, Limit
from autotm.model.plan import Plan, Status, Stay
from autotm.model.profile import Profile, Timing
from autotm.model.program import Program
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.profiler import Case, cases, profile_kernels
from autotm.profile.store import KernelStore
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.runtime.verify import plain_program
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack

MACHINE, LINKS = small_step.machine(), small_step.links()
QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=3, kernel_s=0.0, rotation_bytes=1_000)
RUN = RunOptions(patience_s=0.05, min_steps=1, min_seconds=0.0, poison=True)


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> two_ways.Step:
    return two_ways.lowered(tmp_path_factory.mktemp("two_ways"), objects)


@pytest.fixture(scope="module")
def profile(step: two_ways.Step) -> Profile:
    with KernelStore(step.folder / "kernels.sqlite") as store:
        return profile_kernels(step.graph, step.library, MACHINE, LINKS, store, QUICK, small_step.DEVICES)


def lean(graph: Graph) -> tuple[str, ...]:
    """The leanest implementation of each kernel."""
    return tuple(kernel.implementations[-1] for kernel in graph.kernels)


def planned(graph: Graph, implementations: tuple[str, ...]) -> Plan:
    """Everything in fast memory, but for the workspaces; by hand."""
    chosen = graph.computed_by(implementations)
    stays = sorted(
        (tensor.live.start, tensor.name, Tier.SLOW if "workspace" in tensor.name else Tier.FAST, tensor.live.stop)
        for tensor in chosen.movable
    )
    configurations = tuple(
        "".join("P" if "workspace" in operand.tensor else "D" for operand in kernel.operands)
        for kernel in chosen.kernels
    )
    return Plan(
        hash_of(graph), "by hand", Limit(0, 1), graph.peak_live_bytes, Counts.INTERMEDIATES,
        tuple(Stay(name, tier, start, end) for start, name, tier, end in stays), (), configurations,
        2_000.0, 1_500.0, Status.NOT_OPTIMIZED, 0.25, 0.5, implementations=implementations,
    )  # fmt: skip


def program_of(graph: Graph, plan: Plan) -> Program:
    made = compile_program(graph, plan, pack(graph, plan))
    check_program(graph, plan, made)
    return made


def test_both_ways_are_compiled_and_the_lean_one_takes_less(step: two_ways.Step) -> None:
    both = [kernel for kernel in step.graph.kernels if kernel.alternatives]
    assert {"conv2d", "conv2d_data_gradient", "conv2d_weight_gradient"} <= {kernel.op for kernel in both}
    for kernel in both:
        other = kernel.computed_by("lean")
        assert other.identity != kernel.identity
        assert sum(w.size_bytes for w in other.workspaces) < sum(w.size_bytes for w in kernel.workspaces)
        assert {w.tensor for w in other.workspaces}.isdisjoint(w.tensor for w in kernel.workspaces)


def test_the_profile_has_every_implementation_in_its_configurations(step: two_ways.Step, profile: Profile) -> None:
    for names in ((), lean(step.graph)):
        chosen = step.graph.computed_by(names)
        for kernel in chosen.kernels:
            assert profile.base_us(kernel) > 0
            assert all(profile.extra_us(chosen, kernel, tensor) >= 0 for tensor in chosen.slots_of(kernel))


def test_a_run_of_the_lean_ways_equals_its_own_plain_step(step: two_ways.Step, profile: Profile) -> None:
    reference = step.folder / "reference.json"
    records = {}
    for names in ((), lean(step.graph)):
        plan = planned(step.graph, names)
        made = program_of(step.graph, plan)
        arguments = step.graph, step.library, made, plan, MACHINE, LINKS, profile, RUN, small_step.DEVICES, reference
        records[names] = run(*arguments)
        assert records[names].verified_steps == 2
    default, other = records.values()
    count = sum(bool(kernel.alternatives) for kernel in step.graph.kernels)
    assert default.implementations == {"default": len(step.graph.kernels)}
    assert other.implementations == {"default": len(step.graph.kernels) - count, "lean": count}
    assert other.pmem_alloc_size < default.pmem_alloc_size, "all workspaces are in slow memory"
    assert other.default_alloc_size == default.default_alloc_size == step.graph.peak_live_bytes
    files = sorted(step.folder.glob("reference*.json"))
    assert len(files) == 2, "choices do not overwrite each other's reference"


def test_the_oracle_takes_the_best_of_profile_and_run(step: two_ways.Step, profile: Profile) -> None:
    plan = planned(step.graph, lean(step.graph))
    record = run(
        step.graph, step.library, program_of(step.graph, plan), plan, MACHINE, LINKS, profile, RUN, small_step.DEVICES
    )
    least = 0.0
    for kernel in step.graph.kernels:
        ways = [kernel.computed_by(name) for name in kernel.implementations]
        profiled = [profile.base_us(way) for way in ways]
        least += min([*profiled, record.kernel_times_us[kernel.name]])
    assert record.oracle_time_us == pytest.approx(least)


def test_both_ways_compute_the_same_but_for_rounding(step: two_ways.Step) -> None:
    found = []
    for names in ((), lean(step.graph)):
        graph = step.graph.computed_by(names)
        made = plain_program(graph)
        arguments = Arguments.allocate(graph)
        arguments.fill(3)
        with open_tiers(MACHINE, None, made.fast_bytes, 0, small_step.DEVICES, stretch=1.0) as tiers:
            prepare(graph, step.library, made, arguments, tiers).step()
        found.append({t.name: arguments.value(t.name).copy() for t in graph.tensors if t.role == "result"})
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-6)


def priced(graph: Graph) -> Profile:
    """Every kernel takes 1 ms, a tenth longer in another than the default way, and 10 ms more a slow operand."""

    def timing(case: Case, config: Configuration) -> Timing:
        way_us = 1_000 if case.kernel.implementation == DEFAULT_IMPLEMENTATION else 1_100
        slow = sum(config[slots[0]] == "P" for slots in case.graph.slots_of(case.kernel).values())
        ns = 1_000 * (way_us + 10_000 * slow)
        return Timing(ns, ns, ns, ns, 3)

    timings = {(*case.key, c): timing(case, c) for case in cases(graph, "additive") for c in case.configurations}
    return Profile(hash_of(graph), timings, {})


def test_a_small_limit_forces_the_lean_way(step: two_ways.Step) -> None:
    graph, prices = step.graph, priced(step.graph)
    small = graph.computed_by(lean(graph)).peak_live_bytes
    assert small < graph.peak_live_bytes
    chosen = {}
    for limit in (Limit(0, 1), Limit(size_bytes=small)):
        plan, layout = solve_and_pack(graph, prices, LINKS, "synchronous", limit, SolveOptions(gap=0.0))
        check_plan(graph, prices, LINKS, plan)
        program = compile_program(graph, plan, layout)
        check_program(graph, plan, program)
        record = run(graph, step.library, program, plan, MACHINE, LINKS, prices, RUN, small_step.DEVICES)
        assert record.verified_steps == 2
        chosen[limit] = record.implementations
    unlimited, tight = chosen.values()
    assert unlimited == {"default": len(graph.kernels)}, "the default way is faster"
    assert tight["lean"] > 0
    assert record.dram_alloc_size <= small


def test_a_program_of_other_implementations_than_its_plan_is_refused(step: two_ways.Step) -> None:
    names = lean(step.graph)
    plan, other = planned(step.graph, names), planned(step.graph, ())
    with pytest.raises(FaultError) as caught:
        check_program(step.graph, plan, program_of(step.graph, other))
    assert caught.value.fault is Fault.OTHER_PLAN
