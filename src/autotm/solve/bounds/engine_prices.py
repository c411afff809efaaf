"""What the time of copying engines costs: prices of spans of kernels, which a move pays if it must lie within them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.solve.problem import Floats, Ints, Window


@dataclass(frozen=True)
class SpanPrices:
    """Prices of one engine's time.

    Attributes:
        starts, ends: span j has kernels [starts[j], ends[j]).
        lasts_ns: what an engine can work in each.
        price_us: of a nanosecond of work that cannot be done outside of the span; none below 0.
    """

    starts: Ints
    ends: Ints
    lasts_ns: Ints
    price_us: Floats

    @classmethod
    def none(cls) -> SpanPrices:
        """No span has a price."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, np.zeros(0))

    @property
    def whole_us(self) -> float:
        """Of all the work that can be done in the spans."""
        return float(self.lasts_ns @ self.price_us)

    def of_us(self, window: Window) -> float:
        """Of a move that has to be done in a window."""
        return float(self.price_us[self.around(window)].sum()) * window.work_ns

    def around(self, window: Window) -> npt.NDArray[np.bool_]:
        """(spans,) Those that a window lies within."""
        return (self.starts <= window.start) & (self.ends >= window.end)

    def unused_us(self, windows: Collection[Window]) -> Floats:
        """(spans,) Price of the time that moves in these windows leave."""
        work_ns = sum((self.around(window) * window.work_ns for window in windows), np.zeros(len(self.starts)))
        return (self.lasts_ns - work_ns) * self.price_us


@dataclass(frozen=True)
class EnginePrices:
    """Prices of both engines, for copies to slow and to fast memory."""

    out: SpanPrices
    back: SpanPrices

    @classmethod
    def none(cls) -> EnginePrices:
        """Engines for nothing."""
        return cls(SpanPrices.none(), SpanPrices.none())
