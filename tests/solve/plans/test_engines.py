"""A copying engine in a search: it takes a move exactly if some sharing of its time admits it, and can take it back."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from autotm.solve.choices import Window
from autotm.solve.plans import Engine


def drawn(draw: random.Random, kernels: int) -> Window:
    start, end = sorted(draw.sample(range(kernels + 1), 2))
    return Window(start, end, draw.randrange(1, 8))


def can_be_done(windows: list[Window], kernel_ns: list[int]) -> bool:
    """Whether no span of kernels is asked for more than it has."""
    return all(
        sum(one.work_ns for one in windows if start <= one.start and one.end <= end) <= sum(kernel_ns[start:end])
        for start, end in combinations(range(len(kernel_ns) + 1), 2)
    )


@given(seed=st.integers(0, 2**31 - 1))
def test_a_move_is_refused_only_where_no_sharing_admits_it(seed: int) -> None:
    draw = random.Random(seed)
    kernel_ns = [draw.randrange(0, 12) for _ in range(9)]
    engine, taken = Engine(kernel_ns), {}
    outcomes = []
    for number in range(40):
        if taken and draw.random() < 0.3:
            gone = draw.choice(sorted(taken))
            engine.give(gone)
            del taken[gone]
        window = drawn(draw, len(kernel_ns))
        fits = can_be_done([*taken.values(), window], kernel_ns)
        assert engine.make_room(window) == fits
        assert engine.take((number, 1), window) == fits
        outcomes.append(fits)
        if fits:
            taken[number, 1] = window
    assert set(outcomes) == {True, False}


@given(seed=st.integers(0, 2**31 - 1))
def test_what_was_changed_since_a_mark_is_taken_back(seed: int) -> None:
    """What could be taken before can be taken after, and nothing else."""
    draw = random.Random(seed)
    kernel_ns = [draw.randrange(2, 12) for _ in range(9)]
    engine, taken = Engine(kernel_ns), {}
    for number in range(6):
        window = drawn(draw, len(kernel_ns))
        if engine.take((number, 1), window):
            taken[number, 1] = window
    engine.mark()
    for key in sorted(taken)[::2]:
        engine.give(key)
    changed = sum(engine.take((number, 2), drawn(draw, len(kernel_ns))) for number in range(10))
    assert changed
    engine.roll_back()
    for _ in range(30):
        window = drawn(draw, len(kernel_ns))
        assert engine.make_room(window) == can_be_done([*taken.values(), window], kernel_ns)


def test_a_move_gives_way_over_others() -> None:
    """The first can only go where the second is, and that one only where the third is, which can go on."""
    engine = Engine([4, 4, 4, 4])
    assert engine.take((0, 1), Window(0, 2, 4))
    assert engine.take((1, 1), Window(1, 3, 4))
    assert engine.take((2, 1), Window(2, 4, 4))
    assert engine.take((3, 1), Window(0, 1, 4))
    assert not engine.make_room(Window(0, 4, 1))
    engine.give((0, 1))
    assert engine.make_room(Window(3, 4, 4))
