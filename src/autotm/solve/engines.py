"""The two copying engines in a search: what is left of each during each kernel, and what a part of it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.model.engine import ENGINE_PARTS
from autotm.solve.journey import Journey
from autotm.solve.window import Window

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class EngineRoom:
    """Whole parts of both engines that no move has taken, by kernel."""

    def __init__(self, kernels: int) -> None:
        self.out: Ints = np.full(kernels, ENGINE_PARTS, np.int64)
        self.back: Ints = np.full(kernels, ENGINE_PARTS, np.int64)

    def take(self, journey: Journey, sign: int = 1) -> None:
        """Give the journey's moves their parts; with `sign` -1 take them back."""
        for left, window in self._loads(journey):
            left[window.start : window.end] -= sign * window.use

    def has_room(self, journey: Journey) -> bool:
        """Whether all of the journey's moves fit; they never overlap in one direction."""
        return all(fits(left, window) for left, window in self._loads(journey))

    def _loads(self, journey: Journey) -> list[tuple[Ints, Window]]:
        out = [] if journey.out is None else [(self.out, journey.out)]
        return out + [(self.back, window) for _, window in journey.back]


def fits(left: Ints, window: Window) -> bool:
    """Whether an engine with so many parts left can take a move with this window."""
    return bool(left[window.start : window.end].min() >= window.use)


@dataclass(frozen=True)
class EnginePrices:
    """Price of a part of each engine during each kernel, microseconds; none below 0."""

    out_us: Floats
    back_us: Floats

    @classmethod
    def zero(cls, kernels: int) -> EnginePrices:
        """Engines for nothing."""
        return cls(np.zeros(kernels), np.zeros(kernels))
