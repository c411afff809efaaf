"""Work spread over threads keeps its order, its cores and its errors."""

from __future__ import annotations

import os
import threading

import pytest

from autotm.runtime.arguments import spread


def test_results_keep_the_order_of_items() -> None:
    assert spread(lambda item: item * item, range(50), sorted(os.sched_getaffinity(0))) == [n * n for n in range(50)]


def test_threads_use_the_cores_they_are_given_though_their_maker_is_held_on_one() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    try:
        found = spread(lambda _: os.sched_getaffinity(0), range(8), cpus)
        assert os.sched_getaffinity(0) == {cpus[0]}
    finally:
        os.sched_setaffinity(0, set(cpus))
    assert all(allowed == set(cpus) for allowed in found)


def test_without_cores_it_works_here() -> None:
    assert set(spread(lambda _: threading.get_ident(), range(3), ())) == {threading.get_ident()}


def test_what_fails_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        spread(lambda item: 1 // item, [1, 0, 2], [0] if 0 in os.sched_getaffinity(0) else [])
