"""Reshapes of values that lie in another order: the same elements as NumPy puts there."""

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autotm.zoo.layouts import reshaped_order


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shapes of as many elements, split from the same factors, and an order of the first's axes."""
    factors = draw(st.lists(st.sampled_from([2, 3, 5]), min_size=1, max_size=5))
    shapes = []
    for _ in range(2):
        cuts = sorted(draw(st.sets(st.integers(0, len(factors)), max_size=4)) | {0, len(factors)})
        shape = [math.prod(factors[low:high]) for low, high in itertools.pairwise(cuts)]
        for place in draw(st.lists(st.integers(0, len(shape)), max_size=2)):
            shape.insert(place, 1)
        shapes.append(tuple(shape))
    return shapes[0], shapes[1], tuple(draw(st.permutations(range(len(shapes[0])))))


@given(reshapes())
def test_elements_are_where_numpy_puts_them(case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]) -> None:
    old, new, order = case
    value = np.arange(math.prod(old)).reshape(old)
    result, source = reshaped_order(old, new, order)
    assert sorted(source) == list(range(len(old)))
    assert sorted(result) == list(range(len(new)))
    lying = np.ascontiguousarray(value.transpose(source)).reshape([new[axis] for axis in result])
    np.testing.assert_array_equal(lying, value.reshape(new).transpose(result))


def test_nothing_is_turned_without_need() -> None:
    channels_last = (0, 2, 3, 1)
    assert reshaped_order((2, 12, 5, 7), (2, 3, 4, 5, 7), channels_last) == ((0, 3, 4, 1, 2), channels_last)
    assert reshaped_order((2, 12, 1, 1), (2, 12), channels_last) == ((0, 1), channels_last)
    assert reshaped_order((2, 3, 4), (2, 12), (0, 1, 2)) == ((0, 1), (0, 1, 2))
    assert reshaped_order((2, 12, 5, 7), (2, 420), channels_last)[1] == (0, 1, 2, 3)
