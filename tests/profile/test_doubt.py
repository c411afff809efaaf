"""Kernels are in doubt in the order in which they explain what the sum is off by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotm.model.graph import Graph
from autotm.model.profile import Profile
from autotm.model.tier import all_fast
from autotm.profile.doubt import all_fast_us, in_doubt
from random_graphs import random_case

CASE = random_case(3, 6)


def profile_of(graph: Graph, times_us: list[float]) -> Profile:
    timings = {}
    for kernel, time_us in zip(graph.kernels, times_us, strict=True):
        key = (kernel.identity, kernel.implementation, all_fast(kernel))
        timings[key] = replace(CASE.profile.timings[key], median_ns=round(1e3 * time_us))
    return Profile("", timings, {})


INSIDE_US = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
NAMES = {kernel.name: us for kernel, us in zip(CASE.graph.kernels, INSIDE_US, strict=True)}


@pytest.mark.parametrize(
    ("alone_us", "settled", "expected"),
    [
        ([10, 20, 30, 40, 50, 60, 70], (), set()),
        ([10, 45, 30, 40, 53, 60, 70], (), {"id1", "id4"}),
        ([10, 45, 30, 40, 53, 60, 70], ("id1",), {"id4"}),
        ([10, 45, 30, 40, 45, 60, 70], (), {"id1"}),
        ([10, 12, 30, 40, 50, 41, 70], (), {"id1", "id5"}),
    ],
    ids=["none", "too long", "beyond doubt", "those the other way stay", "too short"],
)
def test_the_fewest_that_explain_the_difference(
    alone_us: list[float], settled: tuple[str, ...], expected: set[str]
) -> None:
    profile = profile_of(CASE.graph, alone_us)
    assert all_fast_us(CASE.graph, profile) == sum(alone_us)
    assert in_doubt(CASE.graph, profile, sum(INSIDE_US), NAMES, settled) == expected
