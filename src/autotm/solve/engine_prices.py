"""What the time of copying engines costs: prices of spans of kernels, which a move pays if it must lie within them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotm.solve.table import Floats, Ints
from autotm.solve.window import Window


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
        around = (self.starts <= window.start) & (self.ends >= window.end)
        return float(self.price_us[around].sum()) * window.work_ns


@dataclass(frozen=True)
class EnginePrices:
    """Prices of both engines, for copies to slow and to fast memory."""

    out: SpanPrices
    back: SpanPrices

    @classmethod
    def none(cls) -> EnginePrices:
        """Engines for nothing."""
        return cls(SpanPrices.none(), SpanPrices.none())
