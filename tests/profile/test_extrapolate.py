"""A modelled step has the bytes that the large one would have, and times on the line through the small ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from random_graphs import StepBuilder

from autotm.model.errors import BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Role, all_fast, configuration
from autotm.model.profile import Profile, Timing
from autotm.profile.extrapolate import Extrapolation, extrapolate

NS_PER_BYTE = 3


def step(batch: int, *, panel: int = 100) -> Graph:
    """Two kernels whose tensors grow with the batch, then an update that does not."""
    builder = StepBuilder()
    builder.argument("weight", 50)
    builder.argument("data", 10 * batch, Role.INPUT)
    builder.kernel(["data", "weight"], {"hidden": 40 * batch + 8}, {"padded": 12 * batch, "panel": panel})
    builder.kernel(["hidden"], {"gradient": 50})
    builder.kernel(["gradient", "weight"], {"new": 50}, role=Role.RESULT)
    return replace(builder.graph(), batch=batch)


def profile(graph: Graph, base_ns: list[float]) -> Profile:
    timings = {}
    for kernel, ns in zip(graph.kernels, base_ns, strict=True):
        timings[kernel.identity, "default", all_fast(kernel)] = timing(ns)
        for tensor in graph.slots_of(kernel):
            slow_ns = ns + NS_PER_BYTE * graph.by_name[tensor].size_bytes
            timings[kernel.identity, "default", configuration(graph, kernel, {tensor})] = timing(slow_ns)
    return Profile(hash_of(graph), timings, {"batch": graph.batch})


def timing(ns: float) -> Timing:
    return Timing(round(ns), round(ns), round(ns), round(ns), 9)


def lines(batch: int) -> list[float]:
    return [10_000.0 + 500 * batch, 2_000.0 + 100 * batch, 4_000.0]


def modelled(batch: int, times=lines, panels: tuple[int, ...] = (100, 100, 100)) -> Extrapolation:
    steps = [step(small, panel=panel) for small, panel in zip((2, 4, 8), panels, strict=True)]
    shuffled = random.Random(1).sample(steps, 3)
    return extrapolate([(graph, profile(graph, times(graph.batch))) for graph in shuffled], batch, "huge")


@pytest.mark.parametrize("batch", [8, 9, 4096])
def test_tensors_are_those_of_the_large_step(batch):
    found, wanted = modelled(batch).graph, step(batch)
    assert set(found.tensors) == set(wanted.tensors)
    assert found.live_bytes == wanted.live_bytes
    assert [kernel.operands for kernel in found.kernels] == [kernel.operands for kernel in wanted.kernels]
    assert (found.batch, found.scale) == (batch, "huge")


def test_times_follow_their_lines_and_slow_operands_their_bytes():
    found = modelled(1000)
    large = found.graph
    for kernel, ns in zip(large.kernels, lines(1000), strict=True):
        assert found.profile.base_us(kernel) == pytest.approx(ns / 1e3)
        for tensor in large.slots_of(kernel):
            extra_us = NS_PER_BYTE * large.by_name[tensor].size_bytes / 1e3
            assert found.profile.extra_us(large, kernel, tensor) == pytest.approx(extra_us, rel=1e-3)
    assert (found.step_error, found.kernel_error) == (pytest.approx(0), pytest.approx(0))


def test_the_error_is_that_of_predicting_the_largest_profiled_batch():
    def bent(batch: int) -> list[float]:
        return [1e6 * batch if batch < 8 else 1e7, 1.0, 1.0]

    found = modelled(1000, bent)
    assert found.step_error == pytest.approx(8e6 / 1e7 - 1, rel=1e-3)
    assert found.kernel_error == pytest.approx(0.2, rel=1e-3)


def test_noise_neither_shrinks_a_kernel_nor_makes_it_grow_faster_than_the_batch():
    shrinking = modelled(1000, lambda batch: [1e6 / batch, 1.0, 1.0])
    assert shrinking.profile.base_us(shrinking.graph.kernels[0]) == pytest.approx(1e3 / 8)
    leaping = modelled(1000, lambda batch: [1e6 if batch == 8 else 1.0, 1.0, 1.0])
    assert leaping.profile.base_us(leaping.graph.kernels[0]) == pytest.approx(1e3 * 1000 / 8)


def test_a_workspace_that_does_not_grow_with_the_batch_stays():
    assert modelled(1000, panels=(100, 300, 300)).graph.by_name["panel"].size_bytes == 4 * 300
    assert modelled(1000, panels=(50, 100, 200)).graph.by_name["panel"].size_bytes == 4 * 25 * 1000


def test_steps_that_cannot_be_compared_are_refused():
    graphs = [step(batch) for batch in (2, 4, 8)]
    profiled = [(graph, profile(graph, lines(graph.batch))) for graph in graphs]
    with pytest.raises(BadInputError, match="at least 3"):
        extrapolate(profiled[:2], 100, "huge")
    crooked = StepBuilder()
    crooked.argument("weight", 50)
    crooked.argument("data", 81, Role.INPUT)
    crooked.kernel(["data", "weight"], {"hidden": 328}, {"padded": 96, "panel": 100})
    crooked.kernel(["hidden"], {"gradient": 50})
    crooked.kernel(["gradient", "weight"], {"new": 50}, role=Role.RESULT)
    bad = replace(crooked.graph(), batch=8)
    with pytest.raises(BadInputError, match=r"'data'|'kernel_0'"):
        extrapolate([*profiled[:2], (bad, profile(bad, lines(8)))], 100, "huge")
    other = replace(graphs[2], kernels=(replace(graphs[2].kernels[0], op="else"), *graphs[2].kernels[1:]))
    with pytest.raises(BadInputError, match="other kernels"):
        extrapolate([*profiled[:2], (other, profile(other, lines(8)))], 100, "huge")
