"""What a study takes of a real second memory, a node and DAX: copies, a profile, a plan, a verified run; and `doctor`.

Without what any machine shows as well: Snakemake, figures, TVM. `test_figure_10.py` has all of it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import small_step
from forks import forked
from small_programs import Trip, program

from autotm.kernels.library import KernelLibrary
from autotm.layout.compile import compile_program
from autotm.memory.calibration import Effort, calibrate_links
from autotm.memory.opening import open_tiers
from autotm.model.cores import Watch
from autotm.model.errors import AutotmError
from autotm.model.graph import OpClass
from autotm.model.limit import Counts, Limit
from autotm.model.machine import Machine
from autotm.model.provenance import provenance
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.step_profile import profile_step
from autotm.profile.store import KernelStore
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import poisoned, prepare
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.runtime.verify import reference, verify
from autotm.solve.placing import solve_and_pack
from autotm.study.doctor import findings, findings_text

GRAPH = small_step.graph()
TIMED = ProfileOptions(
    patience_s=0.05, min_repeats=3, max_repeats=3, step_s=0.1, kernel_s=0.005, rotation_bytes=1_000_000
)
OPTIONS = RunOptions(min_seconds=0.01, min_steps=1, verify_steps=2, patience_s=0.05)


@pytest.mark.parametrize("kind", ["numa", "dax"])
def test_a_step_is_measured_planned_and_run(
    kind: str,
    library: KernelLibrary,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine: Machine = request.getfixturevalue(kind)
    devices, counts = small_step.DEVICES, Counts.INTERMEDIATES
    busy, watch = dict.fromkeys(OpClass, np.ones(1 << 14).sum), Watch(machine.cpus, 1.0)
    links = calibrate_links(machine, devices, 1e9, busy, watch, (4096, 1 << 20), Effort(1, 1))
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        profile = profile_step(GRAPH, counts, library, machine, links, store, TIMED, 1e3, devices)
    plan, layout = solve_and_pack(GRAPH, profile, links, "synchronous", Limit.parse("1:1"))
    record = run(GRAPH, library, compile_program(GRAPH, plan, layout), plan, machine, links, profile, OPTIONS, devices)
    with capsys.disabled():
        print(f" {kind}: pages {json.dumps(record.pages_by_node)}, {record.pmem_alloc_size} B slow")
    assert (record.tier_reality, record.verified_steps) == ("real", 2)
    assert provenance(machine, 0)["slow_memory"]["kind"] == kind
    assert set(record.pages_by_node["dram"]) == {"0"}
    assert set(record.pages_by_node.get("pmem", {})) == ({"1"} if kind == "numa" else set())
    assert record.pmem_alloc_size > 0


PROGRAMS = {
    "all fast": program(GRAPH),
    "all slow": program(GRAPH, frozenset(tensor.name for tensor in GRAPH.movable)),
    "moved": program(GRAPH, frozenset({"vt"}), {"act2": Trip(5, 6)}),
    "moved beside kernels": program(GRAPH, frozenset({"vt"}), {"act2": Trip(4, 6, left=5, call=5)}),
}


@pytest.mark.parametrize("kind", ["numa", "dax", "device"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_planned_steps_compute_the_same_bits(
    kind: str, name: str, library: KernelLibrary, request: pytest.FixtureRequest
) -> None:
    machine, planned = request.getfixturevalue(kind), PROGRAMS[name]
    expected = reference(GRAPH, library, machine, 0, 3, small_step.DEVICES)
    with open_tiers(machine, small_step.links(), planned.fast_bytes, planned.slow_bytes, small_step.DEVICES) as tiers:
        arguments = Arguments.allocate(GRAPH, tiers=tiers)
        arguments.fill(0, machine.cpus)
        executor = poisoned(GRAPH, prepare(GRAPH, library, planned, arguments, tiers))
        verify(GRAPH, executor, expected, 3)
        tiers.check()


def test_doctor_tells_what_can_be_used(dax_folder: Path) -> None:
    text = findings_text(findings(Path("/run")))
    for place in ("memory node 0", "memory node 1", "memory node 2", str(dax_folder)):
        assert place in text, text


PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
MEMORY_CALLS = (237, 238, 239, 256, 279)
"""mbind, set_mempolicy, get_mempolicy, migrate_pages, move_pages on x86-64. Docker allows them with CAP_SYS_NICE only:
docs.docker.com/engine/security/seccomp."""


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine() -> None:
    """Refuse this process, for good, what Docker refuses containers: to bind pages, and to ask where they are."""
    last = len(MEMORY_CALLS)
    lines = [
        (LOAD_WORD, 0, 0, 0),  # seccomp_data.nr
        *((JUMP_IF_EQUAL, last - place, 0, call) for place, call in enumerate(MEMORY_CALLS)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, FAIL | errno.EPERM),
    ]
    program = Filter(len(lines), b"".join(struct.pack("=HBBI", *line) for line in lines))
    libc = ctypes.CDLL(None)
    libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(program), 0, 0) == 0


def test_doctor_in_a_container_says_what_is_forbidden(dax_folder: Path) -> None:
    def confined() -> None:
        confine()
        raise AutotmError(findings_text(findings(Path("/run"))))

    lines = {line.split("  ")[0]: line for line in forked(confined).splitlines()}
    for node in (1, 2):
        assert "Operation not permitted" in lines[f"memory node {node}"], lines
        assert "docker run --cap-add SYS_NICE" in lines[f"memory node {node}"]
    folder = lines[f"folder {dax_folder}"]
    assert "memory that cannot be bound" in folder
    assert "fast_nodes" not in folder, "a run could not bind them"


def test_a_run_in_a_container_ends_before_it_starts(numa: Machine) -> None:
    def confined() -> None:
        confine()
        open_tiers(numa, None, 1 << 20, 1 << 20, Path("config/devices"))

    assert "docker run --cap-add SYS_NICE" in forked(confined)
