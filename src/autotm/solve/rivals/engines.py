"""A clock of three engines: kernels one after the other, and a copy at a time in each direction."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from autotm.model.plan import Engine, EngineEvent


@dataclass(order=True)
class _Waiting:
    deadline: int
    number: int
    name: str = field(compare=False)
    copy_us: float = field(compare=False)
    asked_us: float = field(compare=False)


class _CopyEngine:
    """Copies in the order of their deadlines; one that has begun is not interrupted."""

    def __init__(self, engine: Engine, events: list[EngineEvent]) -> None:
        self._engine, self._events = engine, events
        self._waiting: list[_Waiting] = []
        self._free_us = 0.0
        self._ends_us: dict[int, float] = {}

    def ask(self, number: int, name: str, copy_us: float, deadline: int, now_us: float) -> None:
        self._begin_until(now_us)
        heappush(self._waiting, _Waiting(deadline, number, name, copy_us, now_us))

    def end_us(self, number: int) -> float:
        """When a copy that was asked for is complete, nothing more being asked before."""
        while number not in self._ends_us:
            self._begin()
        return self._ends_us[number]

    def _begin_until(self, now_us: float) -> None:
        """Begin what begins before `now_us`: what is asked for then may overtake the rest."""
        while self._waiting and max(self._free_us, self._waiting[0].asked_us) < now_us:
            self._begin()

    def _begin(self) -> None:
        copy = heappop(self._waiting)
        start_us = max(self._free_us, copy.asked_us)
        self._free_us = start_us + copy.copy_us
        self._ends_us[copy.number] = self._free_us
        self._events.append(EngineEvent(self._engine, copy.name, start_us, self._free_us))


class Engines:
    """What a program on a GPU does: it launches kernels in order, asks for copies, and lets kernels wait for them.

    Attributes:
        now_us: when the next kernel can begin.
        in_bytes, out_bytes: asked for so far.
    """

    def __init__(self) -> None:
        self.now_us = 0.0
        self.in_bytes = self.out_bytes = 0
        self._events: list[EngineEvent] = []
        self._copies = {engine: _CopyEngine(engine, self._events) for engine in (Engine.IN, Engine.OUT)}
        self._count = 0

    def compute(self, name: str, kernel_us: float) -> None:
        """Run a kernel."""
        end_us = self.now_us + kernel_us
        self._events.append(EngineEvent(Engine.COMPUTE, name, self.now_us, end_us))
        self.now_us = end_us

    def ask(self, engine: Engine, name: str, size_bytes: int, copy_us: float, deadline: int = 0) -> tuple[Engine, int]:
        """Ask for a copy from now on; of those that wait, that with the least `deadline` is next."""
        self._count += 1
        if engine is Engine.IN:
            self.in_bytes += size_bytes
        else:
            self.out_bytes += size_bytes
        self._copies[engine].ask(self._count, name, copy_us, deadline, self.now_us)
        return engine, self._count

    def wait(self, asked: tuple[Engine, int]) -> None:
        """Let the next kernel begin no sooner than a copy is complete."""
        engine, number = asked
        self.now_us = max(self.now_us, self._copies[engine].end_us(number))

    def events(self) -> tuple[EngineEvent, ...]:
        """All that was done, in order of its start."""
        return tuple(sorted(self._events, key=lambda event: (event.start_us, event.end_us)))
