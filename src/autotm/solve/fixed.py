"""A case of a problem: tensors that are fast somewhere, or are not, and the choices that this leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autotm.solve.flow import Flow, flags
from autotm.solve.table import Ints
from autotm.solve.window import Window


class Place(NamedTuple):
    """A gadget of a flow, or the gap after it, over which the flow stays fast or does not."""

    flow: int
    gadget: int
    is_gap: bool

    def span(self, flow: Flow) -> tuple[int, int]:
        """Kernels [start, end); none in the gap between neighbours."""
        return flow.gap(self.gadget) if self.is_gap else (flow.starts[self.gadget], flow.stops[self.gadget])


class Lives:
    """Flows, with their sizes and first and last kernels as arrays."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self.flows = flows
        self.sizes: Ints = np.array([flow.size_bytes for flow in flows], np.int64)
        self.starts = [flow.starts[0] for flow in flows]
        self.stops = [flow.stops[-1] for flow in flows]


@dataclass(frozen=True, eq=False)
class Fixed:
    """Places at which flows are fast, or are not.

    Attributes:
        lives: of all flows.
        room: (kernels,) bytes of fast memory that the flows fixed as fast leave.
        places: by flow, whether it is fast at some of its places.
    """

    lives: Lives
    room: Ints
    places: Mapping[int, Mapping[Place, bool]]

    def at(self, place: Place, fast: bool) -> Fixed:
        """One place more."""
        room, flow = self.room, self.lives.flows[place.flow]
        if fast:
            start, end = place.span(flow)
            room = room.copy()
            room[start:end] -= flow.size_bytes
        own = {**self.places.get(place.flow, {}), place: fast}
        return Fixed(self.lives, room, {**self.places, place.flow: own})

    @property
    def overfull(self) -> int | None:
        """A kernel during which more has to be fast than the limit allows."""
        worst = int(self.room.argmin())
        return worst if self.room[worst] < 0 else None

    @cached_property
    def touched(self) -> list[int]:
        """Flows that may have fewer choices than without it."""
        lives = self.lives
        large = np.flatnonzero(lives.sizes > int(self.room.min())).tolist()
        tight = (i for i in large if self.room[lives.starts[i] : lives.stops[i]].min() < lives.sizes[i])
        return sorted({*self.places, *tight})

    def left(self, index: int, flow: Flow) -> Flow:
        """A flow with the choices that are left to it."""
        found = self.within_room(index, flow)
        must, may = list(found.must), list(found.may)
        between, read = list(found.may_between), list(found.may_read)
        for (_, k, is_gap), fast in self.places.get(index, {}).items():
            if not fast:
                (between if is_gap else may)[k] = False
            elif is_gap:
                # Fast at both ends, and not by a read: so it stays.
                must[k] = must[k + 1] = True
                read[k + 1] = False
            else:
                must[k] = True
        return replace(
            found,
            must=flags(tuple(must)),
            may=flags(tuple(may)),
            may_between=flags(tuple(between)),
            may_read=flags(tuple(read)),
        )

    def within_room(self, index: int, flow: Flow) -> Flow:
        """A flow with the choices that have room; where it is fixed as fast, it has room."""
        own = {place for place, fast in self.places.get(index, {}).items() if fast}
        gadgets, gaps = range(len(flow)), range(len(flow) - 1)
        may = [flow.may[k] and self._fits(flow, Place(index, k, False), own) for k in gadgets]
        between = [flow.may_between[k] and self._fits(flow, Place(index, k, True), own) for k in gaps]
        return replace(
            flow,
            may=flags(tuple(may)),
            may_between=flags(tuple(between)),
            may_read=flags(tuple(read and here for read, here in zip(flow.may_read, may, strict=True))),
            out=tuple(self._windows(flow, windows) for windows in flow.out),
            back=tuple(self._windows(flow, windows) for windows in flow.back),
        )

    def _fits(self, flow: Flow, place: Place, own: set[Place]) -> bool:
        return place in own or self._has_room(flow, *place.span(flow))

    def _windows(self, flow: Flow, windows: tuple[Window, ...]) -> tuple[Window, ...]:
        return tuple(window for window in windows if self._has_room(flow, window.start, window.end))

    def _has_room(self, flow: Flow, start: int, end: int) -> bool:
        return start >= end or bool(self.room[start:end].min() >= flow.size_bytes)
