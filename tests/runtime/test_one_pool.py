"""Steps in memory mode, and steps whose pages Linux places, on real kernels: verified, and charged for slow bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_step

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import KernelLibrary
from autotm.layout.compile import compile_program
from autotm.memory.opening import open_tiers
from autotm.model.cache import PagedTraffic, amplified_bytes
from autotm.model.errors import BadInputError
from autotm.model.files import load, save
from autotm.model.graph import OpClass
from autotm.model.limit import Limit
from autotm.model.links import Links, MachineRates
from autotm.model.machine import DaxTier, Machine
from autotm.model.program import Program
from autotm.model.record import Record
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.linux_pages import _slow_bytes
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.solve.paging import PageMap, first_fit
from autotm.solve.placing import solve_and_pack

GRAPH = small_step.graph()
PAGED = small_step.graph(batch=96, width=48)
LINKS = replace(small_step.links(), rates=MachineRates(1e12, 80e9))
POLICIES = ("linux-preferred", "linux-interleave", "linux-weighted-interleave", "linux-balancing")


def ran(library: KernelLibrary, optimizer: str, machine: Machine, links: Links) -> tuple[Record, Program]:
    profile = small_step.profile()
    plan, layout = solve_and_pack(GRAPH, profile, links, optimizer, Limit(1, 1))
    check_plan(GRAPH, profile, links, plan)
    program = compile_program(GRAPH, plan, layout)
    check_program(GRAPH, plan, program)
    options = RunOptions(min_seconds=0.01, poison=True, patience_s=0.05)
    return run(GRAPH, library, program, plan, machine, links, profile, options, small_step.DEVICES), program


def assert_stored(record: Record, folder: Path) -> None:
    save(folder / "record.json", "record", record, {})
    assert load(folder / "record.json", "record", Record) == record


@pytest.mark.parametrize("is_real", [False, True])
def test_a_run_is_verified_and_counts_its_misses(library: KernelLibrary, tmp_path: Path, *, is_real: bool) -> None:
    record, _ = ran(library, "memory-mode", replace(small_step.machine(), memory_mode=is_real), small_step.links())
    assert (record.verified_steps, record.tier_reality) == (2, "real" if is_real else "emulated")
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
    assert_stored(record, tmp_path)


def test_slow_memory_behind_dax_has_no_cache_and_no_pages_that_linux_places(
    library: KernelLibrary, tmp_path: Path
) -> None:
    folder = DaxTier(kind="dax", path=str(tmp_path), stand_in=True)
    for optimizer, why in (("memory-mode", "no cache of slow memory"), ("linux-balancing", "Linux places no pages in")):
        with pytest.raises(BadInputError, match=rf"{optimizer} cannot run on .*{why}.* take another optimizer"):
            ran(library, optimizer, replace(small_step.machine(), slow_tier=folder), LINKS)


def waits(library: KernelLibrary, limit: Limit, links: Links, *, is_real: bool) -> tuple[list[bool], list[bool]]:
    """Which kernels of a step in memory mode are followed by a wait, and which miss something."""
    plan, layout = solve_and_pack(GRAPH, small_step.profile(), links, "memory-mode", limit)
    program = compile_program(GRAPH, plan, layout)
    machine = replace(small_step.machine(), memory_mode=is_real)
    with open_tiers(machine, links, program.fast_bytes, program.slow_bytes, small_step.DEVICES) as tiers:
        executor = prepare(GRAPH, library, program, Arguments.in_pools(GRAPH, GRAPH, program, tiers), tiers)
    return [end - first == 2 for first, end in executor.spans], [got > 0 for got, _ in program.cache_traffic_bytes]


def test_kernels_wait_for_what_they_miss_unless_a_real_cache_does(library: KernelLibrary) -> None:
    waiting, misses = waits(library, Limit(1, 1), small_step.links(), is_real=False)
    assert waiting == misses
    assert set(misses) == {False, True}
    assert not any(waits(library, Limit(1, 1), small_step.links(), is_real=True)[0])


def test_where_copies_were_measured_kernels_wait_for_the_cache_itself(library: KernelLibrary) -> None:
    """A kernel that writes waits for a tag, also where nothing is missed."""
    links = replace(small_step.links(), rates=MachineRates(flop_per_s=1e12, copy_bytes_per_s=1e6))
    waiting, misses = waits(library, Limit(0, 1), links, is_real=False)
    assert not any(misses)
    assert waiting == [amplified_bytes(GRAPH, kernel, 0) > 0 for kernel in GRAPH.kernels]
    assert any(waiting)


@pytest.mark.parametrize("optimizer", POLICIES)
def test_a_run_is_verified_and_says_that_pages_are_simulated(
    library: KernelLibrary, optimizer: str, tmp_path: Path
) -> None:
    record, program = ran(library, optimizer, small_step.machine(), LINKS)
    assert (record.verified_steps, record.tier_reality) == (2, "emulated")
    assert record.pages is not None
    assert record.pages.placed_by == "simulated"
    assert 0 < record.pages.most_fast_bytes == record.dram_alloc_size <= record.dram_limit_bytes
    assert record.pages.slow_read_bytes > 0
    assert record.dram_alloc_size + record.pmem_alloc_size == program.slow_bytes
    assert 0 < record.bytes_dram_input_tensors < record.bytes_input_tensors
    assert_stored(record, tmp_path)


def test_waits_are_those_of_slow_bytes_and_of_copies() -> None:
    with open_tiers(small_step.machine(), LINKS, 4096, 4096, small_step.DEVICES) as tiers:
        still = tiers.paged_delay_ns(OpClass.MATMUL, PagedTraffic(10**6, 10**6, 0, 0))
        assert still == tiers.kernel_delay_ns(OpClass.MATMUL, (10**6,), (10**6,)) > 0
        moving = tiers.paged_delay_ns(OpClass.MATMUL, PagedTraffic(10**6, 10**6, 10**6, 0))
        back = tiers.paged_delay_ns(OpClass.MATMUL, PagedTraffic(10**6, 10**6, 0, 10**6))
        assert still < moving < back, "slow memory is written at a lower rate than it is read"


@pytest.mark.parametrize("seed", range(4))
def test_slow_bytes_are_those_of_the_simulation(seed: int) -> None:
    offsets, size_bytes = first_fit(PAGED)
    pages = PageMap.of(PAGED, offsets, size_bytes)
    fast = np.random.default_rng(seed).random(pages.count) < 0.5
    wanted = [tuple(touch.slow_bytes(fast, pages.page_bytes) for touch in touches) for touches in pages.kernels]
    assert _slow_bytes(PAGED, dict(offsets), fast) == wanted
