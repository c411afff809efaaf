"""A profile has what plans may ask of it, and times nothing twice; kernels that others disturb are timed again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import small_step
from stand_in_clock import StandInClock

from autotm.kernels.library import KernelLibrary
from autotm.memory.opening import open_tiers
from autotm.model.cores import Round, Watch
from autotm.model.graph import DEFAULT_IMPLEMENTATION, Implementation, all_fast, configuration, slow_traffic
from autotm.model.machine import Machine
from autotm.model.profile import Profile
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.profiler import cases, profile_kernels, undisturbed
from autotm.profile.store import KernelStore


def test_each_kernel_has_the_configurations_that_any_of_its_calls_needs() -> None:
    graph = small_step.graph()
    additive, full = (
        {case.kernel.function: case.configurations for case in cases(graph, mode)} for mode in ("additive", "full")
    )
    by_identity = {case.kernel.identity: case.configurations for case in cases(graph, "additive")}
    assert set(by_identity) == {kernel.identity for kernel in graph.kernels}
    assert by_identity["relu:32x64"] == ("DD", "PD", "DP")
    assert additive["grad_act"] == ("DDDDD", "PDDDD", "DDPDD", "DDDPD", "DDDDP")
    assert additive["sgd_v"] == ("DDD", "DPD")
    assert len(full["grad_act"]) == len(set(full["grad_act"])) == 2**4
    assert {config[1] for config in full["grad_act"]} == {"D"}, "a parameter never moves"


SECOND = 10**9


def timed(is_disturbed: Callable[[int], bool], jobs: int, patience_s: float, seconds: float = 1.0):
    """The jobs in the order in which their times came, each with whether it was disturbed; and the watch."""
    watch, counted = Watch((0,), patience_s), Counter[int]()

    def run(job: int) -> Round[int]:
        counted["all"] += 1
        wall_ns = round(seconds * SECOND)
        return Round(job, wall_ns if is_disturbed(counted["all"]) else 0, wall_ns)

    return list(undisturbed(range(jobs), run, watch)), watch


@pytest.mark.parametrize(
    ("is_disturbed", "order"), [(lambda _: False, [0, 1, 2, 3, 4]), (lambda number: number in {2, 3}, [0, 3, 4, 1, 2])]
)
def test_what_is_disturbed_comes_again_after_the_others(is_disturbed: Callable[[int], bool], order: list[int]) -> None:
    timings, watch = timed(is_disturbed, 5, 30.0)
    assert timings == [(job, False) for job in order]
    assert not watch.disturbed


def test_a_neighbour_who_works_half_of_the_time_leaves_nothing_disturbed() -> None:
    timings, watch = timed(lambda number: number % 20 < 10, 200, 30.0)
    assert sorted(timings) == [(job, False) for job in range(200)]
    assert not watch.disturbed


def test_where_others_never_leave_each_is_given_as_it_is() -> None:
    timings, watch = timed(lambda _: True, 40, 10.0)
    assert sorted(timings) == [(job, True) for job in range(40)]
    assert len(watch.disturbed) == 40


def test_those_given_up_are_timed_again_once_patience_lasts_for_more() -> None:
    """The good rounds after a long disturbance buy as much patience as they are long."""
    timings, watch = timed(lambda number: number <= 20, 40, 10.0)
    assert {job for job, disturbed in timings if disturbed}
    assert dict(timings) == dict.fromkeys(range(40), False), "the last word on each"
    assert not watch.disturbed


def test_short_jobs_are_judged_together() -> None:
    """A tick that the hypervisor took belongs to one of them; nobody knows to which."""
    timings, _ = timed(lambda number: number == 2, 8, 30.0, seconds=0.005)
    assert timings == [(job, False) for job in (4, 5, 6, 7, 0, 1, 2, 3)]


QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=10, kernel_s=0.005, rotation_bytes=1_000_000)
HELPERS = Path(__file__).parents[1] / "helpers"


def profile(
    library: KernelLibrary, path: Path, machine: Machine | None = None, options: ProfileOptions = QUICK
) -> Profile:
    with KernelStore(path) as store:
        return profile_kernels(
            small_step.graph(),
            library,
            machine or small_step.machine(),
            small_step.links(),
            store,
            options,
            small_step.DEVICES,
        )


def count(path: Path) -> int:
    with KernelStore(path) as store:
        return int(store.connection.execute("SELECT COUNT(*) FROM timings").fetchone()[0])


def test_the_profile_has_what_plans_may_ask_of_it_and_times_nothing_twice(
    library: KernelLibrary, tmp_path: Path
) -> None:
    graph, path = small_step.graph(), tmp_path / "kernels.sqlite"
    measured = profile(library, path)
    for kernel in graph.kernels:
        assert measured.base_us(kernel) > 0
        for tensor in graph.slots_of(kernel):
            assert measured.timing(kernel, configuration(graph, kernel, {tensor})) is not None
    assert profile(library, path).timings == measured.timings
    first = count(path)
    profile(library, path, replace(small_step.machine(), target="llvm -mcpu=other"))
    assert count(path) == 2 * first > 0, "another machine is timed for itself"


def test_the_emulated_wait_is_part_of_the_time(
    library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StandInClock(tick_ns=10).put_into(monkeypatch, "profile.kernel_timing", "memory.emulation")
    slow_device = replace(small_step.links(), emulation_stretch=1000.0)
    graph = small_step.graph()
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        measured = profile_kernels(graph, library, small_step.machine(), slow_device, store, QUICK, small_step.DEVICES)
    relu = graph.kernels[1]
    assert measured.extra_us(graph, relu, "act") > 1000, "8 KiB written at 0.1 ns/B or more, 1000 times as slow"
    assert 0 < measured.base_us(relu) < 1, "kernels take no time by this clock"


def test_more_configurations_extend_the_store(library: KernelLibrary, tmp_path: Path) -> None:
    path = tmp_path / "kernels.sqlite"
    timed = replace(QUICK, times_known_waits=True)
    additive = profile(library, path, options=timed)
    full = profile(library, path, options=replace(timed, configurations="full"))
    assert set(additive.timings) < set(full.timings)
    assert count(path) == len(full.timings)
    for (_, _, config), timing in additive.timings.items():
        assert timing.repeats >= QUICK.min_repeats, "slow operands take turns with fast ones"
        assert (timing.beyond_ns is None) == ("P" not in config)


def test_what_slow_operands_add_is_the_known_wait(library: KernelLibrary, tmp_path: Path) -> None:
    """The added time is exact, whatever noise the all-fast time has; only the all-fast time is measured."""
    graph, machine = small_step.graph(), small_step.machine()
    measured = profile(library, tmp_path / "kernels.sqlite", options=replace(QUICK, configurations="full"))
    with open_tiers(machine, small_step.links(), 64, 64, small_step.DEVICES) as tiers:
        for kernel in graph.kernels:
            slots = graph.slots_of(kernel)
            for slow in (frozenset(slots), *(frozenset({name}) for name in slots)):
                config = configuration(graph, kernel, slow)
                wait_ns = tiers.kernel_delay_ns(kernel.op_class, *slow_traffic(graph, kernel, config))
                added_us = measured.time_us(graph, kernel, slow) - measured.base_us(kernel)
                assert added_us == pytest.approx(wait_ns / 1e3, abs=1e-6)
    assert count(tmp_path / "kernels.sqlite") == len({kernel.identity for kernel in graph.kernels})
    assert {timing.repeats > 0 for (_, _, config), timing in measured.timings.items() if "P" in config} == {False}


def test_implementations_of_a_kernel_take_turns(library: KernelLibrary, tmp_path: Path) -> None:
    graph = small_step.graph()
    first = replace(graph.kernels[6], alternatives=(Implementation("other", "grad_v", "other code"),))
    graph = replace(graph, kernels=(*graph.kernels[:6], first, *graph.kernels[7:]))
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        arguments = (library, small_step.machine(), small_step.links(), store, QUICK, small_step.DEVICES)
        measured = profile_kernels(graph, *arguments)
        timing = measured.timing(first.computed_by("other"), all_fast(first))
        assert timing is not None
        assert timing.default_identity == first.identity
        assert timing.beyond_ns is not None
        assert timing.repeats == measured.timings[first.identity, DEFAULT_IMPLEMENTATION, all_fast(first)].repeats
        assert profile_kernels(graph, *arguments).timings == measured.timings


CHILD = """
    import sys
    sys.modules["torch"] = None  # TVM imports it where it is installed, which takes seconds
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    import small_step
    from autotm.kernels.library import KernelLibrary
    from autotm.model import cores
    from autotm.profile.kernel_timing import ProfileOptions
    from autotm.profile.profiler import profile_kernels
    from autotm.profile.store import KernelStore
    cores.lost_ns = lambda _: 0  # As in conftest.py: a neighbour's work would have kernels timed again.
    options = ProfileOptions(min_repeats=3, max_repeats=10**9, kernel_s=0.5, spread=0.0, rotation_bytes=1_000_000,
                             patience_s=0.05)
    with KernelStore(Path({store!r})) as store:
        profile_kernels(small_step.graph(), KernelLibrary.load(Path({library!r})), small_step.machine(),
                        small_step.links(), store, options, small_step.DEVICES)
"""


def test_a_killed_profile_goes_on_at_the_kernel_where_it_was(
    library_path: Path, library: KernelLibrary, tmp_path: Path
) -> None:
    path = tmp_path / "kernels.sqlite"
    code = textwrap.dedent(CHILD.format(tests=str(HELPERS), store=str(path), library=str(library_path)))
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for_rows(path, child)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    kept = rows(path)
    measured = profile(library, path)
    assert 0 < len(kept) < count(path), "the child was killed half-way"
    for (identity, config), median_ns in kept.items():
        assert measured.timings[identity, DEFAULT_IMPLEMENTATION, config].median_ns == median_ns
    assert profile(library, path).timings == measured.timings
    assert {all_fast(kernel) for kernel in small_step.graph().kernels} <= {key[2] for key in measured.timings}


def wait_for_rows(path: Path, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert child.poll() is None, "the child ended before it could be killed"
        if path.exists() and rows(path):
            return
        time.sleep(0.02)
    pytest.fail("the child stored nothing within a minute")


def rows(path: Path) -> dict[tuple[str, str], int]:
    connection = sqlite3.connect(path, timeout=10)
    try:
        selected = connection.execute("SELECT identity, configuration, median_ns FROM timings").fetchall()
    except sqlite3.OperationalError:
        return {}
    finally:
        connection.close()
    return {(identity, config): median_ns for identity, config, median_ns in selected}
