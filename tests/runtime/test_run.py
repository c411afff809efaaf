"""A run verifies, times and records, or leaves no file, on emulated and stand-in memory; what its record counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import small_step
from small_programs import Trip, plan, profile, program
from stand_in_clock import StandInClock

from autotm.kernels.library import KernelLibrary
from autotm.memory.linux.pools import NodePool
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import load, save
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.machine import DaxTier, NumaTier
from autotm.model.program import Program
from autotm.model.record import Record
from autotm.model.system import SystemMemory
from autotm.runtime import verify
from autotm.runtime.record import Measured, build_record
from autotm.runtime.run import Runs
from autotm.runtime.step_times import RunOptions, StepParts, StepTimes
from autotm.runtime.verify import VerificationError

GRAPH = small_step.graph()
QUICK = RunOptions(patience_s=0.05, min_seconds=0.01)


def runs_of(library: KernelLibrary, options: RunOptions = QUICK, file: Path | None = None, **changes: Any) -> Runs:
    """Runs on a machine and links with these changes."""
    machine, links = small_step.machine(), small_step.links()
    if "slow_tier" in changes:
        machine = replace(machine, slow_tier=changes.pop("slow_tier"))
    return Runs(GRAPH, library, machine, replace(links, **changes), profile(GRAPH), options, small_step.DEVICES, file)


HIDDEN_SLOW, MOVED = program(GRAPH, frozenset({"hidden"})), program(GRAPH, trips={"act2": Trip(5, 6)})
BOTH = program(GRAPH, frozenset({"hidden"}), {"act2": Trip(5, 6)})


def test_a_run_verifies_times_and_records(library: KernelLibrary, tmp_path: Path) -> None:
    file = tmp_path / "reference.json"
    with runs_of(library, replace(QUICK, poison=True, instrumented_steps=3), file) as runs:
        record = runs.run(BOTH, plan(GRAPH))
    assert record.verified_steps == 2
    assert len(record.samples_s) == len(record.all_fast_samples_s) >= 3
    assert sum(record.samples_s) >= 0.01 or record.disturbed_steps, "patience ends where others hold the cores"
    assert record.actual_runtime_s == min(record.samples_s) > 0
    assert all(time_us > 0 for time_us in record.kernel_times_us.values())
    assert file.exists()
    save(tmp_path / "record.json", "record", record, {})
    assert load(tmp_path / "record.json", "record", Record) == record


def test_asynchronous_moves_are_verified_and_their_stalls_recorded(
    library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = StandInClock().put_into(monkeypatch, "memory.copies", "runtime.executor")
    stand_in.hold_sleeps_until_a_copy_is_waited_for(monkeypatch)
    moving = program(GRAPH, trips={"hidden": Trip(2, 5, 3, 4), "act2": Trip(4, 6, 5, 5)})
    with runs_of(library, replace(QUICK, poison=True, instrumented_steps=3), emulation_stretch=100.0) as runs:
        record = runs.run(moving, plan(GRAPH))
    assert record.verified_steps == 2
    assert record.num_async_move_nodes == 4
    assert record.stall_time_us > 500, "each copy of 8 kB takes 330 us or more, and the kernels beside it nothing"
    save(tmp_path / "program.json", "program", moving, {})
    assert load(tmp_path / "program.json", "program", Program) == moving


def test_files_of_different_graphs_do_not_run_together(library: KernelLibrary) -> None:
    other = small_step.graph(batch=16)
    with runs_of(library) as runs:
        with pytest.raises(BadInputError, match="hash"):
            runs.run(program(other), plan(other))
        with pytest.raises(BadInputError, match="program's plan"):
            runs.run(MOVED, replace(plan(GRAPH), limit=Limit.parse("2:1")))


MEASURED = {
    "actual_runtime_s", "actual_runtime_median_s", "samples_s", "all_fast_samples_s", "disturbed_steps",
    "disturbed_steps_count", "kernel_times_us", "stall_time_us", "move_actual_us", "waited_s", "all_fast_waited_s",
    "oracle_time_us",
}  # fmt: skip


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("side_by_side", [True, False])
def test_programs_that_share_the_all_fast_step_have_the_records_of_runs_alone(
    library: KernelLibrary, tmp_path: Path, *, side_by_side: bool, in_turn: bool
) -> None:
    file, options = tmp_path / "reference.json", replace(QUICK, side_by_side=side_by_side)
    programs = [(one, plan(GRAPH)) for one in (HIDDEN_SLOW, MOVED, BOTH)]
    with runs_of(library, options, file) as runs:
        shared = runs.run_in_turn(programs) if in_turn else [runs.run(*one) for one in programs]
    for one, record in zip(programs, shared, strict=True):
        assert isinstance(record, Record)
        with runs_of(library, options, file) as runs:
            alone = runs.run(*one)
        for field in fields(Record):
            if field.name not in MEASURED:
                assert getattr(record, field.name) == getattr(alone, field.name), field.name
        assert record.kernel_times_us.keys() == alone.kernel_times_us.keys()
        assert len(record.all_fast_samples_s) == (len(record.samples_s) if side_by_side else 0)


@pytest.mark.parametrize("step", [1, 2])
def test_each_verified_step_counts_the_first_timed_one_too(
    library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A fault is named with its step; programs that share what it used are none the worse."""
    asked, right = count(1), verify.digests

    def digests(*of: Any) -> dict[str, str]:
        digested = right(*of)
        return digested | {next(iter(digested)): "of something else"} if next(asked) == step else digested

    with runs_of(library, file=tmp_path / "reference.json") as runs:
        runs.run(HIDDEN_SLOW, plan(GRAPH))
        with monkeypatch.context() as patched:
            patched.setattr(verify, "digests", digests)
            with pytest.raises(VerificationError, match=f"step {step} differs from the plain step in 1 of"):
                runs.run(HIDDEN_SLOW, plan(GRAPH))
        assert runs.run(HIDDEN_SLOW, plan(GRAPH)).verified_steps == 2


def test_what_fails_keeps_no_other_program_from_its_record(library: KernelLibrary) -> None:
    # One computes something else, one belongs to another plan, and one finds too little memory beside the others.
    wrong = replace(HIDDEN_SLOW, steps=(HIDDEN_SLOW.steps[1], *HIDDEN_SLOW.steps[1:]))
    huge = replace(MOVED, slow_bytes=1 << 50)
    programs = [(MOVED, plan(GRAPH)), (wrong, plan(GRAPH)), (MOVED, replace(plan(GRAPH), limit=Limit.parse("2:1")))]
    programs += [(huge, plan(GRAPH)), (HIDDEN_SLOW, plan(GRAPH))]
    with runs_of(library) as runs:
        first, *failed, last = runs.run_in_turn(programs)
    assert isinstance(first, Record)
    assert isinstance(last, Record)
    assert [type(one) for one in failed] == [VerificationError, BadInputError, AutotmError]
    assert "program's plan" in str(failed[1])
    assert "this machine cannot give as much" in str(failed[2])


CHILD = """
import sys
sys.modules["torch"] = None  # TVM imports it where it is installed, which takes seconds
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import small_step
from small_programs import plan, profile, program
from autotm.kernels.library import KernelLibrary
from autotm.model.files import save
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
graph, library, folder = small_step.graph(), KernelLibrary.load(Path(sys.argv[2])), Path(sys.argv[3])
record = run(graph, library, program(graph), plan(graph), small_step.machine(), small_step.links(), profile(graph),
             RunOptions(min_seconds=float(sys.argv[4]), patience_s=0.05), small_step.DEVICES, folder / "reference.json")
save(folder / "record.json", "record", record, {})
"""


def child(library_path: Path, folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    helpers = Path(__file__).parents[1] / "helpers"
    return subprocess.Popen([sys.executable, "-c", CHILD, helpers, library_path, folder, str(seconds)])


def test_a_killed_run_leaves_no_half_file_and_runs_again(library_path: Path, tmp_path: Path) -> None:
    killed = child(library_path, tmp_path, seconds=600)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "reference.json").exists():
            assert killed.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    assert not (tmp_path / "record.json").exists()
    assert child(library_path, tmp_path, seconds=0.01).wait() == 0
    assert load(tmp_path / "record.json", "record", Record).verified_steps == 2


NODE = NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(0,), stand_in=True)


@pytest.fixture
def binding() -> None:
    """Tests of a node need a system that lets pages be bound."""
    try:
        NodePool(Tier.FAST, 0, (0,), "none", SystemMemory())
    except AutotmError as error:
        pytest.skip(f"NOT TESTED: memory nodes: {error}")


def run_on(tier: NumaTier | DaxTier, library: KernelLibrary) -> Record:
    with runs_of(library, slow_tier=tier) as runs:
        return runs.run(BOTH, plan(GRAPH))


@pytest.mark.usefixtures("binding")
def test_a_run_on_stand_ins_is_verified_and_counts_pages(library: KernelLibrary, tmp_path: Path) -> None:
    on_node, in_folder = (
        run_on(tier, library) for tier in (NODE, DaxTier(kind="dax", path=str(tmp_path), stand_in=True))
    )
    assert (on_node.verified_steps, on_node.tier_reality) == (2, "stand-in")
    assert list(on_node.pages_by_node) == ["dram", "pmem"]
    assert on_node.pages_by_node["pmem"] == {"0": -(-on_node.pmem_alloc_size // 4096)}
    assert (in_folder.verified_steps, in_folder.tier_reality, in_folder.pages_by_node) == (2, "stand-in", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("binding")
def test_a_run_whose_memory_went_elsewhere_has_no_record(
    library: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def away(pool: NodePool) -> dict[str, int]:
        looks.append(pool.size_bytes)
        return {"0": 1, "2": 1} if len(looks) > 8 else {"0": 2}

    monkeypatch.setattr(NodePool, "pages_by_node", away)
    with pytest.raises(AutotmError, match=r"1 of 2 pages are not on node 0 \(1 on node 2\).*is refused"):
        run_on(NODE, library)


TIMES = Measured(
    StepTimes((0.5, 0.25, 1.0), (0.2, 0.3, 0.4), 2, waited_s=(0.0, 0.1, 0.2), all_fast_waited_s=(0.3, 0.0, 0.0)),
    StepParts({kernel.name: 3.0 for kernel in GRAPH.kernels}, 5.0, 8.0),
    2,
    7,
)
ROWS, SQUARE = 32 * 64 * 4, 64 * 64 * 4


def recorded(compiled: Program) -> Record:
    machine, links = small_step.machine(), small_step.links()
    return build_record(GRAPH, compiled, plan(GRAPH), machine, links, profile(GRAPH), TIMES)


def test_slots_and_bytes_are_counted_by_tier() -> None:
    record = recorded(program(GRAPH, frozenset({"hidden", "vt"}), {"act2": Trip(5, 6)}))
    assert (record.num_kernels, record.num_input_tensors, record.num_output_tensors) == (10, 19, 11)
    assert record.num_input_tensors - record.num_dram_input_tensors == 2, "two kernels read hidden"
    assert record.num_output_tensors - record.num_dram_output_tensors == 1, "a workspace is not an output"
    assert record.bytes_input_tensors == 9 * ROWS + 2 * SQUARE
    assert record.bytes_dram_input_tensors == 7 * ROWS + 2 * SQUARE
    assert record.bytes_output_tensors == 6 * ROWS + 2 * SQUARE
    assert record.bytes_dram_output_tensors == 5 * ROWS + 2 * SQUARE


def test_moves_are_counted_by_destination_and_priced_by_the_links_and_asynchronous_ones_apart() -> None:
    record = recorded(program(GRAPH, trips={"act2": Trip(5, 6), "error": Trip(5, 6), "hidden": Trip(2, 5, 3, 4)}))
    assert (record.num_move_nodes, record.num_async_move_nodes) == (4, 2)
    assert (record.bytes_moved, record.bytes_moved_dram, record.bytes_moved_pmem) == (4 * ROWS, 2 * ROWS, 2 * ROWS)
    assert record.move_time_us == pytest.approx(2 * (ROWS * 0.5e-3 + ROWS * 1e-3))
    assert (record.num_dram_async_move_nodes, record.num_pmem_async_move_nodes) == (1, 1)
    assert (record.bytes_async_moved, record.bytes_async_moved_dram, record.bytes_async_moved_pmem) == (
        *(2 * ROWS, ROWS, ROWS),
    )
    assert record.stall_time_us == 5.0


def test_times_and_sizes_come_from_measurement_plan_and_program() -> None:
    compiled = program(GRAPH, frozenset({"hidden"}))
    record = recorded(compiled)
    assert (record.actual_runtime_s, record.actual_runtime_median_s) == (0.25, 0.5)
    assert (record.predicted_runtime_s, record.bound_s, record.gap) == (2.0, 1.5, 0.25)
    assert (record.waited_s, record.all_fast_waited_s) == ((0.0, 0.1, 0.2), (0.3, 0.0, 0.0))
    assert record.move_actual_us == 8.0
    assert record.all_fast_predicted_s == pytest.approx(sum(profile(GRAPH).base_us(k) for k in GRAPH.kernels) / 1e6)
    assert (record.creation_times, record.optimization_times) == ((0.25,), (0.5,))
    assert record.default_alloc_size == GRAPH.peak_live_bytes
    assert record.dram_alloc_size == compiled.fast_bytes
    assert record.pmem_alloc_size == compiled.slow_bytes == ROWS
    assert record.ratio_achieved == ROWS / compiled.fast_bytes
    assert (record.tier_reality, record.dram_limit_bytes, record.seed) == ("emulated", 12_345, 7)


def test_what_the_all_fast_step_took_longer_than_profiled_is_drift() -> None:
    record = recorded(program(GRAPH, frozenset({"hidden"})))
    assert replace(record, all_fast_predicted_s=0.5).drift_s == pytest.approx(0.3 - 0.5)
    assert replace(record, all_fast_samples_s=()).drift_s is None
    assert replace(record, all_fast_predicted_s=None).drift_s is None, "an older file"


def test_without_fast_pool_there_is_no_ratio() -> None:
    compiled = program(GRAPH, frozenset(t.name for t in GRAPH.movable))
    record = recorded(compiled)
    assert compiled.fast_bytes == 0
    assert record.ratio_achieved is None
    assert record.bytes_dram_input_tensors == record.bytes_dram_output_tensors == 0


ARTIFACT = {
    "io_size", "default_alloc_size", "gpu_managed_runtime_s", "creation_times", "optimization_times",
    "predicted_runtime_s", "dram_limit_bytes", "ratio", "tensor_size_map", "config_map", "move_time_us",
    "actual_runtime_s", "kernel_times_us", "oracle_time_us", "dram_alloc_size", "pmem_alloc_size", "num_kernels",
    *(f"{quantity}{where}" for where in ("", "_dram", "_pmem") for quantity in ("bytes_moved", "bytes_async_moved")),
    *(f"num{where}{kind}_move_nodes" for where in ("", "_dram", "_pmem") for kind in ("", "_async")),
    *(
        f"{quantity}{where}_{side}_tensors"
        for quantity in ("num", "bytes") for where in ("", "_dram") for side in ("input", "output")
    ),
}  # fmt: skip
"""The fields of the original's artifact document and code, some with a unit behind."""


def test_every_field_of_the_original_is_there_under_its_name() -> None:
    assert len(ARTIFACT) == 37
    assert {each.name for each in fields(Record)} >= ARTIFACT


def test_sizes_configurations_and_both_ratios_are_recorded() -> None:
    compiled = program(GRAPH, frozenset({"hidden"}), {"error": Trip(2, 5, 3, 4)})
    record = recorded(compiled)
    assert record.tensor_size_map["hidden"] == ROWS
    assert set(record.config_map) == {kernel.name for kernel in GRAPH.kernels}
    assert sum("P" in config for config in record.config_map.values()) > 0
    assert (record.ratio, record.ratio_achieved) == ("1:1", compiled.slow_bytes / compiled.fast_bytes)
    record = recorded(replace(compiled, limit=Limit.parse("4500MB")))
    assert record.ratio is None
    assert (record.gpu_managed_runtime_s, record.cache) == (None, None)
