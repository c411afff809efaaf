"""Which work waits for which: the fewest events that order all work that touches the same bytes.

Streams keep their own order, so of another stream's work that an operation must follow, only the last is waited for,
and not even that where it is known to be done already, because this stream, or one that it waited for, waited for it
before. What is known is a vector clock, a count for each stream (Mattern, 1989). `memory/gpu/threads/races.py` checks
the result while it runs, without any of this.

A step begins when the one before it is over: the first work of the compute stream comes before everything, the last
after.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autotm.model.measurement import Lane
from autotm.model.step import Tier
from autotm.runtime.streams.operations import Bytes, Operation, bounds

Clock = dict[Lane, int]
START = Operation(Lane.COMPUTE, "start", None, (), ())
END = Operation(Lane.COMPUTE, "end", None, (), ())
LANES = tuple(Lane)


@dataclass(frozen=True)
class Schedule:
    """One step.

    Attributes:
        operations: in the order in which they are handed to their streams; the first and the last do nothing.
        waits: for each, the operations of other streams that its stream waits for before it.
    """

    operations: tuple[Operation, ...]
    waits: tuple[tuple[int, ...], ...]

    @property
    def awaited(self) -> frozenset[int]:
        """Operations that an event follows."""
        return frozenset(other for waits in self.waits for other in waits)


def schedule(listed: Sequence[Operation]) -> Schedule:
    """Order operations as far as their bytes, and moves that the step waits for, need it."""
    scheduled = (START, *listed, END)
    touched = {tier: _Touched.of(listed, tier) for tier in Tier}
    known: dict[Lane, Clock] = {lane: dict.fromkeys(LANES, -1) for lane in LANES}
    after: list[Clock] = []
    last = dict.fromkeys(LANES, -1)
    chain = 0
    waits = []
    for index, operation in enumerate(scheduled):
        clock = known[operation.lane]
        needed = set(last.values()) if operation is END else _conflicts(operation, touched) | {0}
        needed.update(1 + other for other in operation.after)  # START comes before the first.
        blocked = operation.is_blocking or operation.lane is Lane.COMPUTE
        if blocked:
            needed.add(chain)
        waits.append(_missing(needed, operation.lane, scheduled, clock, after))
        clock[operation.lane] = last[operation.lane] = index
        after.append(dict(clock))
        for used in operation.reads:
            touched[used.tier].read(used, operation.lane, index)
        for used in operation.writes:
            touched[used.tier].written(used, operation.lane, index)
        if blocked:
            chain = index
    return Schedule(scheduled, tuple(waits))


def _missing(
    needed: set[int], lane: Lane, scheduled: Sequence[Operation], clock: Clock, after: Sequence[Clock]
) -> tuple[int, ...]:
    """What of `needed` its stream does not know to be done; `clock` knows it afterwards."""
    found = []
    # The last come first: they know of earlier ones, never the other way round.
    for other in sorted(needed, reverse=True):
        if 0 <= other < len(after) and scheduled[other].lane is not lane and clock[scheduled[other].lane] < other:
            found.append(other)
            for each in LANES:
                clock[each] = max(clock[each], after[other][each])
    return tuple(found)


def _conflicts(operation: Operation, touched: dict[Tier, _Touched]) -> set[int]:
    """The last operation of each other stream that touches the same bytes, where one of the two writes."""
    found: set[int] = set()
    for used in operation.reads:
        found |= touched[used.tier].last(used, operation.lane, reads=False)
    for used in operation.writes:
        found |= touched[used.tier].last(used, operation.lane, reads=True)
    return found


@dataclass(frozen=True)
class _Touched:
    """Who last read and wrote each byte of a pool, for each stream; bytes that are always touched together are one."""

    bounds: list[int]
    readers: dict[Lane, npt.NDArray[np.int64]] = field(default_factory=dict)
    writers: dict[Lane, npt.NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, listed: Sequence[Operation], tier: Tier) -> _Touched:
        ends = bounds(listed, tier)
        return cls(ends, *({lane: np.full(len(ends), -1, np.int64) for lane in LANES} for _ in range(2)))

    def read(self, used: Bytes, lane: Lane, index: int) -> None:
        self.readers[lane][self._segments(used)] = index

    def written(self, used: Bytes, lane: Lane, index: int) -> None:
        self.writers[lane][self._segments(used)] = index

    def last(self, used: Bytes, lane: Lane, *, reads: bool) -> set[int]:
        """The last operation of each other stream that wrote these bytes, or also read them."""
        if not used.size_bytes:
            return set()
        at = self._segments(used)
        tables = (self.writers, self.readers) if reads else (self.writers,)
        return {int(table[other][at].max()) for table in tables for other in LANES if other is not lane}

    def _segments(self, used: Bytes) -> slice:
        return slice(bisect_left(self.bounds, used.start), bisect_left(self.bounds, used.stop))
