"""Shapes on which schedules of memory-bound kernels are tested: odd widths, single elements, few and many rows."""

from __future__ import annotations

from tvm import te

SHAPES = [(2, 5, 7, 33), (4, 9, 9, 64), (3, 1, 1, 1), (17,), (1000,), (3, 1001), (2, 3, 70_001), (64, 2048), (1, 130)]
"""Shapes of the operands of elementwise kernels."""

# Shape of x, window, stride, padding.
POOLS = [
    ((2, 9, 11, 32), (3, 3), (2, 2), (0, 0, 0, 0)),
    ((2, 8, 8, 16), (2, 2), (2, 2), (0, 0, 0, 0)),
    ((1, 7, 6, 50), (3, 3), (1, 1), (1, 1, 1, 1)),
    ((3, 5, 9, 67), (3, 2), (2, 3), (1, 0, 0, 1)),
    ((1, 10, 4, 1), (2, 3), (3, 1), (0, 1, 1, 2)),
    ((2, 6, 6, 7), (6, 6), (1, 1), (0, 0, 0, 0)),
    ((1, 13, 13, 5), (12, 12), (1, 1), (0, 0, 0, 0)),
    ((1, 9, 8, 96), (2, 2), (3, 3), (0, 0, 0, 0)),
    ((4, 17, 17, 64), (3, 3), (2, 2), (1, 1, 1, 1)),
]

CONCATS = [
    ([(2, 5, 5, 96), (2, 5, 5, 33), (2, 5, 5, 1)], 3),
    ([(16, 35, 35, 64), (16, 35, 35, 96)], -1),
    ([(3, 4, 7), (3, 9, 7)], 1),
    ([(4, 38), (1, 38), (200, 38)], 0),
    ([(300, 300), (500, 300)], 0),
    ([(100, 2, 5), (100, 3, 5)], 1),
    ([(7,), (5,)], 0),
    ([(3, 3)], 1),
]
"""Shapes of the parts, axis."""

SUMS = [
    ((16, 7, 7, 96), (0, 1, 2)),
    ((4, 35, 35, 50), (0, 1, 2)),
    ((2, 67, 67, 32), (0, 1, 2)),
    ((4099, 33), (0,)),
    ((131, 1), (0,)),
    ((3, 5, 7), (1,)),
    ((300, 1000), (1,)),
    ((37, 1009), (1,)),
    ((5, 19), (1,)),
    ((8, 100, 130), (1, 2)),
    ((4, 9, 9, 200), (1, 2)),
    ((2, 40, 40, 67), (1, 2)),
    ((40, 3), (0, 1)),
    ((100_003,), (0,)),
    ((1000, 1000), (0, 1)),
    ((7,), (0,)),
    ((3,), (0,)),
    ((500, 6, 40), (0, 2)),
]
"""Shape, summed axes."""


def summed(shape, axes, before=lambda value: value):
    """The sum of `before(x)` over some axes as a TE graph, and x."""
    x = te.placeholder(shape, name="x")
    reduced = [te.reduce_axis((0, shape[axis]), f"r{axis}") for axis in axes]
    kept = [shape[axis] for axis in range(len(shape)) if axis not in axes]

    def body(*outer):
        rest = iter(outer)
        terms = iter(reduced)
        index = [next(terms) if axis in axes else next(rest) for axis in range(len(shape))]
        return te.sum(before(x(*index)), axis=reduced)

    return [x, te.compute(kept, body, name="total")]
