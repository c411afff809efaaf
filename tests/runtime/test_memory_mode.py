"""A step in memory mode on real kernels: verified, charged for its misses, and not charged where the cache is real."""

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
from autotm.model.cache import amplified_bytes
from autotm.model.errors import BadInputError
from autotm.model.files import load, save
from autotm.model.limit import Limit
from autotm.model.links import MachineRates
from autotm.model.machine import DaxTier, Machine
from autotm.model.record import Record
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.solve.placing import solve_and_pack

GRAPH = small_step.graph()


def ran(library: KernelLibrary, limit: Limit, machine: Machine) -> Record:
    profile, links = small_step.profile(), small_step.links()
    plan, layout = solve_and_pack(GRAPH, profile, links, "memory-mode", limit)
    check_plan(GRAPH, profile, links, plan)
    program = compile_program(GRAPH, plan, layout)
    check_program(GRAPH, plan, program)
    options = RunOptions(min_seconds=0.01, poison=True, patience_s=0.05)
    return run(GRAPH, library, program, plan, machine, links, profile, options, small_step.DEVICES)


def test_a_run_is_verified_and_counts_its_misses(library: KernelLibrary, tmp_path: Path) -> None:
    record = ran(library, Limit(1, 1), small_step.machine())
    assert record.verified_steps == 2
    assert record.tier_reality == "emulated"
    assert (record.ratio, record.limit) == ("1:1", Limit(1, 1))
    cache = record.cache
    assert cache is not None
    assert cache.dirty_misses > 0
    assert cache.dirty_miss_bytes == 4096 * cache.dirty_misses
    assert record.dram_alloc_size <= record.dram_limit_bytes < record.pmem_alloc_size
    assert record.ratio_achieved == record.pmem_alloc_size / record.dram_alloc_size
    fetched = cache.clean_miss_bytes + cache.dirty_miss_bytes
    extra_us = (fetched + cache.dirty_miss_bytes) * small_step.SLOW_NS_PER_BYTE / 1e3
    assert record.predicted_runtime_s == pytest.approx((len(GRAPH.kernels) * small_step.BASE_NS / 1e3 + extra_us) / 1e6)
    save(tmp_path / "record.json", "record", record, {})
    assert load(tmp_path / "record.json", "record", Record) == record


def test_a_real_cache_is_not_charged_again(library: KernelLibrary) -> None:
    record = ran(library, Limit(1, 1), replace(small_step.machine(), memory_mode=True))
    assert (record.verified_steps, record.tier_reality) == (2, "real")


def test_slow_memory_that_is_not_emulated_has_no_cache(library: KernelLibrary, tmp_path: Path) -> None:
    folder = DaxTier(kind="dax", path=str(tmp_path), stand_in=True)
    with pytest.raises(BadInputError, match=r"memory-mode: .* choose another optimizer"):
        ran(library, Limit(1, 1), replace(small_step.machine(), slow_tier=folder))


def test_where_copies_were_measured_kernels_wait_for_the_cache_itself(library: KernelLibrary) -> None:
    """Every kernel writes, so every kernel waits for a tag, also where nothing is missed."""
    profile, machine = small_step.profile(), small_step.machine()
    links = replace(small_step.links(), rates=MachineRates(flop_per_s=1e12, copy_bytes_per_s=1e6))
    plan, layout = solve_and_pack(GRAPH, profile, links, "memory-mode", Limit(0, 1))
    program = compile_program(GRAPH, plan, layout)
    assert not any(fetched for fetched, _ in program.cache_traffic_bytes)
    with open_tiers(machine, links, program.fast_bytes, program.slow_bytes, small_step.DEVICES) as tiers:
        executor = prepare(GRAPH, library, program, Arguments.in_pools(GRAPH, GRAPH, program, tiers), tiers)
        waits = [end - first == 2 for first, end in executor.spans]
    written = [amplified_bytes(GRAPH, kernel, 0) > 0 for kernel in GRAPH.kernels]
    assert waits == written
    assert any(waits)


@pytest.mark.parametrize("is_real", [False, True])
def test_kernels_wait_for_what_they_miss(library: KernelLibrary, *, is_real: bool) -> None:
    profile, links = small_step.profile(), small_step.links()
    plan, layout = solve_and_pack(GRAPH, profile, links, "memory-mode", Limit(1, 1))
    program = compile_program(GRAPH, plan, layout)
    machine = replace(small_step.machine(), memory_mode=is_real)
    with open_tiers(machine, links, program.fast_bytes, program.slow_bytes, small_step.DEVICES) as tiers:
        arguments = Arguments.in_pools(GRAPH, GRAPH, program, tiers)
        executor = prepare(GRAPH, library, program, arguments, tiers)
        waits = [end - first == 2 for first, end in executor.spans]
        misses = [fetched > 0 for fetched, _ in program.cache_traffic_bytes]
        assert waits == ([False] * len(misses) if is_real else misses)
        assert any(misses)
        assert not all(misses)
