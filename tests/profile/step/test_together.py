"""Sets of configurations that one run of the step times: complete, disjoint, and exactly as asked."""

from __future__ import annotations

from collections import Counter

import small_step
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import random_case

from autotm.model.graph import configuration
from autotm.profile.profiler import cases
from autotm.profile.timing_study import rounds, wanted_configurations


@given(st.integers(0, 10_000))
def test_sets_are_complete_and_share_no_tensor(seed: int) -> None:
    graph = random_case(seed).graph.computed_by(())
    wanted = wanted_configurations(graph)
    found = rounds(graph, wanted)
    assert Counter(one for chosen in found for one in chosen) == Counter(wanted)
    for chosen in found:
        tensors = [tensor for one in chosen for tensor in graph.slots_of(graph.kernels[one.kernel])]
        assert len(tensors) == len(set(tensors))
        assert len({one.kernel for one in chosen}) == len(chosen)


@given(st.integers(0, 10_000))
def test_every_kernel_of_a_set_is_configured_as_asked(seed: int) -> None:
    graph = random_case(seed).graph.computed_by(())
    for chosen in rounds(graph, wanted_configurations(graph)):
        slow = frozenset[str]().union(*(one.slow for one in chosen))
        for one in chosen:
            assert configuration(graph, graph.kernels[one.kernel], slow) == one.configuration


@given(st.integers(0, 10_000))
def test_a_set_leaves_out_nothing_that_fits(seed: int) -> None:
    graph = random_case(seed).graph.computed_by(())
    found = rounds(graph, wanted_configurations(graph))
    for number, chosen in enumerate(found):
        used = {tensor for one in chosen for tensor in graph.slots_of(graph.kernels[one.kernel])}
        kernels = {one.kernel for one in chosen}
        for later in found[number + 1 :]:
            for one in later:
                assert one.kernel in kernels or used & graph.slots_of(graph.kernels[one.kernel]).keys()


def test_each_distinct_kernel_is_wanted_in_all_its_configurations() -> None:
    graph = small_step.graph()
    wanted = wanted_configurations(graph)
    assert len(wanted) == sum(len(case.configurations) for case in cases(graph, "full"))
    assert 1 < len(rounds(graph, wanted)) < len(wanted)
