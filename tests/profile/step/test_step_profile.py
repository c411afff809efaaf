"""Profiles are of kernels within the step: they sum up to it, and what remains is said."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import small_step

from autotm.kernels.library import KernelLibrary
from autotm.model.limit import Counts, counting
from autotm.model.profile import Profile
from autotm.profile import step_profile
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.step_profile import all_fast_us, profile_step
from autotm.profile.store import KernelStore
from autotm.runtime.all_fast import AllFastRounds

QUICK = ProfileOptions(patience_s=0.05, min_repeats=5, max_repeats=20, step_s=0.5, rotation_bytes=1_000_000)
MACHINE, LINKS = small_step.machine(), small_step.links()
GRAPH = small_step.graph()


def profiled(
    library: KernelLibrary, tmp_path: Path, counts: Counts = Counts.INTERMEDIATES, tolerance: float = 0.03
) -> Profile:
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        return profile_step(GRAPH, counts, library, MACHINE, LINKS, store, QUICK, tolerance, small_step.DEVICES)


def made_up(monkeypatch: pytest.MonkeyPatch, step_us: float, *, disturbed: bool = False) -> None:
    """Let each kernel take 100 us, and the step what it says."""
    kernels_ns = np.full((5, len(GRAPH.kernels)), 100_000)
    found = AllFastRounds(np.full(5, round(1e3 * step_us)), (kernels_ns,), disturbed)
    monkeypatch.setattr(step_profile, "time_all_fast", lambda *_: found)


@pytest.mark.parametrize("counts", list(Counts))
def test_a_real_step_and_its_kernels(library: KernelLibrary, tmp_path: Path, counts: Counts) -> None:
    found = profiled(library, tmp_path, counts, tolerance=100.0)
    graph, against = counting(GRAPH, counts), found.provenance["held_against"]
    assert against["kernels_s"] == pytest.approx(all_fast_us(graph, found) / 1e6)
    assert against["all_fast_step_s"] > 0
    assert QUICK.min_repeats <= against["rounds"] <= QUICK.max_repeats
    for kernel in graph.kernels:
        assert found.base_us(kernel) > 0
        for tensor in graph.slots_of(kernel):
            assert found.extra_us(graph, kernel, tensor) > 0, "the wait for this tensor"


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
        found = profiled(library, tmp_path)
    assert found.provenance["held_against"]["kernels_s"] == pytest.approx(0.001)
    assert found.provenance["held_against"]["all_fast_step_s"] == pytest.approx(step_us / 1e6)
    assert ("predicted seconds will be off by as much" in caplog.text) == is_said
    assert not found.is_disturbed


def test_a_step_that_the_store_has_is_not_timed_again(
    library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = profiled(library, tmp_path, tolerance=100.0)
    made_up(monkeypatch, 1000.0)
    again = profiled(library, tmp_path)
    assert again.timings == first.timings
    assert again.provenance["held_against"] == first.provenance["held_against"]


def test_what_others_disturbed_to_the_end_is_marked_and_timed_again(
    library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made_up(monkeypatch, 1000.0, disturbed=True)
    with caplog.at_level(logging.WARNING):
        found = profiled(library, tmp_path)
    assert found.is_disturbed
    assert found.provenance["held_against"]["disturbed"]
    assert "others held the cores" in caplog.text
    made_up(monkeypatch, 1000.0)
    assert not profiled(library, tmp_path).is_disturbed
