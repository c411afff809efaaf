"""A run verifies, times and records, or leaves no file; on emulated memory and on stand-ins for real memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
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
from autotm.runtime.run import Runs, run
from autotm.runtime.step_times import RunOptions
from autotm.runtime.verify import VerificationError

HELPERS = Path(__file__).parents[1] / "helpers"
GRAPH = small_step.graph()
QUICK = RunOptions(patience_s=0.05, min_seconds=0.01)


def test_a_run_verifies_times_and_records(library: KernelLibrary, tmp_path: Path) -> None:
    made = program(GRAPH, frozenset({"hidden"}), {"act2": Trip(5, 6)})
    options = replace(QUICK, poison=True, instrumented_steps=3)
    machine, links, file = small_step.machine(), small_step.links(), tmp_path / "reference.json"
    record = run(GRAPH, library, made, plan(GRAPH), machine, links, profile(GRAPH), options, small_step.DEVICES, file)
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
    made = program(GRAPH, trips={"hidden": Trip(2, 5, 3, 4), "act2": Trip(4, 6, 5, 5)})
    links = replace(small_step.links(), emulation_stretch=100.0)
    options, machine = replace(QUICK, poison=True, instrumented_steps=3), small_step.machine()
    record = run(GRAPH, library, made, plan(GRAPH), machine, links, profile(GRAPH), options, small_step.DEVICES)
    assert record.verified_steps == 2
    assert record.num_async_move_nodes == 4
    assert record.stall_time_us > 500, "each copy of 8 kB takes 330 us or more, and the kernels beside it nothing"
    save(tmp_path / "program.json", "program", made, {})
    assert load(tmp_path / "program.json", "program", Program) == made


def test_files_of_different_graphs_do_not_run_together(library: KernelLibrary) -> None:
    other, rest = small_step.graph(batch=16), (small_step.machine(), small_step.links())
    with pytest.raises(BadInputError, match="hash"):
        run(GRAPH, library, program(other), plan(other), *rest, profile(other), QUICK, small_step.DEVICES)
    changed = replace(plan(GRAPH), limit=Limit.parse("2:1"))
    with pytest.raises(BadInputError, match="program's plan"):
        run(GRAPH, library, program(GRAPH), changed, *rest, profile(GRAPH), QUICK, small_step.DEVICES)


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
    given = (small_step.machine(), small_step.links(), profile(GRAPH), options, small_step.DEVICES, file)
    programs = [
        program(GRAPH, frozenset({"hidden"})),
        program(GRAPH, trips={"act2": Trip(5, 6)}),
        program(GRAPH, frozenset({"hidden"}), {"act2": Trip(5, 6)}),
    ]
    with Runs(GRAPH, library, *given) as runs:
        if in_turn:
            shared = runs.run_in_turn([(made, plan(GRAPH)) for made in programs])
        else:
            shared = [runs.run(made, plan(GRAPH)) for made in programs]
    for made, record in zip(programs, shared, strict=True):
        assert isinstance(record, Record)
        alone = run(GRAPH, library, made, plan(GRAPH), *given)
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
    file, made = tmp_path / "reference.json", program(GRAPH, frozenset({"hidden"}))
    given = (small_step.machine(), small_step.links(), profile(GRAPH), QUICK, small_step.DEVICES, file)
    asked, right = count(1), verify.digests

    def digests(*of: Any) -> dict[str, str]:
        found = right(*of)
        return found | {next(iter(found)): "of something else"} if next(asked) == step else found

    with Runs(GRAPH, library, *given) as runs:
        runs.run(made, plan(GRAPH))
        with monkeypatch.context() as patched:
            patched.setattr(verify, "digests", digests)
            with pytest.raises(VerificationError, match=f"step {step} differs from the plain step in 1 of"):
                runs.run(made, plan(GRAPH))
        assert runs.run(made, plan(GRAPH)).verified_steps == 2


def test_what_fails_keeps_no_other_program_from_its_record(library: KernelLibrary) -> None:
    right, clobbered = program(GRAPH, trips={"act2": Trip(5, 6)}), program(GRAPH, frozenset({"hidden"}))
    # One computes something else, one belongs to another plan, and one finds too little memory beside the others.
    wrong = replace(clobbered, steps=(clobbered.steps[1], *clobbered.steps[1:]))
    huge = replace(right, slow_bytes=1 << 50)
    programs = [(right, plan(GRAPH)), (wrong, plan(GRAPH)), (right, replace(plan(GRAPH), limit=Limit.parse("2:1")))]
    programs += [(huge, plan(GRAPH)), (clobbered, plan(GRAPH))]
    given = (small_step.machine(), small_step.links(), profile(GRAPH), QUICK, small_step.DEVICES)
    with Runs(GRAPH, library, *given) as runs:
        first, *failed, last = runs.run_in_turn(programs)
    assert isinstance(first, Record)
    assert isinstance(last, Record)
    assert [type(one) for one in failed] == [VerificationError, BadInputError, AutotmError]
    assert "program's plan" in str(failed[1])
    assert "this machine cannot give as much" in str(failed[2])


CHILD = """
    import sys
    sys.modules["torch"] = None  # TVM imports it where it is installed, which takes seconds
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    import small_step
    from small_programs import plan, profile, program
    from autotm.kernels.library import KernelLibrary
    from autotm.model.files import save
    from autotm.runtime.run import run
    from autotm.runtime.step_times import RunOptions
    graph, folder = small_step.graph(), Path({folder!r})
    library, options = KernelLibrary.load(Path({library!r})), RunOptions(min_seconds={seconds}, patience_s=0.05)
    record = run(graph, library, program(graph), plan(graph), small_step.machine(), small_step.links(), profile(graph),
                 options, small_step.DEVICES, folder / "reference.json")
    save(folder / "record.json", "record", record, {{}})
"""


def child(library_path: Path, folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    code = CHILD.format(tests=str(HELPERS), library=str(library_path), folder=str(folder), seconds=seconds)
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])


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
    made = program(GRAPH, frozenset({"hidden"}), {"act2": Trip(5, 6)})
    machine, options = replace(small_step.machine(), slow_tier=tier), RunOptions(patience_s=0.1, min_seconds=0.01)
    return run(
        GRAPH, library, made, plan(GRAPH), machine, small_step.links(), profile(GRAPH), options, small_step.DEVICES
    )


@pytest.mark.usefixtures("binding")
def test_a_run_on_a_node_is_verified_and_counts_pages(library: KernelLibrary) -> None:
    record = run_on(NODE, library)
    assert (record.verified_steps, record.tier_reality) == (2, "stand-in")
    assert list(record.pages_by_node) == ["dram", "pmem"]
    assert record.pages_by_node["pmem"] == {"0": -(-record.pmem_alloc_size // 4096)}


@pytest.mark.usefixtures("binding")
def test_a_run_in_a_folder_is_verified_and_leaves_it_empty(library: KernelLibrary, tmp_path: Path) -> None:
    record = run_on(DaxTier(kind="dax", path=str(tmp_path), stand_in=True), library)
    assert (record.verified_steps, record.tier_reality, record.pages_by_node) == (2, "stand-in", {})
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
