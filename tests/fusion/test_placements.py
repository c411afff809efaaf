"""Placements as states of a search: they keep the limit, and none takes less time than the plan that is proven."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sklearn")

from random_graphs import exact_case, training_step_case

from autotm.fusion.placements import PlacementSpace, searched
from autotm.model.graph import CountedGraph, Tier
from autotm.model.limit import Limit, fixed_bytes
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

LIMIT = Limit.parse("1:1")
OPTIONS = SolveOptions(gap=0.0)


@pytest.fixture(scope="module")
def case():
    own = training_step_case(layers=4, branches=2)
    return own.graph, own.profile, own.links


def space_of(graph, profile, links):
    plan = solve(graph, profile, links, "static", LIMIT, OPTIONS)
    limit_bytes = LIMIT.fast_bytes(graph.peak_live_bytes, fixed_bytes(graph))
    return PlacementSpace(graph, profile, limit_bytes, plan.objective_us), limit_bytes, plan


def fast_bytes(graph, state):
    used = np.zeros(len(graph.kernels), np.int64)
    for name in state:
        used[graph.by_name[name].live.start : graph.by_name[name].live.stop] += graph.by_name[name].allocated_bytes
    return used.max(initial=0)


def test_all_states_keep_the_limit(case):
    space, limit_bytes, _ = space_of(*case)
    state, draw = space.initial, random.Random(1)
    seen = {state}
    for _ in range(50):
        state = space.neighbour(state, draw)
        seen |= {state, space.drawn(draw), space.chosen(lambda *_: draw.choice([*Tier]))}
    assert len(seen) > 50
    assert all(fast_bytes(case[0], own) <= limit_bytes for own in seen)
    asked = space.chosen(lambda *_: Tier.FAST)
    assert asked == space.initial, "what comes first is fast, as long as it fits"


def test_the_energy_of_the_plan_is_1(case):
    space, _, plan = space_of(*case)
    fast = frozenset(stay.tensor for stay in plan.stays if stay.tier is Tier.FAST)
    assert space.energy(fast) == pytest.approx(1.0)
    assert space.energy(frozenset()) > 1


@pytest.mark.parametrize("seed", range(3))
def test_no_placement_takes_less_than_the_plan(seed):
    own = exact_case(seed, alternatives=False)
    space, limit_bytes, _ = space_of(own.graph, own.profile, own.links)
    names = [tensor.name for tensor in own.graph.movable]
    every = [frozenset(some) for count in range(len(names) + 1) for some in itertools.combinations(names, count)]
    fitting = [state for state in every if fast_bytes(own.graph, state) <= limit_bytes]
    assert min(map(space.energy, fitting)) == pytest.approx(1.0)


def test_searches_and_rewards_are_held_against_the_plan(case):
    graph, profile, links = case
    found = searched(graph, profile, links, LIMIT, OPTIONS, evaluations=64, seeds=[1, 2])
    assert [(one.algorithm, one.search_seed) for one in found.curves] == [
        *itertools.product(["annealing", "random_walk", "independent"], [1]),
        *itertools.product(["annealing", "random_walk", "independent"], [2]),
        ("rewards", 1), ("rewards", 2),
    ]  # fmt: skip
    assert all(ratio >= 1 - 1e-9 for one in found.curves for _, ratio in one.improved)
    assert {one.evaluations for one in found.curves} == {64, 66}, "rewards ask for two placements more, after 32 and 64"
    assert found.bound_us <= found.plan_us
    drawn = {one.search_seed: one.improved[-1][1] for one in found.curves if one.algorithm == "independent"}
    rewarded = {one.search_seed: one.improved[-1][1] for one in found.curves if one.algorithm == "rewards"}
    assert all(rewarded[seed] <= drawn[seed] for seed in drawn)


def test_rewards_ask_for_what_is_better_than_nearly_all_that_they_are_fitted_to(case):
    graph, profile, _ = case
    space = PlacementSpace(CountedGraph(replace(graph)), profile, graph.peak_live_bytes, 1.0)
    draw = random.Random(0)
    states = [space.drawn(draw) for _ in range(200)]
    energies = [space.energy(state) for state in states]
    chosen = space.energy(space.rewarded(states, energies))
    assert sum(energy < chosen for energy in energies) < len(energies) / 10
