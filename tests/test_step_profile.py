"""Profiles are held against the step: what was timed in bad minutes is timed again, and what remains is said."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest

import small_step
from autotm import step_profile
from autotm.kernels.library import KernelLibrary
from autotm.model.profile import Profile, Timing
from autotm.profile import KernelStore, ProfileOptions, profile_kernels
from autotm.runtime.all_fast import AllFastStep, time_all_fast
from autotm.runtime.options import RunOptions
from autotm.step_profile import profile_step

QUICK = ProfileOptions(patience_s=1.0, min_repeats=3, max_repeats=10, kernel_s=0.005, rotation_bytes=1_000_000)
MACHINE, LINKS = small_step.machine(), small_step.links()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> KernelLibrary:
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    small_step.build_library(path)
    return KernelLibrary.load(path)


class BadMinutes:
    """A machine on which some kernels take several times as long until they are timed again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, last: bool) -> None:
        self.graph = small_step.graph()
        self.again: list[frozenset[str]] = []
        self._times = {kernel.identity: 100.0 + number for number, kernel in enumerate(self.graph.kernels)}
        self._slow = {kernel.identity: 3.0 for kernel in self.graph.kernels[:2]}
        self._last = last
        monkeypatch.setattr(step_profile, "profile_kernels", self.profile)
        monkeypatch.setattr(step_profile, "time_all_fast", self.step)

    def profile(self, *arguments: object) -> Profile:
        *_, again = arguments
        assert isinstance(again, frozenset)
        if again:
            self.again.append(again)
        for identity in again if not self._last else ():
            self._slow.pop(identity, None)
        timings = {
            (kernel.identity, "default", "D" * len(kernel.operands)): small_timing(
                self._times[kernel.identity] * self._slow.get(kernel.identity, 1.0)
            )
            for kernel in self.graph.kernels
        }
        return Profile("", timings, {"seed": 1})

    def step(self, *_: object) -> AllFastStep:
        inside = {kernel.name: self._times[kernel.identity] for kernel in self.graph.kernels}
        return AllFastStep(sum(inside.values()), inside, disturbed=False)


def small_timing(us: float) -> Timing:
    ns = round(1e3 * us)
    return Timing(ns, ns, ns, ns, 9)


def held(library: KernelLibrary, tmp_path: Path, tolerance: float = 0.03) -> Profile:
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        return profile_step(small_step.graph(), library, MACHINE, LINKS, store, QUICK, tolerance, small_step.DEVICES)


def test_kernels_timed_in_bad_minutes_are_timed_again(
    library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = BadMinutes(monkeypatch, last=False)
    found = held(library, tmp_path)
    kernels = machine.graph.kernels
    assert set().union(*machine.again) == {kernels[0].identity, kernels[1].identity}
    against = found.provenance["held_against"]
    assert against["kernels_s"] == pytest.approx(against["all_fast_step_s"])
    assert against["timed_again"] == 2
    assert found.provenance["seed"] == 1


def test_what_stays_as_it_is_ends_it_and_is_said(
    library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = BadMinutes(monkeypatch, last=True)
    with caplog.at_level(logging.WARNING):
        found = held(library, tmp_path)
    assert len(machine.again) == 1, "twice the same: it is the step's doing"
    assert found.provenance["held_against"]["kernels_s"] > 1.3 * found.provenance["held_against"]["all_fast_step_s"]
    assert "predicted seconds will be off by as much" in caplog.text


def test_a_real_step_and_its_kernels(library: KernelLibrary, tmp_path: Path) -> None:
    graph = small_step.graph()
    found = time_all_fast(graph, library, MACHINE, RunOptions(3, 0.01, 0.1, patience_s=1.0), small_step.DEVICES)
    assert set(found.kernels_us) == {kernel.name for kernel in graph.kernels}
    assert all(us > 0 for us in found.kernels_us.values())
    assert math.isfinite(found.step_us)
    assert found.step_us > max(found.kernels_us.values()) / 2
    against = held(library, tmp_path, tolerance=100.0).provenance["held_against"]
    assert against["all_fast_step_s"] > 0
    assert against["timed_again"] == 0


def test_kernels_named_again_are_timed_again(library: KernelLibrary, tmp_path: Path) -> None:
    graph = small_step.graph()
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        arguments = (graph, library, MACHINE, LINKS, store, replace(QUICK, spread=0.0), small_step.DEVICES)
        first = profile_kernels(*arguments)
        again = profile_kernels(*arguments, frozenset({graph.kernels[0].identity}))
        changed = {key[0] for key, timing in again.timings.items() if timing != first.timings[key]}
        assert changed == {graph.kernels[0].identity}
        assert profile_kernels(*arguments).timings == again.timings
