"""Kernels that others disturb are timed again, after the others; what cannot be helped is marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from autotm.model.cores import Round, Watch
from autotm.profile.profiler import undisturbed

SECOND = 10**9


def sat(is_disturbed: Callable[[int], bool], jobs: int, patience_s: float, seconds: float = 1.0):
    """Who was given when (and whether disturbed), by a machine that is disturbed in some sittings; and the watch."""
    watch, counted = Watch((0,), patience_s), Counter[int]()

    def run(job: int) -> Round[int]:
        counted["all"] += 1
        wall_ns = round(seconds * SECOND)
        return Round(job, wall_ns if is_disturbed(counted["all"]) else 0, wall_ns)

    return list(undisturbed(range(jobs), run, watch)), watch


def test_a_quiet_machine_gives_each_once_in_order() -> None:
    found, watch = sat(lambda _: False, 5, 30.0)
    assert found == [(job, False) for job in range(5)]
    assert not watch.disturbed


def test_what_is_disturbed_comes_again_after_the_others() -> None:
    found, watch = sat(lambda number: number in {2, 3}, 5, 30.0)
    assert found == [(0, False), (3, False), (4, False), (1, False), (2, False)]
    assert not watch.disturbed


def test_a_neighbour_who_works_half_of_the_time_leaves_nothing_disturbed() -> None:
    found, watch = sat(lambda number: number % 20 < 10, 200, 30.0)
    assert sorted(found) == [(job, False) for job in range(200)]
    assert not watch.disturbed


def test_where_others_never_leave_each_is_given_as_it_is() -> None:
    found, watch = sat(lambda _: True, 40, 10.0)
    assert sorted(found) == [(job, True) for job in range(40)]
    assert len(watch.disturbed) == 40


def test_those_given_up_are_timed_again_once_patience_lasts_for_more() -> None:
    """The good rounds after a long disturbance buy as much patience as they are long."""
    found, watch = sat(lambda number: number <= 20, 40, 10.0)
    assert {job for job, disturbed in found if disturbed}
    assert dict(found) == dict.fromkeys(range(40), False), "the last word on each"
    assert not watch.disturbed


def test_short_sittings_are_judged_together() -> None:
    """A tick that the hypervisor took belongs to one of them; nobody knows to which."""
    found, _ = sat(lambda number: number == 2, 8, 30.0, seconds=0.005)
    assert found == [(job, False) for job in (4, 5, 6, 7, 0, 1, 2, 3)]
