"""Runs on threads and on a played GPU: profiled, planned, compared with the plain step there, timed, recorded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import random_graphs
import small_step
from planned_streams import ONLY_FAST, STEPS, Planned, functions_of, launches_of
from played_cudart import PlayedRuntime
from played_gpu import plug_in
from thread_device import Delays, ThreadDevice

from autotm.kernels.library import FatbinLibrary, KernelLibrary
from autotm.layout.compile import compile_program
from autotm.memory.gpu.cuda_memory import DeviceMemoryError
from autotm.memory.gpu.opening import GpuRefusedError
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import Graph
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.machine import CudaTier
from autotm.model.plan import Plan
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.record import KERNEL_BY_KERNEL, PLAIN_STEP
from autotm.model.timeline import Lane
from autotm.runtime.step_times import RunOptions
from autotm.runtime.streams.executor import OpenDevice, largest_kernel, plain_on_device
from autotm.runtime.streams.run import operand_bytes, profile_on, profile_on_gpu, run_on_device, run_on_gpu
from autotm.runtime.streams.schedule import device_bytes
from autotm.runtime.verify import Digests, VerificationError, digested, plain_program, reference
from autotm.solve.placing import solve_and_pack

MACHINE = small_step.machine()
GPU = replace(MACHINE, name="gpu", slow_tier=CudaTier(kind="cuda"))
QUICK = RunOptions(min_seconds=0.01, patience_s=0.05, verify_steps=2, instrumented_steps=3)
LINKS = random_graphs.make_links(5.0, 5.0, tiny=True)


def on_threads(planned: Planned) -> OpenDevice:
    @contextmanager
    def opened(device_bytes: int, host_bytes: int, **_: object) -> Iterator[tuple[ThreadDevice, KernelLibrary]]:
        order = Delays(5, 1e-5)
        with ThreadDevice(device_bytes, host_bytes, order=order, poison=True, races=True, machine=MACHINE) as device:
            yield device, planned.library

    return opened


def profiled(planned: Planned) -> Profile:
    with on_threads(planned)(operand_bytes(planned.graph), 64) as (device, kernels):
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
    opened = on_threads(planned)
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
        run_on_device(planned.graph, wrong, plan, MACHINE, LINKS, profile, QUICK, on_threads(planned))

    with pytest.raises(VerificationError, match="differs from the plain step"):
        run(shorter)
    with pytest.raises(BadInputError, match="program's plan has hash"):
        run(replace(program, plan_hash="another"))


@pytest.fixture
def library(planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FatbinLibrary:
    """The network's kernels as a fatbin for sm_90, on a computer with a played H100."""
    played = PlayedRuntime(order=Delays(2, 1e-5))
    plug_in(monkeypatch, played, functions_of(planned, played))
    return FatbinLibrary.save(tmp_path / "kernels.zip", b"fatbin", ("sm_90",), launches_of(planned))


def test_a_run_on_a_gpu(planned: Planned, library: FatbinLibrary) -> None:
    profile = profile_on_gpu(planned.graph, library, GPU, 2, {})
    plan, program = solved(planned, profile)
    record, timeline = run_on_gpu(planned.graph, library, program, plan, GPU, LINKS, profile, QUICK)
    assert record.verified_steps == 2
    assert record.num_move_nodes > 0
    assert timeline.device == "a played GPU"


def test_kernels_for_another_gpu_are_refused_before_anything_is_taken(planned: Planned, library: FatbinLibrary) -> None:
    with pytest.raises(GpuRefusedError, match="is sm_90, the kernels are built for sm_80"):
        profile_on_gpu(planned.graph, replace(library, architectures=("sm_80",)), GPU, 2, {})


def reference_within(
    graph: Graph, library: KernelLibrary, most_bytes: int, asked: list[int] | None = None
) -> tuple[str, Digests]:
    """How it was computed on a device of threads with so much memory, and the digests."""

    @contextmanager
    def opened(device_bytes: int, host_bytes: int, **_: object) -> Iterator[tuple[ThreadDevice, KernelLibrary]]:
        if device_bytes > most_bytes:
            raise DeviceMemoryError(f"{most_bytes} bytes are free")
        if asked is not None:
            asked.append(device_bytes)
        order = Delays(3, 1e-5)
        with ThreadDevice(device_bytes, host_bytes, order=order, poison=True, races=True, machine=MACHINE) as device:
            yield device, library

    with plain_on_device(graph, opened) as (how, executor):
        return how, digested(graph, executor, 1, STEPS, MACHINE.cpus)


def plain_bytes(graph: Graph) -> int:
    return device_bytes(graph, graph, plain_program(graph))


def test_both_references_are_the_same_on_a_device_and_on_the_host(planned: Planned) -> None:
    graph, library = planned.graph, planned.library
    asked: list[int] = []
    whole = reference_within(graph, library, plain_bytes(graph), asked)
    single = reference_within(graph, library, plain_bytes(graph) - 1, asked)
    assert asked == [plain_bytes(graph), largest_kernel(graph)[1]]
    assert asked[1] <= operand_bytes(graph) < asked[0]
    host = reference(graph, library, MACHINE, 1, STEPS, small_step.DEVICES)
    assert (whole, single) == ((PLAIN_STEP, host), (KERNEL_BY_KERNEL, host))
    assert len({tuple(each.items()) for each in host}) == STEPS, "each step differs from the one before"


def test_a_kernel_that_does_not_fit_alone_is_named(planned: Planned) -> None:
    largest, size_bytes = largest_kernel(planned.graph)
    said = rf"kernel '{largest.name}' alone take {size_bytes} bytes .* bytes are free; .*verify_steps: 0"
    with pytest.raises(AutotmError, match=said):
        reference_within(planned.graph, planned.library, size_bytes - 1)


def test_a_kernel_finds_nothing_but_its_operands(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not copied in is poison: the loss of a step whose inputs are not is no number."""
    written = ThreadDevice.write
    lost = next(tensor for tensor in planned.graph.tensors if tensor.role == "input")

    def losing(device: ThreadDevice, span: object, array: np.ndarray) -> None:
        if array.nbytes != lost.size_bytes:
            written(device, span, array)

    monkeypatch.setattr(ThreadDevice, "write", losing)
    with pytest.raises(VerificationError, match="not finite"):
        reference_within(planned.graph, planned.library, largest_kernel(planned.graph)[1])


@pytest.mark.parametrize("is_large", [True, False])
def test_a_run_on_a_gpu_says_what_it_was_compared_with(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_large: bool
) -> None:
    graph = planned.graph
    case = random_graphs.Case(
        graph, random_graphs.roofline_profile(graph, 0), random_graphs.make_links(29.0, 12.0, tiny=True)
    )
    plan, program = solved(planned, case.profile, case.links)
    enough = plain_bytes(graph)
    assert device_bytes(graph, graph, program) < enough
    runtime = PlayedRuntime(device_bytes=enough if is_large else enough - 64, order=Delays(2, 1e-5))
    plug_in(monkeypatch, runtime, functions_of(planned, runtime))
    library = FatbinLibrary.save(tmp_path / "kernels.zip", b"fatbin", ("sm_90",), launches_of(planned))
    with caplog.at_level(logging.INFO, "autotm.runtime.streams.executor"):
        record, _ = run_on_gpu(graph, library, program, plan, GPU, case.links, case.profile, QUICK)
    assert (record.verified_steps, record.verified_against) == (2, PLAIN_STEP if is_large else KERNEL_BY_KERNEL)
    assert ("are not to be had" in caplog.text) != is_large
    assert not runtime.memory
