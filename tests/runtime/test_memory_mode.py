"""A step in memory mode on real kernels: verified, charged for its misses, and not charged where the cache is real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import small_step

from autotm.check import check_plan, check_program
from autotm.kernels.library.library import KernelLibrary
from autotm.layout import compile_program
from autotm.memory.tiers import open_tiers
from autotm.model.files.files import hash_of, load, save
from autotm.model.machine.machine import Machine
from autotm.model.measurement.profile import Profile, Timing
from autotm.model.measurement.record import Record
from autotm.model.step.limit import Limit
from autotm.model.step.tier import all_fast, configuration
from autotm.runtime import RunOptions, run
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.solve import solve_and_pack

GRAPH = small_step.graph()
BASE_NS, SLOW_NS_PER_BYTE = 1_000_000, 1


def profile_of() -> Profile:
    """1 ms a kernel, and 1 ns a byte that is slow."""
    times = {}
    for kernel in GRAPH.kernels:
        times[kernel.identity, kernel.implementation, all_fast(kernel)] = BASE_NS
        for tensor in GRAPH.slots_of(kernel):
            config = configuration(GRAPH, kernel, {tensor})
            size_bytes = GRAPH.by_name[tensor].size_bytes
            times[kernel.identity, kernel.implementation, config] = BASE_NS + SLOW_NS_PER_BYTE * size_bytes
    return Profile(hash_of(GRAPH), {key: Timing(ns, ns, ns, ns, 7) for key, ns in times.items()}, {})


def ran(library: KernelLibrary, limit: Limit, machine: Machine) -> Record:
    profile, links = profile_of(), small_step.links()
    plan, layout = solve_and_pack(GRAPH, profile, links, "memory-mode", limit)
    check_plan(GRAPH, profile, links, plan)
    program = compile_program(GRAPH, plan, layout)
    check_program(GRAPH, plan, program)
    options = RunOptions(min_seconds=0.01, poison=True, patience_s=1.0)
    return run(GRAPH, library, program, plan, machine, links, profile, options, small_step.DEVICES)


def test_a_run_is_verified_and_counts_its_misses(library: KernelLibrary, tmp_path: Path) -> None:
    record = ran(library, Limit(1, 1), small_step.machine())
    assert record.verified_steps == 2
    assert record.tier_reality == "emulated"
    assert (record.ratio, record.limit) == ("1:1", "1:1")
    cache = record.cache
    assert cache is not None
    assert cache.dirty_misses > 0
    assert cache.dirty_miss_bytes == 4096 * cache.dirty_misses
    assert record.dram_alloc_size <= record.dram_limit_bytes < record.pmem_alloc_size
    assert record.ratio_achieved == record.pmem_alloc_size / record.dram_alloc_size
    fetched = cache.clean_miss_bytes + cache.dirty_miss_bytes
    extra_us = (fetched + cache.dirty_miss_bytes) * SLOW_NS_PER_BYTE / 1e3
    assert record.predicted_runtime_s == pytest.approx((len(GRAPH.kernels) * BASE_NS / 1e3 + extra_us) / 1e6)
    save(tmp_path / "record.json", "record", record, {})
    assert load(tmp_path / "record.json", "record", Record) == record


def test_a_real_cache_is_not_charged_again(library: KernelLibrary) -> None:
    record = ran(library, Limit(1, 1), replace(small_step.machine(), memory_mode=True))
    assert (record.verified_steps, record.tier_reality) == (2, "real")


@pytest.mark.parametrize("is_real", [False, True])
def test_kernels_wait_for_what_they_miss(library: KernelLibrary, *, is_real: bool) -> None:
    profile, links = profile_of(), small_step.links()
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
