"""What others do on a GPU, as programs on streams: equal to the plain step, and copies waited for as each rule says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import random_graphs
import small_step
from planned_streams import ONLY_FAST, STEPS, Planned, functions_of, launches_of
from played_cudart import PlayedRuntime
from played_gpu import plug_in
from stream_cases import run_steps, same
from thread_device import Delays, Interleaving, ThreadDevice

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import FatbinLibrary
from autotm.layout.compile import compile_program
from autotm.model.errors import BadInputError
from autotm.model.limit import Counts, Limit, counting
from autotm.model.machine import CudaTier
from autotm.model.plan import Plan, repeats
from autotm.model.program import Program
from autotm.model.timeline import Lane
from autotm.runtime.record import unfit_record
from autotm.runtime.step_times import RunOptions
from autotm.runtime.streams.run import run_on_gpu
from autotm.runtime.streams.schedule import DeviceArguments, Schedule, device_bytes, operations, schedule
from autotm.runtime.verify import VerificationError
from autotm.solve.placing import solve_and_pack

MIB = 1 << 20
MACHINE = replace(small_step.machine(), name="gpu", slow_tier=CudaTier(kind="cuda", managed_oversubscription=True))
QUICK = RunOptions(min_seconds=0.01, patience_s=0.05, verify_steps=2, instrumented_steps=3)
FITTING = {"lru-paging": None, "swap-all": "0:1", "managed-memory": "4:1", "recompute": "0:1"}
"""Limits that leave each of them something to do, and room to do it; None: the least that plans need."""


def rival(
    planned: Planned, optimizer: str, limit: str = "", counts: Counts = Counts.INTERMEDIATES
) -> tuple[Plan, Program, random_graphs.Case]:
    graph = counting(planned.graph, counts)
    case = random_graphs.with_engines(
        random_graphs.Case(
            graph, random_graphs.roofline_profile(graph, 0), random_graphs.make_links(29.0, 12.0, tiny=True)
        )
    )
    least = f"{planned.programs['synchronous'].fast_bytes}B"
    asked = Limit.parse(limit or FITTING[optimizer] or least)
    plan, layout = solve_and_pack(graph, case.profile, case.links, optimizer, asked, ONLY_FAST)
    check_plan(graph, case.profile, case.links, plan, fast_operands_only=True)
    program = compile_program(graph, plan, layout)
    check_program(graph, plan, program)
    return plan, program, case


@pytest.mark.parametrize("optimizer", ["lru-paging", "swap-all"])
@pytest.mark.parametrize("dead", [False, True], ids=["", "poison when dead"])
def test_rivals_equal_the_plain_step_over_many_orders(planned: Planned, optimizer: str, dead: bool) -> None:
    plan, program, _ = rival(planned, optimizer)
    assert {move.destination for move in plan.moves} == {"dram", "pmem"}
    assert program.fits
    for order in (*map(Delays, range(6)), *map(Interleaving, range(6))):
        found = run_steps(planned.graph, planned.library, program, steps=STEPS, order=order, dead=dead)
        assert same(found, planned.expected), order


@pytest.mark.parametrize("dead", [False, True], ids=["", "poison when dead"])
@pytest.mark.parametrize("counts", Counts)
def test_kernels_that_run_again_equal_the_plain_step_over_many_orders(
    planned: Planned, counts: Counts, dead: bool
) -> None:
    plan, program, _ = rival(planned, "recompute", counts=counts)
    assert repeats(plan.calls)
    assert program.fast_bytes <= counting(planned.graph, counts).peak_live_bytes
    for order in (*map(Delays, range(3)), *map(Interleaving, range(3))):
        found = run_steps(planned.graph, planned.library, program, steps=STEPS, counts=counts, order=order, dead=dead)
        assert same(found, planned.expected), order


def scheduled(planned: Planned, program: Program) -> Schedule:
    graph = planned.graph.computed_by(program.implementations)
    with ThreadDevice(device_bytes(graph, graph, program), program.slow_bytes) as device:
        arguments = DeviceArguments.of(graph, graph, program, device)
        return schedule(operations(graph, program, arguments))


def test_the_kernel_after_a_swap_waits_for_it_whatever_bytes_it_touches(planned: Planned) -> None:
    plan, program, _ = rival(planned, "swap-all")
    order = scheduled(planned, program)
    known: dict[Lane, int] = dict.fromkeys(Lane, -1)
    copies = [index for index, one in enumerate(order.operations) if one.lane is not Lane.COMPUTE]
    kernels = {one.kernel: index for index, one in enumerate(order.operations) if one.kernel is not None}
    due = {move.before: [] for move in plan.moves}
    for move in plan.moves:
        due[move.before].append(move)
    assert copies
    for kernel, index in kernels.items():
        for other in order.waits[index]:
            known[order.operations[other].lane] = max(known[order.operations[other].lane], other)
        for move in due.get(kernel, []):
            lane = Lane.INWARD if move.destination == "dram" else Lane.OUTWARD
            own = [
                at for at in copies if order.operations[at].name == move.tensor and order.operations[at].lane is lane
            ]
            assert known[lane] >= own[0], (kernel, move)
    bytes_only = schedule([replace(one, after=()) for one in order.operations[1:-1]])
    assert sum(map(len, order.waits)) > sum(map(len, bytes_only.waits)), "bytes alone ask for fewer waits"


@pytest.fixture
def played(planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PlayedRuntime, FatbinLibrary]:
    """A played H100 of 32 MiB with the network's kernels."""
    runtime = PlayedRuntime(device_bytes=32 * MIB, order=Delays(2, 1e-5))
    plug_in(monkeypatch, runtime, functions_of(planned, runtime))
    return runtime, FatbinLibrary.save(tmp_path / "kernels.zip", b"fatbin", ("sm_90",), launches_of(planned))


@pytest.mark.parametrize("optimizer", sorted(FITTING))
def test_a_rival_is_verified_and_timed_on_a_gpu(
    planned: Planned, played: tuple[PlayedRuntime, FatbinLibrary], optimizer: str
) -> None:
    plan, program, case = rival(planned, optimizer)
    record, timeline = run_on_gpu(planned.graph, played[1], program, plan, MACHINE, case.links, case.profile, QUICK)
    assert (record.verified_steps, record.fits, record.tier_reality) == (2, True, "real")
    assert record.dram_alloc_size <= record.dram_limit_bytes or optimizer == "swap-all"
    step = program.step_of(planned.graph)
    assert [one.name for one in timeline.of(Lane.COMPUTE)] == [kernel.name for kernel in step.kernels]
    is_managed, runs_again = optimizer == "managed-memory", optimizer == "recompute"
    assert (len(step.kernels) > len(planned.graph.kernels)) == runs_again
    assert (0 < record.repeated_share < 1) == runs_again
    assert record.gpu_managed_runtime_s == (record.actual_runtime_median_s if is_managed else None)
    moves = not is_managed and not runs_again
    assert bool(timeline.of(Lane.INWARD)) == moves, "what faults move is not seen"


def test_managed_memory_has_the_limit_beside_the_arguments(
    planned: Planned, played: tuple[PlayedRuntime, FatbinLibrary], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, library = played
    plan, program, case = rival(planned, "managed-memory")
    pools, free = [], []
    given, launched = runtime.cudaMallocManaged, runtime._queued
    monkeypatch.setattr(runtime, "cudaMallocManaged", lambda *asked: (pools.append(asked[0]), given(*asked))[1])

    def queued(*work: object) -> object:
        free.append(runtime.free["device"])
        return launched(*work)

    monkeypatch.setattr(runtime, "_queued", queued)
    options = replace(QUICK, verify_steps=0)
    run_on_gpu(planned.graph, library, program, plan, MACHINE, case.links, case.profile, options)
    size_bytes = device_bytes(planned.graph, planned.graph, program)
    allowed_bytes = program.dram_limit_bytes + size_bytes - program.fast_bytes
    assert pools == [size_bytes]
    assert free
    assert all(allowed_bytes <= one < allowed_bytes + 2 * MIB for one in free), "before its first byte is written"
    assert not runtime.memory


def test_managed_memory_that_loses_bytes_is_found(
    planned: Planned, played: tuple[PlayedRuntime, FatbinLibrary], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, library = played
    plan, program, case = rival(planned, "managed-memory")
    copied = runtime.cudaMemcpyAsync

    def losing(to: int, *rest: object) -> object:
        pools = [(start, one.nbytes) for start, (kind, one) in runtime.memory.items() if kind == "managed"]
        lost = any(start <= to < start + size for start, size in pools)
        return (runtime.cudaError_t.cudaSuccess,) if lost else copied(to, *rest)

    monkeypatch.setattr(runtime, "cudaMemcpyAsync", losing)
    with pytest.raises(VerificationError):
        run_on_gpu(planned.graph, library, program, plan, MACHINE, case.links, case.profile, QUICK)


@pytest.mark.parametrize("optimizer", ["swap-all", "recompute"])
def test_a_program_beyond_its_limit_does_not_run_and_its_record_says_so(
    planned: Planned, played: tuple[PlayedRuntime, FatbinLibrary], optimizer: str
) -> None:
    plan, program, case = rival(planned, optimizer, "64B")
    with pytest.raises(
        BadInputError, match=rf"program of {optimizer}: it takes \d+ bytes of device memory, its limit is 64"
    ):
        run_on_gpu(planned.graph, played[1], program, plan, MACHINE, case.links, case.profile, QUICK)
    record = unfit_record(planned.graph, program, plan, MACHINE, case.links, case.profile, 7)
    assert (record.fits, record.samples_s, record.actual_runtime_median_s) == (False, (), None)
    assert record.dram_alloc_size > record.dram_limit_bytes
    assert record.oracle_time_us == pytest.approx(sum(map(case.profile.least_us, planned.graph.kernels)))
