"""A run on a device: profiled, planned from that, verified against the plain step there, timed, recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import pytest
import random_graphs
import small_step
from planned_streams import ONLY_FAST, Planned
from thread_device import Delays, ThreadDevice

from autotm.kernels.library import KernelLibrary
from autotm.layout.compile import compile_program
from autotm.model.errors import BadInputError
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.timeline import Lane
from autotm.runtime.step_times import RunOptions
from autotm.runtime.streams.executor import OpenDevice
from autotm.runtime.streams.run import operand_bytes, profile_on, run_on_device
from autotm.runtime.verify import VerificationError
from autotm.solve.placing import solve_and_pack

MACHINE = small_step.machine()
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


def solved(planned: Planned, profile: Profile) -> tuple[Plan, Program]:
    limit = Limit.parse(f"{planned.programs['synchronous'].fast_bytes}B")
    plan, layout = solve_and_pack(planned.graph, profile, LINKS, "synchronous", limit, ONLY_FAST)
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
    assert timeline.busy_ns(Lane.COMPUTE) <= timeline.step_ns
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
