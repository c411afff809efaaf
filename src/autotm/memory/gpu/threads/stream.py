"""A stream that is a thread with a queue."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotm.memory.gpu.interface import Event, Span
from autotm.memory.gpu.threads.crew import Crew, Point, ThreadEvent
from autotm.memory.gpu.threads.memory import bytes_of
from autotm.memory.pool import POISON_BYTE
from autotm.model.files import AutotmError


@dataclass(frozen=True, slots=True)
class _Work:
    run: Callable[[], None]
    number: int
    fresh: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Wait:
    point: Point


class ThreadStream:
    """As `interface.Stream`.

    Args:
        name: of the stream.
        crew: of its device, which it joins.
        poison: overwrite what work is about to write, before it is put off: who reads it too early reads that.
    """

    def __init__(self, name: str, crew: Crew, *, poison: bool) -> None:
        self.name = name
        self.handle = 0
        self.held: tuple[float, str] | None = None
        self._crew = crew
        self._poison = poison
        self._queue: deque[_Work | _Wait | Point] = deque()
        self._waits_for: Point | None = None
        self._is_busy = False
        self._is_closed = False
        self._numbered = 0
        crew.members.append(self)
        self._thread = threading.Thread(target=self._serve, name=f"autotm-{name}", daemon=True)
        self._thread.start()

    def launch(self, work: Callable[[], None], reads: Sequence[Span] = (), writes: Sequence[Span] = ()) -> None:
        """Queue a call."""
        kept = {(id(span.memory), span.start) for span in reads}  # Updated in place: not to be poisoned before.
        fresh = tuple(span for span in writes if (id(span.memory), span.start) not in kept)
        if self._crew.races is not None:
            self._crew.races.queued(self.name, reads, writes)
        self._put(_Work(work, self._numbered, fresh))
        self._numbered += 1

    def copy(self, destination: Span, source: Span) -> None:
        """Queue a copy."""
        to, out_of = bytes_of(destination), bytes_of(source)
        if to.nbytes != out_of.nbytes:
            raise AutotmError(f"{self.name} stream: copy of {out_of.nbytes} bytes into {to.nbytes}")

        def copy() -> None:
            to[:] = out_of

        self.launch(copy, (source,), (destination,))

    def fill(self, span: Span, byte: int) -> None:
        """Queue the filling of a span."""
        array = bytes_of(span)
        self.launch(lambda: array.fill(byte), (), (span,))

    def record(self, event: Event) -> None:
        """Make `event` the point at which all work queued here so far is done."""
        assert isinstance(event, ThreadEvent)
        races = self._crew.races
        point = Point(races.recorded(self.name) if races else {})
        event.point = point
        self._put(point)

    def wait(self, event: Event) -> None:
        """Hold back what is queued from now on until the point that `event` has now."""
        assert isinstance(event, ThreadEvent)
        if event.point is None:
            return
        if self._crew.races is not None:
            self._crew.races.waited(self.name, event.point.clock)
        self._put(_Wait(event.point))

    def synchronize(self) -> None:
        """Hold the calling thread until all work queued here is done."""
        self._crew.host_waits(lambda: not self.is_running())
        self._crew.require_whole()

    def is_running(self) -> bool:
        """Whether there is work left."""
        return bool(self._queue) or self._is_busy

    def is_stuck(self) -> bool:
        """Whether it goes on only after something else has: no work, a point that is not reached, or held work."""
        if self.held is not None:
            return True
        if self._waits_for is not None:
            return not self._waits_for.reached_ns
        return not self.is_running()

    def close(self) -> None:
        """Do what is queued, and end the thread."""
        with self._crew.changed:
            self._is_closed = True
            self._crew.changed.notify_all()
        self._crew.host_waits(lambda: not self.is_running())
        self._thread.join()

    def _put(self, item: _Work | _Wait | Point) -> None:
        with self._crew.changed:
            self._queue.append(item)
            self._crew.changed.notify_all()

    def _serve(self) -> None:
        changed = self._crew.changed
        while True:
            with changed:
                self._is_busy = False
                changed.notify_all()
                changed.wait_for(lambda: self._queue or self._is_closed)
                if not self._queue:
                    return
                item, self._is_busy = self._queue.popleft(), True
            match item:
                case Point():
                    self._crew.reach(item)
                case _Wait():
                    self._wait(item.point)
                case _Work():
                    self._work(item)

    def _wait(self, point: Point) -> None:
        with self._crew.changed:
            self._waits_for = point
            self._crew.changed.notify_all()
            self._crew.changed.wait_for(lambda: point.reached_ns)
            self._waits_for = None

    def _work(self, work: _Work) -> None:
        if self._poison:
            for span in work.fresh:
                bytes_of(span).fill(POISON_BYTE)
        self._put_off(work.number)
        if self._crew.failure is None:
            try:
                work.run()
            except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits for the work
                self._crew.fail(error)

    def _put_off(self, number: int) -> None:
        order, crew = self._crew.order, self._crew
        delay_s, rank = order.delay_s(self.name, number), order.rank(self.name, number)
        if delay_s:
            time.sleep(delay_s)
        if rank is not None:
            with crew.changed:
                self.held = rank, self.name
                crew.changed.notify_all()
                crew.changed.wait_for(lambda: crew.may_begin(self))
                self.held = None
