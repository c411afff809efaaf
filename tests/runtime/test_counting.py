"""Steps whose parameters, inputs and results a plan places: bit for bit the plain step, wherever they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import small_step

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import KernelLibrary
from autotm.layout.compile import compile_program
from autotm.memory.tiers import open_tiers
from autotm.model.graph import Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.profiler import profile_kernels
from autotm.profile.store import KernelStore
from autotm.runtime.arguments import Arguments
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack

GRAPH = small_step.graph()
COUNTED = counting(GRAPH, Counts.ALL)
QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=3, kernel_s=0.0, rotation_bytes=1_000)


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@pytest.mark.parametrize("limit", [Limit(1, 0), Limit(2, 1), Limit(0, 1)], ids=str)
def test_a_run_equals_the_plain_step(library: KernelLibrary, tmp_path: Path, optimizer: str, limit: Limit) -> None:
    machine, links = small_step.machine(), small_step.links()
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        profile = profile_kernels(COUNTED, library, machine, links, store, QUICK, small_step.DEVICES)
    plan, layout = solve_and_pack(COUNTED, profile, links, optimizer, limit, SolveOptions())
    check_plan(COUNTED, profile, links, plan)
    program = compile_program(COUNTED, plan, layout)
    check_program(COUNTED, plan, program)
    options = RunOptions(min_seconds=0.01, poison=True, patience_s=0.05)
    record = run(GRAPH, library, program, plan, machine, links, profile, options, small_step.DEVICES)
    assert record.verified_steps == 2
    assert record.counts == "all"
    assert record.default_alloc_size == COUNTED.peak_live_bytes > GRAPH.peak_live_bytes
    if limit == Limit(1, 0):
        assert record.dram_alloc_size == 0, "even the parameters are in slow memory"


def test_arguments_lie_where_the_program_has_them(library: KernelLibrary, tmp_path: Path) -> None:
    machine, links = small_step.machine(), small_step.links()
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        profile = profile_kernels(COUNTED, library, machine, links, store, QUICK, small_step.DEVICES)
    fixed = replace(SolveOptions(), fixed={"w": Tier.SLOW, "v": Tier.FAST})
    plan, layout = solve_and_pack(COUNTED, profile, links, "static", Limit(1, 1), fixed)
    program = compile_program(COUNTED, plan, layout)
    with open_tiers(machine, links, program.fast_bytes, program.slow_bytes, small_step.DEVICES) as tiers:
        arguments = Arguments.in_pools(GRAPH, COUNTED, program, tiers)
        arguments.fill(1)
        offsets = {stay.tensor: offset for stay, offset in zip(layout.stays, layout.offsets, strict=True)}
        for name, pool in (("w", tiers.slow), ("v", tiers.fast)):
            value = arguments.value(name)
            assert (pool.view(offsets[name], value.shape, value.dtype) == value).all()
            assert (arguments.value(f"{name}_new") == value).all(), "an update shares its parameter's memory"
