"""A case of a problem: tensors that are fast somewhere, or are not, and the choices that this leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autotm.solve.problem import Flow, Ints, Window, flags

_ANY_BYTES = 2**62


class Place(NamedTuple):
    """A gadget of a flow, or the gap after it, over which the flow stays fast or does not."""

    flow: int
    gadget: int
    is_gap: bool

    def span(self, flow: Flow) -> tuple[int, int]:
        """Kernels [start, end); none in the gap between neighbours."""
        return flow.gap(self.gadget) if self.is_gap else (flow.starts[self.gadget], flow.stops[self.gadget])


class AsyncMove(NamedTuple):
    """A window of a flow's copy over a gap: used if there is such a copy, or not used.

    Attributes:
        flow: whose.
        gadget: the gap is the one after it.
        is_out: whether the copy is one to slow memory.
        window: beside which kernels.
    """

    flow: int
    gadget: int
    is_out: bool
    window: Window


class Spaces(NamedTuple):
    """A table's fast workspaces: at most so many bytes, or more."""

    table: int
    most_bytes: int


Decision = Place | AsyncMove | Spaces


class Lives:
    """Flows, with their sizes and first and last kernels as arrays."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self.flows = flows
        self.sizes: Ints = np.array([flow.size_bytes for flow in flows], np.int64)
        self.starts = [flow.starts[0] for flow in flows]
        self.stops = [flow.stops[-1] for flow in flows]


@dataclass(frozen=True, eq=False)
class Fixed:
    """Decisions that are made.

    Attributes:
        lives: of all flows.
        room: (kernels,) bytes of fast memory that the flows fixed as fast leave.
        places: by flow, whether it is fast at some of its places.
        async_moves: by flow, whether some of its windows are used where it is copied.
        spaces: by table, what its fast workspaces take more than, and what at most.
    """

    lives: Lives
    room: Ints
    places: Mapping[int, Mapping[Place, bool]]
    async_moves: Mapping[int, Mapping[AsyncMove, bool]]
    spaces: Mapping[int, tuple[int, int]]

    @classmethod
    def nothing(cls, flows: Sequence[Flow], limit_bytes: int, kernels: int) -> Fixed:
        """No decision."""
        return cls(Lives(flows), np.full(kernels, limit_bytes, np.int64), {}, {}, {})

    def at(self, decision: Decision, holds: bool) -> Fixed:
        """One decision more."""
        if isinstance(decision, AsyncMove):
            async_moves = {**self.async_moves.get(decision.flow, {}), decision: holds}
            return replace(self, async_moves={**self.async_moves, decision.flow: async_moves})
        if isinstance(decision, Spaces):
            more, most = self.spaces.get(decision.table, (-1, _ANY_BYTES))
            bounds = (more, min(most, decision.most_bytes)) if holds else (max(more, decision.most_bytes), most)
            return replace(self, spaces={**self.spaces, decision.table: bounds})
        room, flow = self.room, self.lives.flows[decision.flow]
        if holds:
            start, end = decision.span(flow)
            room = room.copy()
            room[start:end] -= flow.size_bytes
        places = {**self.places.get(decision.flow, {}), decision: holds}
        return replace(self, room=room, places={**self.places, decision.flow: places})

    def bytes_of(self, number: int, kernel: int) -> tuple[int, int]:
        """What the fast workspaces of a table take more than, and what at most."""
        more, most = self.spaces.get(number, (-1, _ANY_BYTES))
        return more, min(most, int(self.room[kernel]))

    def operands(self, keys: Sequence[tuple[int, int]]) -> dict[int, bool]:
        """Whether operands are slow, of those of a table, given by flow and gadget, for which that is fixed."""
        places = (
            (operand, self.places.get(index, {}), Place(index, k, False)) for operand, (index, k) in enumerate(keys)
        )
        return {operand: not own[place] for operand, own, place in places if place in own}

    def beside_only(self, index: int) -> set[tuple[int, bool]]:
        """Gaps over which a flow's copies are not blocking, with whether these are copies to slow memory."""
        return {(one.gadget, one.is_out) for one, used in self.async_moves.get(index, {}).items() if used}

    @property
    def is_empty(self) -> bool:
        """Whether what has to be fast exceeds the limit."""
        return bool((self.room < 0).any())

    @cached_property
    def touched(self) -> list[int]:
        """Flows that may have fewer choices than without it."""
        lives = self.lives
        large = np.flatnonzero(lives.sizes > int(self.room.min())).tolist()
        tight = (i for i in large if self.room[lives.starts[i] : lives.stops[i]].min() < lives.sizes[i])
        return sorted({*self.places, *self.async_moves, *tight})

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
        """A flow with the choices that have room, where it is fixed as fast too, and the windows that are left."""
        own = {place for place, fast in self.places.get(index, {}).items() if fast}
        gadgets, gaps = range(len(flow)), range(len(flow) - 1)
        may = [flow.may[k] and self._fits(flow, Place(index, k, False), own) for k in gadgets]
        between = [flow.may_between[k] and self._fits(flow, Place(index, k, True), own) for k in gaps]
        return replace(
            flow,
            may=flags(tuple(may)),
            may_between=flags(tuple(between)),
            may_read=flags(tuple(read and here for read, here in zip(flow.may_read, may, strict=True))),
            out=tuple(self._windows(index, k, True, flow) for k in gaps),
            back=tuple(self._windows(index, k, False, flow) for k in gaps),
        )

    def _fits(self, flow: Flow, place: Place, own: set[Place]) -> bool:
        return place in own or self._has_room(flow, *place.span(flow))

    def _windows(self, index: int, k: int, is_out: bool, flow: Flow) -> tuple[Window, ...]:
        own = {one.window: used for one, used in self.async_moves.get(index, {}).items() if one[1:3] == (k, is_out)}
        only = {window for window, used in own.items() if used}
        windows = (window for window in (flow.out if is_out else flow.back)[k] if own.get(window, not only))
        return tuple(window for window in windows if self._has_room(flow, window.start, window.end))

    def _has_room(self, flow: Flow, start: int, end: int) -> bool:
        return start >= end or bool(self.room[start:end].min() >= flow.size_bytes)
