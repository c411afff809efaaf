"""Kernels timed within the step: they sum up to it, and what remains is told; implementations, slow operands."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_step

from autotm.kernels.library import KernelLibrary
from autotm.memory.emulation import Emulation, load_device
from autotm.model.graph import DEFAULT_IMPLEMENTATION, Graph, Implementation, all_fast, configuration, slow_traffic
from autotm.model.limit import Counts, counting
from autotm.model.machine import EmulatedTier
from autotm.model.profile import Profile
from autotm.profile import step_profile
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.profiler import steps_by_implementation
from autotm.profile.step_profile import all_fast_timings, all_fast_us, profile_in_step, profile_step
from autotm.profile.store import KernelStore
from autotm.runtime.all_fast import AllFastRounds

QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=10, kernel_s=0.005, rotation_bytes=1_000_000)
GRAPH = small_step.graph()
MACHINE, LINKS = small_step.machine(), small_step.links()
DRAW = np.random.default_rng(0)


def profiled(
    library: KernelLibrary, tmp_path: Path, graph: Graph, kernels_ns: object, options: ProfileOptions
) -> Profile:
    timings = all_fast_timings(steps_by_implementation(graph), kernels_ns, disturbed=False)  # type: ignore[arg-type]
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        return profile_in_step(graph, library, MACHINE, LINKS, store, options, small_step.DEVICES, timings)


def test_kernels_sum_up_to_the_step(library: KernelLibrary, tmp_path: Path) -> None:
    """Also where one function is called twice and takes another time in each place."""
    kernels_ns = np.array([[1000 * (place + 1) for place in range(len(GRAPH.kernels))]] * 3)
    assert GRAPH.kernels[1].identity == GRAPH.kernels[2].identity
    measured = profiled(library, tmp_path, GRAPH, (kernels_ns,), QUICK)
    assert measured.base_us(GRAPH.kernels[1]) == 2.5
    assert all_fast_us(GRAPH, measured) == pytest.approx(kernels_ns[0].sum() / 1e3)


def test_implementations_are_paired_where_the_kernel_stands() -> None:
    """The machine's speed, which changes from round to round, is not in the difference."""
    other = replace(GRAPH.kernels[6], alternatives=(Implementation("other", "grad_v", "other code"),))
    graph = replace(GRAPH, kernels=(*GRAPH.kernels[:6], other, *GRAPH.kernels[7:]))
    kernels_ns = np.rint(100_000 * DRAW.uniform(0.5, 2.0, size=(30, 1)) * np.ones(len(graph.kernels))).astype(int)
    faster_ns = kernels_ns.copy()
    faster_ns[:, 6] -= 2000
    timings = all_fast_timings(steps_by_implementation(graph), (kernels_ns, faster_ns), disturbed=True)
    timing = timings["other code", "other"]
    assert (timing.beyond_ns, timing.beyond_error_ns, timing.default_identity) == (-2000, 0, other.identity)
    assert {key for key in timings if key[1] != DEFAULT_IMPLEMENTATION} == {("other code", "other")}
    assert all(timing.disturbed for timing in timings.values())


@pytest.mark.parametrize("are_timed", [False, True], ids=["known waits", "timed alone"])
def test_what_slow_operands_add(library: KernelLibrary, tmp_path: Path, are_timed: bool) -> None:
    """Added to the time within the step, whether it is known or measured beside kernels alone."""
    days_ns = 10**15  # No kernel alone takes a tenth of eleven days: this test would have ended long before.
    kernels_ns = np.full((3, len(GRAPH.kernels)), days_ns)
    measured = profiled(library, tmp_path, GRAPH, (kernels_ns,), replace(QUICK, times_known_waits=are_timed))
    for kernel in GRAPH.kernels:
        assert measured.base_us(kernel) == days_ns / 1e3
        for tensor in GRAPH.slots_of(kernel):
            timing = measured.timing(kernel, configuration(GRAPH, kernel, {tensor}))
            assert timing is not None
            assert (timing.repeats > 0) == are_timed
            assert timing.median_ns == pytest.approx(days_ns, rel=0.1)
            assert abs(measured.extra_us(GRAPH, kernel, tensor)) < days_ns / 1e4
        fast = measured.timing(kernel, all_fast(kernel))
        assert fast is not None
        assert fast.repeats == 3


def test_where_waits_do_not_add_up_each_configuration_has_its_own(library: KernelLibrary, tmp_path: Path) -> None:
    """On a link with a lane for each direction, reading and writing slow memory cost less than the sum of both."""
    machine = replace(MACHINE, slow_tier=EmulatedTier(kind="emulated", device="cxl-x8", share="whole"))
    timed = all_fast_timings(
        steps_by_implementation(GRAPH), (np.full((3, len(GRAPH.kernels)), 10**6),), disturbed=False
    )
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        measured = profile_in_step(GRAPH, library, machine, LINKS, store, QUICK, small_step.DEVICES, timed)
    assert measured.provenance["configurations"] == "full"
    emulation = Emulation(load_device(small_step.DEVICES, "cxl-x8"), LINKS.emulation_stretch)
    overlapping = 0
    for kernel in GRAPH.kernels:
        slow = frozenset(GRAPH.slots_of(kernel))
        config = configuration(GRAPH, kernel, slow)
        timing = measured.timing(kernel, config)
        assert timing is not None
        waited_ns = emulation.kernel_delay_ns(kernel.op_class, *slow_traffic(GRAPH, kernel, config))
        assert timing.median_ns == 10**6 + waited_ns
        overlapping += timing.median_ns / 1e3 < measured.additive_us(GRAPH, kernel, slow) - 1e-3
    assert overlapping > 0


QUICK_STEP = ProfileOptions(patience_s=0.05, min_repeats=5, max_repeats=20, step_s=0.5, rotation_bytes=1_000_000)


def profiled_step(
    library: KernelLibrary, tmp_path: Path, counts: Counts = Counts.INTERMEDIATES, tolerance: float = 0.03
) -> Profile:
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        return profile_step(GRAPH, counts, library, MACHINE, LINKS, store, QUICK_STEP, tolerance, small_step.DEVICES)


def made_up(monkeypatch: pytest.MonkeyPatch, step_us: float, *, disturbed: bool = False) -> None:
    """Replace the timing of all-fast steps: each kernel takes 100 us and the step `step_us`."""
    rounds = AllFastRounds(np.full(5, round(1e3 * step_us)), (np.full((5, len(GRAPH.kernels)), 100_000),), disturbed)
    monkeypatch.setattr(step_profile, "time_all_fast", lambda *_: rounds)


@pytest.mark.parametrize("counts", list(Counts))
def test_a_real_step_and_its_kernels(library: KernelLibrary, tmp_path: Path, counts: Counts) -> None:
    measured = profiled_step(library, tmp_path, counts, tolerance=100.0)
    graph, against = counting(GRAPH, counts), measured.provenance["held_against"]
    assert against["kernels_s"] == pytest.approx(all_fast_us(graph, measured) / 1e6)
    assert against["all_fast_step_s"] > 0
    assert QUICK_STEP.min_repeats <= against["rounds"] <= QUICK_STEP.max_repeats
    for kernel in graph.kernels:
        assert measured.base_us(kernel) > 0
        for tensor in graph.slots_of(kernel):
            assert measured.extra_us(graph, kernel, tensor) > 0, "the wait for this tensor"


@pytest.mark.parametrize(("step_us", "is_said"), [(1000.0, False), (1020.0, False), (800.0, True), (1200.0, True)])
def test_kernels_that_do_not_sum_up_to_the_step_are_said(
    library: KernelLibrary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step_us: float,
    is_said: bool,
) -> None:
    made_up(monkeypatch, step_us)
    with caplog.at_level(logging.WARNING):
        measured = profiled_step(library, tmp_path)
    assert measured.provenance["held_against"]["kernels_s"] == pytest.approx(0.001)
    assert measured.provenance["held_against"]["all_fast_step_s"] == pytest.approx(step_us / 1e6)
    assert ("predicted seconds will be off by as much" in caplog.text) == is_said
    assert not measured.is_disturbed


def test_a_step_that_the_store_has_is_not_timed_again(
    library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = profiled_step(library, tmp_path, tolerance=100.0)
    made_up(monkeypatch, 1000.0)
    again = profiled_step(library, tmp_path)
    assert again.timings == first.timings
    assert again.provenance["held_against"] == first.provenance["held_against"]


def test_what_others_disturbed_to_the_end_is_marked_and_timed_again(
    library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made_up(monkeypatch, 1000.0, disturbed=True)
    with caplog.at_level(logging.WARNING):
        measured = profiled_step(library, tmp_path)
    assert measured.is_disturbed
    assert measured.provenance["held_against"]["disturbed"]
    assert "others held the cores" in caplog.text
    made_up(monkeypatch, 1000.0)
    assert not profiled_step(library, tmp_path).is_disturbed
