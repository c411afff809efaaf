"""What the streams of a device of threads share: one lock, the points they wait for, and the first failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from autotm.memory.gpu.threads.order import Order
from autotm.memory.gpu.threads.races import Races
from autotm.model.files import AutotmError


class Member(Protocol):
    """A stream, as the others see it.

    Attributes:
        held: rank and name of the stream while its next work is held back.
    """

    held: tuple[float, str] | None

    def is_stuck(self) -> bool:
        """Whether it goes on only after something else has."""


@dataclass(eq=False)
class Point:
    """One recording of an event: reached at `reached_ns` of `perf_counter_ns`; 0 before."""

    clock: Mapping[str, int]
    reached_ns: int = 0


@dataclass(eq=False)
class Crew:
    """All streams of a device.

    Attributes:
        order: when work begins.
        races: what was queued; None where nobody checks.
        changed: held for every change of a queue, a point or what is held, and notified of it.
        failure: of the first work that failed; what follows it is not run.
    """

    order: Order
    races: Races | None
    changed: threading.Condition = field(default_factory=threading.Condition)
    members: list[Member] = field(default_factory=list)
    failure: BaseException | None = None
    _waiting_hosts: int = 0

    def host_waits(self, is_over: Callable[[], bool]) -> None:
        """Hold the calling thread; work that is held back begins meanwhile, where nothing else can."""
        with self.changed:
            self._waiting_hosts += 1
            self.changed.notify_all()
            self.changed.wait_for(is_over)
            self._waiting_hosts -= 1

    def may_begin(self, member: Member) -> bool:
        """Whether its held work is next: the host waits, no other can go on, and none held is of lower rank."""
        others = [other for other in self.members if other is not member]
        if not self._waiting_hosts or member.held is None or not all(other.is_stuck() for other in others):
            return False
        return all(other.held is None or other.held > member.held for other in others)

    def reach(self, point: Point) -> None:
        """Let go on who waits for it."""
        with self.changed:
            point.reached_ns = time.perf_counter_ns()
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Keep the first failure."""
        with self.changed:
            self.failure = self.failure or error

    def require_whole(self) -> None:
        """Raise what failed.

        Raises:
            AutotmError: some work did.
        """
        if self.failure is not None:
            raise AutotmError(f"device of threads: its work failed: {self.failure}") from self.failure


@dataclass(eq=False)
class ThreadEvent:
    """An event: the point that was recorded last."""

    crew: Crew
    point: Point | None = None

    def synchronize(self) -> None:
        """Hold the calling thread until that point is reached."""
        point = self.point
        if point is not None:
            self.crew.host_waits(lambda: point.reached_ns > 0)
