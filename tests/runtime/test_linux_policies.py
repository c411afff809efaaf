"""A step whose pages Linux places, on real kernels in emulated memory: verified, and charged for its slow pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import small_step

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import KernelLibrary
from autotm.layout.compile import compile_program
from autotm.memory.tiers import Tiers, open_tiers
from autotm.model.cache import PagedTraffic
from autotm.model.errors import BadInputError
from autotm.model.files import load, save
from autotm.model.graph import OpClass
from autotm.model.limit import Limit
from autotm.model.links import MachineRates
from autotm.model.record import Record
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.solve.placing import solve_and_pack

GRAPH = small_step.graph()
LINKS = replace(small_step.links(), rates=MachineRates(1e12, 80e9))
POLICIES = ("linux-preferred", "linux-interleave", "linux-weighted-interleave", "linux-balancing")


@pytest.mark.parametrize("optimizer", POLICIES)
def test_a_run_is_verified_and_says_that_pages_are_simulated(
    library: KernelLibrary, optimizer: str, tmp_path: Path
) -> None:
    profile = small_step.profile()
    plan, layout = solve_and_pack(GRAPH, profile, LINKS, optimizer, Limit(1, 1))
    check_plan(GRAPH, profile, LINKS, plan)
    program = compile_program(GRAPH, plan, layout)
    check_program(GRAPH, plan, program)
    options = RunOptions(min_seconds=0.01, poison=True, patience_s=0.05)
    record = run(GRAPH, library, program, plan, small_step.machine(), LINKS, profile, options, small_step.DEVICES)
    assert (record.verified_steps, record.tier_reality) == (2, "emulated")
    assert record.pages is not None
    assert record.pages.placed_by == "simulated"
    assert 0 < record.pages.most_fast_bytes == record.dram_alloc_size <= record.dram_limit_bytes
    assert record.pages.slow_read_bytes > 0
    assert record.dram_alloc_size + record.pmem_alloc_size == program.slow_bytes
    assert 0 < record.bytes_dram_input_tensors < record.bytes_input_tensors
    save(tmp_path / "record.json", "record", record, {})
    assert load(tmp_path / "record.json", "record", Record) == record


def test_waits_are_those_of_slow_bytes_and_of_copies() -> None:
    machine = small_step.machine()
    with open_tiers(machine, LINKS, 4096, 4096, small_step.DEVICES) as tiers:
        still = tiers.paged_delay_ns(OpClass.MATMUL, PagedTraffic(10**6, 10**6, 0, 0))
        assert still == tiers.kernel_delay_ns(OpClass.MATMUL, (10**6,), (10**6,)) > 0
        moving = tiers.paged_delay_ns(OpClass.MATMUL, PagedTraffic(10**6, 10**6, 10**6, 0))
        back = tiers.paged_delay_ns(OpClass.MATMUL, PagedTraffic(10**6, 10**6, 0, 10**6))
        assert still < moving < back, "slow memory is written at a lower rate than it is read"


def test_real_memories_have_no_simulated_pages() -> None:
    with (
        open_tiers(small_step.machine(), LINKS, 4096, 4096, small_step.DEVICES) as tiers,
        pytest.raises(BadInputError, match="simulated on emulated slow memory, and real on memory nodes"),
    ):
        Tiers.paged_delay_ns(tiers, OpClass.MATMUL, PagedTraffic(0, 0, 0, 0))
