"""Random numbers inside a step: from a counter, so that every program of a step, on every machine, draws the same.

The generator is Philox2x32-10 (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te, tirx

from autotm.kernels.tir import OPAQUE

COUNTER = "random_counter"
"""The state that counts steps; it starts with a number drawn from the run's seed."""
_MULTIPLIER, _WEYL, _WORD, _ROUNDS = 0xD256D193, 0x9E3779B9, 0xFFFFFFFF, 10
_UNIT = 2.0**-24
"""float32 holds 24 bits: the numbers are multiples of this in [0, 1)."""


class Draws:
    """The places of a step that draw random numbers, each its own stream.

    Attributes:
        counter: the state that counts steps, an argument of the step where any place draws.
        places: how many places there are; they are numbered from 1.
        own: places that draw here; a generator of PyTorch's draws at the others.
    """

    def __init__(self) -> None:
        """Begin with no place."""
        self.counter = relax.Var(COUNTER, relax.TensorType((1,), "int32"))
        self.places = 0
        self.own: set[int] = set()

    def at_least(self, builder: relax.BlockBuilder, shape: Sequence[int], share: float) -> relax.Var:
        """Return whether numbers in [0, 1), others at every place and in every step, are at least `share`, as bytes."""
        place, extents = self.take_place(), [int(extent) for extent in shape]
        self.own.add(place)
        # Behind a contraction it would be drawn element by element, and again in the backward pass.
        call = builder.call_te(_at_least, self.counter, extents, place, share, primfunc_attrs=OPAQUE)
        return builder.emit(call)

    def take_place(self) -> int:
        """Take the next number of a place, for one that draws with a generator of its own."""
        self.places += 1
        return self.places

    def next_counter(self, builder: relax.BlockBuilder) -> relax.Var:
        """Compute the counter of the next step."""
        return builder.emit(relax.op.add(self.counter, relax.const(1, "int32")))


def _words(index: Any, place: Any, counter: Any, wide: Callable[[int], Any]) -> Any:
    """Return 24 bits of Philox's first word, as TVM's expression or as an array; `wide` makes either of a number.

    Words of 32 bits are in uint64, where TVM's analysis of bounds has room for products.
    """
    left, right, key = index & wide(_WORD), place, counter & wide(_WORD)
    for step in range(_ROUNDS):
        product = left * wide(_MULTIPLIER)
        bumped = (key + wide(step * _WEYL % 2**32)) & wide(_WORD)
        left, right = (product >> wide(32)) ^ bumped ^ right, product & wide(_WORD)
    return left >> wide(8)


def _at_least(counter: te.Tensor, shape: list[int], place: int, share: float) -> te.Tensor:
    wide = partial(tirx.const, dtype="uint64")

    def element(*at: tirx.Var) -> tirx.Expr:
        index: tirx.Expr = tirx.const(0, "int64")
        for position, extent in zip(at, shape, strict=True):
            index = index * extent + position.astype("int64")
        words = _words(index.astype("uint64"), wide(place), counter[0].astype("uint64"), wide)
        drawn = words.astype("int32").astype("float32") * tirx.const(_UNIT, "float32")
        return drawn >= tirx.const(share, "float32")

    return te.compute(shape, element, name="uniform_at_least")


def uniform_numbers(counter: int, shape: Sequence[int], place: int) -> npt.NDArray[np.float32]:
    """Return what a step draws at its `place` (from 1 on) when its counter is `counter`, computed by NumPy."""
    index = np.arange(math.prod(shape), dtype=np.uint64)
    words = _words(index, np.uint64(place), np.uint64(counter % 2**32), np.uint64)
    return (words.astype(np.float32) * np.float32(_UNIT)).reshape(shape)
