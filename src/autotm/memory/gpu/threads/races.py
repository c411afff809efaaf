"""Whether work that touches the same bytes is ordered: vector clocks, as in race detectors for threads.

Every stream counts its work. An event carries, for each stream, how much of that stream's work is done once the event
is reached; whoever waits for it knows as much. Work is ordered after other work if its stream knew of that when it was
queued (Mattern, 1989). Two pieces of work of which one writes bytes that the other reads or writes must be ordered.
That depends on what is queued alone, so a missing wait is found whatever the threads did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotm.memory.gpu.interface import Span
from autotm.model.files import AutotmError

Clock = dict[str, int]


class RaceError(AutotmError):
    """Work of two streams touches the same bytes, one of them writes, and no event orders them."""


@dataclass(frozen=True, slots=True)
class _Access:
    span: Span
    stream: str
    number: int
    writes: bool


class Races:
    """All work queued since the streams last stood still.

    Args:
        streams: their names.
    """

    def __init__(self, streams: Sequence[str]) -> None:
        self._known: dict[str, Clock] = {name: dict.fromkeys(streams, 0) for name in streams}
        self._accesses: list[_Access] = []

    def recorded(self, stream: str) -> Mapping[str, int]:
        """What is done once an event is reached that is recorded now."""
        return dict(self._known[stream])

    def waited(self, stream: str, clock: Mapping[str, int]) -> None:
        """From now on work of `stream` comes after all that `clock` counts."""
        known = self._known[stream]
        for other, number in clock.items():
            known[other] = max(known[other], number)

    def queued(self, stream: str, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """Work that touches these bytes is queued.

        Raises:
            RaceError: other work touches them, and neither comes after the other.
        """
        known = self._known[stream]
        known[stream] += 1
        found = [_Access(span, stream, known[stream], writes=False) for span in reads]
        found += [_Access(span, stream, known[stream], writes=True) for span in writes]
        for new in found:
            for old in self._accesses:
                if (new.writes or old.writes) and old.number > known[old.stream] and new.span.overlaps(old.span):
                    raise RaceError(_text(new, old))
        # What is known to all streams can no longer race with anything.
        done = {name: min(clock[name] for clock in self._known.values()) for name in known}
        self._accesses = [old for old in self._accesses if old.number > done[old.stream]] + found

    def still(self) -> None:
        """All streams stand still: everything queued so far comes before everything that follows."""
        self._accesses = []
        done = {name: clock[name] for name, clock in self._known.items()}
        for clock in self._known.values():
            clock.update(done)


def _text(new: _Access, old: _Access) -> str:
    span, what = new.span, "writes" if new.writes else "reads"
    return (
        f"{new.stream} stream: work {new.number} {what} bytes [{span.start}, {span.stop}) of the {span.memory.name} "
        f"pool, which work {old.number} of the {old.stream} stream {'writes' if old.writes else 'reads'}, and no event "
        "orders them: a wait is missing in the program's schedule; report it with program.json"
    )
