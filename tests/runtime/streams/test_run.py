"""Runs on threads and a played GPU, of plans and of what others do: compared with the plain step, timed, recorded."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import random_graphs
import small_step
from planned_streams import ONLY_FAST, STEPS, Planned, functions_of, launches_of, modelled, on_threads, run_steps, same
from played_cudart import PlayedRuntime, plug_in
from thread_device import Delays, Interleaving, ThreadDevice

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import FatbinLibrary
from autotm.layout.compile import compile_program
from autotm.memory.gpu.opening import GpuRefusedError
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import Graph
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import Links
from autotm.model.machine import CudaTier
from autotm.model.plan import Plan, repeats
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.record import KERNEL_BY_KERNEL, PLAIN_STEP, Record
from autotm.model.timeline import Lane, Timeline
from autotm.runtime.record import unfit_record
from autotm.runtime.step_times import RunOptions
from autotm.runtime.streams.executor import largest_kernel, open_machines_gpu, plain_on_device
from autotm.runtime.streams.run import operand_bytes, profile_on, profile_on_gpu, run_on_device
from autotm.runtime.streams.schedule import DeviceArguments, device_bytes, operations, schedule
from autotm.runtime.verify import Digests, VerificationError, digested, plain_program, reference
from autotm.solve.placing import solve_and_pack

MIB = 1 << 20
MACHINE = small_step.machine()
GPU = replace(MACHINE, name="gpu", slow_tier=CudaTier(kind="cuda", managed_oversubscription=True))
QUICK = RunOptions(min_seconds=0.01, patience_s=0.05, verify_steps=2, instrumented_steps=3)
LINKS = random_graphs.make_links(5.0, 5.0, tiny=True)


def profiled(planned: Planned) -> Profile:
    with on_threads(planned.library)(operand_bytes(planned.graph), 64) as (device, kernels):
        return profile_on(device, kernels, planned.graph, 3, {"made": "by a test"})


def solved(planned: Planned, profile: Profile, links: Links = LINKS) -> tuple[Plan, Program]:
    """At the least device memory that plans need."""
    limit = Limit.parse(f"{planned.programs['synchronous'].fast_bytes}B")
    plan, layout = solve_and_pack(planned.graph, profile, links, "synchronous", limit, ONLY_FAST)
    return plan, compile_program(planned.graph, plan, layout)


def test_profile_plan_run(planned: Planned) -> None:
    profile = profiled(planned)
    assert {identity for identity, _, _ in profile.timings} == {kernel.identity for kernel in planned.graph.kernels}
    assert all(timing.min_ns <= timing.median_ns and timing.repeats == 3 for timing in profile.timings.values())
    plan, program = solved(planned, profile)
    opened = on_threads(planned.library, 5)
    record, timeline = run_on_device(planned.graph, program, plan, MACHINE, LINKS, profile, QUICK, opened)
    assert record.verified_steps == 2
    assert record.dram_alloc_size == program.fast_bytes
    assert record.kernel_times_us.keys() == {kernel.name for kernel in planned.graph.kernels}
    assert record.move_actual_us > 0
    assert timeline.device == "threads"
    assert len(timeline.of(Lane.COMPUTE)) == len(planned.graph.kernels)
    assert sum(one.end_ns - one.start_ns for one in timeline.of(Lane.COMPUTE)) <= timeline.step_ns
    for copy, kernel in product([*timeline.of(Lane.INWARD), *timeline.of(Lane.OUTWARD)], timeline.of(Lane.COMPUTE)):
        assert copy.end_ns <= kernel.start_ns or kernel.end_ns <= copy.start_ns, "the step waits for its moves"


def test_a_wrong_program_is_refused(planned: Planned) -> None:
    profile = profiled(planned)
    plan, program = solved(planned, profile)
    shorter = replace(program, steps=tuple(step for step in program.steps if getattr(step, "tensor", None) is None))

    def run(wrong: Program) -> None:
        run_on_device(planned.graph, wrong, plan, MACHINE, LINKS, profile, QUICK, on_threads(planned.library))

    with pytest.raises(VerificationError, match="differs from the plain step"):
        run(shorter)
    with pytest.raises(BadInputError, match="program's plan has hash"):
        run(replace(program, plan_hash="another"))


Played = tuple[PlayedRuntime, FatbinLibrary]


@pytest.fixture
def played(planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """A played H100 of 32 MiB, and the network's kernels as a fatbin for it."""
    runtime = PlayedRuntime(device_bytes=32 * MIB, order=Delays(2, 1e-5))
    plug_in(monkeypatch, runtime, functions_of(planned, runtime))
    return runtime, FatbinLibrary.save(tmp_path / "kernels.zip", b"fatbin", ("sm_90",), launches_of(planned))


Solved = tuple[Plan, Program, random_graphs.Case]


def on_gpu(
    planned: Planned, of: Solved, library: FatbinLibrary, options: RunOptions = QUICK
) -> tuple[Record, Timeline]:
    plan, program, case = of
    opened = partial(open_machines_gpu, GPU, library)
    return run_on_device(planned.graph, program, plan, GPU, case.links, case.profile, options, opened)


def test_a_run_on_a_gpu(planned: Planned, played: Played) -> None:
    profile = profile_on_gpu(planned.graph, played[1], GPU, 2, {})
    case = random_graphs.Case(planned.graph, profile, LINKS)
    record, timeline = on_gpu(planned, (*solved(planned, profile), case), played[1])
    assert record.verified_steps == 2
    assert record.num_move_nodes > 0
    assert timeline.device == "a played GPU"


def test_kernels_for_another_gpu_are_refused_before_anything_is_taken(planned: Planned, played: Played) -> None:
    with pytest.raises(GpuRefusedError, match="is sm_90, the kernels are built for sm_80"):
        profile_on_gpu(planned.graph, replace(played[1], architectures=("sm_80",)), GPU, 2, {})


def reference_within(planned: Planned, most_bytes: int) -> tuple[str, Digests]:
    """How it was computed on a device of threads with so much memory, and the digests."""
    with plain_on_device(planned.graph, on_threads(planned.library, 3, most_bytes)) as (how, executor):
        return how, digested(planned.graph, executor, 1, STEPS, MACHINE.cpus)


def plain_bytes(graph: Graph) -> int:
    return device_bytes(graph, graph, plain_program(graph))


def test_both_references_are_the_same_on_a_device_and_on_the_host(planned: Planned) -> None:
    graph, (largest, size_bytes) = planned.graph, largest_kernel(planned.graph)
    host = reference(graph, planned.library, MACHINE, 1, STEPS, small_step.DEVICES)
    assert reference_within(planned, plain_bytes(graph)) == (PLAIN_STEP, host)
    for most_bytes in (plain_bytes(graph) - 1, size_bytes):
        assert reference_within(planned, most_bytes) == (KERNEL_BY_KERNEL, host)
    assert size_bytes <= operand_bytes(graph) < plain_bytes(graph)
    assert len({tuple(each.items()) for each in host}) == STEPS, "each step differs from the one before"
    too_large = rf"kernel '{largest.name}' alone take {size_bytes} bytes .* bytes are free; .*verify_steps: 0"
    with pytest.raises(AutotmError, match=too_large):
        reference_within(planned, size_bytes - 1)


def test_a_kernel_finds_nothing_but_its_operands(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not copied in is poison: the loss of a step whose inputs are not is no number."""
    written = ThreadDevice.write
    lost = next(tensor for tensor in planned.graph.tensors if tensor.role == "input")

    def losing(device: ThreadDevice, span: object, array: np.ndarray) -> None:
        if array.nbytes != lost.size_bytes:
            written(device, span, array)

    monkeypatch.setattr(ThreadDevice, "write", losing)
    with pytest.raises(VerificationError, match="not finite"):
        reference_within(planned, largest_kernel(planned.graph)[1])


@pytest.mark.parametrize("is_large", [True, False])
def test_a_run_on_a_gpu_says_what_it_was_compared_with(
    planned: Planned, played: Played, caplog: pytest.LogCaptureFixture, is_large: bool
) -> None:
    (runtime, library), graph, case = played, planned.graph, modelled(planned.graph)
    plan, program = solved(planned, case.profile, case.links)
    assert device_bytes(graph, graph, program) < plain_bytes(graph)
    runtime.device_bytes = runtime.free["device"] = plain_bytes(graph) - (0 if is_large else 64)
    with caplog.at_level(logging.INFO, "autotm.runtime.streams.executor"):
        record, _ = on_gpu(planned, (plan, program, case), library)
    assert (record.verified_steps, record.verified_against) == (2, PLAIN_STEP if is_large else KERNEL_BY_KERNEL)
    assert ("are not to be had" in caplog.text) != is_large
    assert not runtime.memory


FITTING = {"lru-paging": None, "swap-all": "0:1", "managed-memory": "4:1", "recompute": "0:1"}
"""Limits that leave each of them something to do, and room to do it; None: the least that plans need."""


def rival(planned: Planned, optimizer: str, limit: str = "", counts: Counts = Counts.INTERMEDIATES) -> Solved:
    graph = counting(planned.graph, counts)
    case = random_graphs.with_engines(modelled(graph))
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
        results = run_steps(planned.graph, planned.library, program, order=order, dead=dead)
        assert same(results, planned.expected), order


@pytest.mark.parametrize("dead", [False, True], ids=["", "poison when dead"])
@pytest.mark.parametrize("counts", Counts)
def test_kernels_that_run_again_equal_the_plain_step_over_many_orders(
    planned: Planned, counts: Counts, dead: bool
) -> None:
    plan, program, _ = rival(planned, "recompute", counts=counts)
    assert repeats(plan.calls)
    assert program.fast_bytes <= counting(planned.graph, counts).peak_live_bytes
    for order in (*map(Delays, range(3)), *map(Interleaving, range(3))):
        results = run_steps(planned.graph, planned.library, program, counts=counts, order=order, dead=dead)
        assert same(results, planned.expected), order


def test_the_kernel_after_a_swap_waits_for_it_whatever_bytes_it_touches(planned: Planned) -> None:
    plan, program, _ = rival(planned, "swap-all")
    graph = planned.graph.computed_by(program.implementations)
    with ThreadDevice(device_bytes(graph, graph, program), program.slow_bytes) as device:
        order = schedule(operations(graph, program, DeviceArguments.of(graph, graph, program, device)))
    known, first = dict.fromkeys(Lane, -1), {}
    for index, operation in enumerate(order.operations):
        first.setdefault((operation.lane, operation.name), index)
        if operation.kernel is None:
            continue
        for other in order.waits[index]:
            known[order.operations[other].lane] = max(known[order.operations[other].lane], other)
        for move in plan.moves:
            if move.before == operation.kernel:
                lane = Lane.INWARD if move.destination == "dram" else Lane.OUTWARD
                assert known[lane] >= first[lane, move.tensor], (operation, move)
    assert plan.moves
    bytes_only = schedule([replace(one, after=()) for one in order.operations[1:-1]])
    assert sum(map(len, order.waits)) > sum(map(len, bytes_only.waits)), "bytes alone ask for fewer waits"


@pytest.mark.parametrize("optimizer", sorted(FITTING))
def test_a_rival_is_verified_and_timed_on_a_gpu(planned: Planned, played: Played, optimizer: str) -> None:
    plan, program, case = rival(planned, optimizer)
    record, timeline = on_gpu(planned, (plan, program, case), played[1])
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
    planned: Planned, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, library = played
    plan, program, case = rival(planned, "managed-memory")
    pools, free = [], []
    allocate, launched = runtime.cudaMallocManaged, runtime._queued
    monkeypatch.setattr(runtime, "cudaMallocManaged", lambda *asked: (pools.append(asked[0]), allocate(*asked))[1])

    def queued(*work: object) -> object:
        free.append(runtime.free["device"])
        return launched(*work)

    monkeypatch.setattr(runtime, "_queued", queued)
    on_gpu(planned, (plan, program, case), library, replace(QUICK, verify_steps=0))
    size_bytes = device_bytes(planned.graph, planned.graph, program)
    allowed_bytes = program.dram_limit_bytes + size_bytes - program.fast_bytes
    assert pools == [size_bytes]
    assert free
    assert all(allowed_bytes <= one < allowed_bytes + 2 * MIB for one in free), "before its first byte is written"
    assert not runtime.memory


def test_managed_memory_that_loses_bytes_is_found(
    planned: Planned, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, library = played
    copied = runtime.cudaMemcpyAsync

    def losing(to: int, *rest: object) -> object:
        pools = [(start, one.nbytes) for start, (kind, one) in runtime.memory.items() if kind == "managed"]
        lost = any(start <= to < start + size for start, size in pools)
        return (runtime.cudaError_t.cudaSuccess,) if lost else copied(to, *rest)

    monkeypatch.setattr(runtime, "cudaMemcpyAsync", losing)
    with pytest.raises(VerificationError):
        on_gpu(planned, rival(planned, "managed-memory"), library)


@pytest.mark.parametrize("optimizer", ["swap-all", "recompute"])
def test_a_program_beyond_its_limit_does_not_run_and_its_record_says_so(
    planned: Planned, played: Played, optimizer: str
) -> None:
    plan, program, case = rival(planned, optimizer, "64B")
    refused = rf"program of {optimizer}: it takes \d+ bytes of device memory, its limit is 64"
    with pytest.raises(BadInputError, match=refused):
        on_gpu(planned, (plan, program, case), played[1])
    record = unfit_record(planned.graph, program, plan, GPU, case.links, case.profile, 7)
    assert (record.fits, record.samples_s, record.actual_runtime_median_s) == (False, (), None)
    assert record.dram_alloc_size > record.dram_limit_bytes
    assert record.oracle_time_us == pytest.approx(sum(map(case.profile.least_us, planned.graph.kernels)))
