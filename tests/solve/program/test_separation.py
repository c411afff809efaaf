"""Knapsack inequalities: true for all sets that fit, and found wherever a solution is no mixture of such sets."""

from __future__ import annotations

import random
from itertools import product

import highspy
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autotm.solve.cuts import Separation
from autotm.solve.prices import Fitting


def sets_of(sizes: list[int], limit_bytes: int) -> list[tuple[int, ...]]:
    chosen = product((0, 1), repeat=len(sizes))
    return [each for each in chosen if sum(s for s, inside in zip(sizes, each, strict=True) if inside) <= limit_bytes]


def weight(weights: dict[int, int], chosen: tuple[float, ...] | tuple[int, ...]) -> float:
    return sum(each * chosen[item] for item, each in weights.items())


def is_mixture(values: list[float], sets: list[tuple[int, ...]]) -> bool:
    """Whether values are at most a convex combination of sets, by a linear program."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.addVars(len(sets), np.zeros(len(sets)), np.ones(len(sets)))
    everything = np.arange(len(sets), dtype=np.int32)
    solver.addRow(1.0, 1.0, len(sets), everything, np.ones(len(sets)))
    for item, value in enumerate(values):
        solver.addRow(value, highspy.kHighsInf, len(sets), everything, np.array([float(one[item]) for one in sets]))
    solver.run()
    return bool(solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)


@given(seed=st.integers(0, 2**31 - 1))
def test_inequalities_hold_for_all_that_fits_and_are_broken_where_values_do_not(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 8)
    sizes = [64 * draw.randint(1, 12) for _ in range(count)]
    limit_bytes = draw.randint(max(sizes), max(max(sizes) + 1, sum(sizes)))
    values = [draw.choice([0.0, 1.0, draw.random(), draw.random()]) for _ in range(count)]
    whole = sum(size for size, value in zip(sizes, values, strict=True) if value == 1.0)
    if whole > limit_bytes:
        values = [min(value, 0.9) for value in values]
    sets = sets_of(sizes, limit_bytes)
    found = list(Separation().broken(np.array(values), np.array(sizes), limit_bytes))
    for weights in found:
        assert weight(weights, tuple(values)) > max(weight(weights, chosen) for chosen in sets) > 0
    if is_mixture(values, sets):
        assert not found
    else:
        # What is broken by less than its share of a row is left.
        shrunk = [value * (1 - 3e-4) if value < 1 else value for value in values]
        assert found or is_mixture(shrunk, sets)


def test_two_of_three_fit() -> None:
    (found,) = Separation().broken(np.array([0.7, 0.7, 0.7]), np.array([40, 40, 40]), 100)
    assert found == {0: 1, 1: 1, 2: 1}


def test_an_item_beside_a_whole_one_that_leaves_it_no_room() -> None:
    (found,) = Separation().broken(np.array([1.0, 0.5]), np.array([60, 60]), 100)
    assert found == {0: 1, 1: 1}


@given(seed=st.integers(0, 2**31 - 1))
def test_what_fits_is_what_trying_all_sets_says(seed: int) -> None:
    draw = random.Random(seed)
    items = [(draw.randint(1, 6), draw.randint(1, 50)) for _ in range(draw.randint(1, 9))]
    limit_bytes = draw.randint(1, 150)
    fitting = Fitting(limit_bytes)
    for each, size in items:
        fitting.add(each, size)
    rooms = np.array([-5, 0, *sorted(draw.randint(0, limit_bytes) for _ in range(5)), limit_bytes])
    for room, most in zip(rooms.tolist(), fitting.most_in_each(rooms).tolist(), strict=True):
        chosen = sets_of([size for _, size in items], max(room, 0))
        assert most == max(sum(each for (each, _), inside in zip(items, one, strict=True) if inside) for one in chosen)
