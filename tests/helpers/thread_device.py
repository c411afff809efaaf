"""A device made of threads and host memory: the order of streams and events tested with real concurrency."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.kernels.library import pinned
from autotm.memory.gpu.cuda_memory import DeviceMemory, Span
from autotm.memory.pool import POISON_BYTE, Pool
from autotm.model.errors import AutotmError
from autotm.model.graph import Tier
from autotm.model.machine import Machine

# When the work at the head of a stream begins: at once, after a delay, or when nothing else can.


@dataclass(frozen=True)
class Order:
    """Work begins as soon as its stream comes to it; the ways below are subclasses.

    Work is known by its stream's name and its number there since the device was opened, from 0; events have none.
    """

    def delay_s(self, _stream: str, _number: int) -> float:
        """Seconds that work is put off for."""
        return 0.0

    def rank(self, _stream: str, _number: int) -> float | None:
        """None, or: work begins only once the host waits and no other stream can go on; of several the least first."""
        return None


@dataclass(frozen=True)
class Delays(Order):
    """Work begins after a random while, at most `most_s`, so that streams overtake each other: real concurrency.

    Which work waits how long is drawn from `seed` and does not depend on what the threads do.
    """

    seed: int
    most_s: float = 0.0003

    def delay_s(self, stream: str, number: int) -> float:
        """Draw the delay of a piece of work; half of them are zero, so that late work is followed by prompt work."""
        drawn = random.Random(f"{self.seed}:{stream}:{number}").random()
        return max(0.0, 2 * drawn - 1) * self.most_s


@dataclass(frozen=True)
class Interleaving(Order):
    """One piece of work at a time, in an order drawn from all that events allow; by seed, the same on every machine."""

    seed: int

    def rank(self, stream: str, number: int) -> float | None:
        return random.Random(f"{self.seed}:{stream}:{number}").random()


@dataclass(frozen=True)
class Starving(Order):
    """One stream's work of a number, modulo a period, begins as late as events allow: after all that does not wait."""

    stream: str
    number: int
    period: int

    def rank(self, stream: str, number: int) -> float | None:
        return 0.0 if (stream, number % self.period) == (self.stream, self.number) else None


# Whether work that touches the same bytes is ordered: vector clocks, as in race detectors for threads.
#
# Every stream counts its work. An event carries, for each stream, how much of that stream's work is done once the event
# is reached; whoever waits for it knows as much. Work is ordered after other work if its stream knew of that when it
# was queued (Mattern, 1989). Two pieces of work of which one writes bytes that the other reads or writes must be
# ordered. That depends on what is queued alone, so a missing wait is found whatever the threads did.


class RaceError(AutotmError):
    """Work of two streams touches the same bytes, one of them writes, and no event orders them."""


@dataclass(frozen=True, slots=True)
class _Access:
    span: Span
    stream: str
    number: int
    writes: bool


class Races:
    """All work queued since the streams, which have these names, last stood still."""

    def __init__(self, streams: Sequence[str]) -> None:
        self._known = {name: dict.fromkeys(streams, 0) for name in streams}
        self._accesses: list[_Access] = []

    def recorded(self, stream: str) -> Mapping[str, int]:
        """Count the work of each stream that is done once an event recorded now is reached."""
        return dict(self._known[stream])

    def waited(self, stream: str, clock: Mapping[str, int]) -> None:
        """From now on work of `stream` comes after all that `clock` counts."""
        known = self._known[stream]
        for other, number in clock.items():
            known[other] = max(known[other], number)

    def queued(self, stream: str, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """Queue work that touches these bytes; RaceError: other work does, and neither comes after the other."""
        known = self._known[stream]
        known[stream] += 1
        touched = [_Access(span, stream, known[stream], writes=False) for span in reads]
        touched += [_Access(span, stream, known[stream], writes=True) for span in writes]
        for new, old in itertools.product(touched, self._accesses):
            if (new.writes or old.writes) and old.number > known[old.stream] and _overlap(new.span, old.span):
                raise RaceError(f"{new} and {old}: no event orders them")
        # What is known to all streams can no longer race with anything.
        done = {name: min(clock[name] for clock in self._known.values()) for name in known}
        self._accesses = [old for old in self._accesses if old.number > done[old.stream]] + touched

    def still(self) -> None:
        """All streams stand still: everything queued so far comes before everything that follows."""
        self._accesses = []
        done = {name: clock[name] for name, clock in self._known.items()}
        for clock in self._known.values():
            clock.update(done)


def _overlap(one: Span, other: Span) -> bool:
    starts_before = one.start < other.start + other.size_bytes and other.start < one.start + one.size_bytes
    return one.memory is other.memory and starts_before


# What the streams of a device of threads share: one lock, the points they wait for, and the first failure.


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
        failure: of the first work that failed; what follows is not run.
    """

    order: Order
    races: Races | None
    changed: threading.Condition = field(default_factory=threading.Condition)
    members: list[ThreadStream] = field(default_factory=list)
    failure: BaseException | None = None
    _waiting_hosts: int = 0

    def host_waits(self, is_over: Callable[[], bool]) -> None:
        """Hold the calling thread; work that is held back begins meanwhile, where nothing else can."""
        with self.changed:
            self._waiting_hosts += 1
            self.changed.notify_all()
            self.changed.wait_for(is_over)
            self._waiting_hosts -= 1

    def may_begin(self, member: ThreadStream) -> bool:
        """Whether its held work is next: the host waits, no other can go on, and none held is of lower rank."""
        others = [other for other in self.members if other is not member]
        if not self._waiting_hosts or member.held is None or not all(other.is_stuck() for other in others):
            return False
        return all(other.held is None or other.held > member.held for other in others)

    def require_whole(self) -> None:
        """Raise what failed."""
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


# Pools of a device of threads: ordinary memory, in which a byte that nobody wrote is a poisoned one.


class ThreadMemory(DeviceMemory):
    """As `CudaMemory`: ordinary memory; its views are NumPy arrays."""

    def __init__(self, name: str, tier: Tier, size_bytes: int) -> None:
        self._pool = Pool(tier, size_bytes)
        self._pool.poison(0, size_bytes)
        self.view = self._pool.view
        self.bytes = self.view(0, (size_bytes,), "uint8")
        super().__init__(None, name, size_bytes, int(self.bytes.ctypes.data))

    def close(self) -> None:
        self.bytes = np.empty(0, np.uint8)
        self._pool.close()


def bytes_of(span: Span) -> npt.NDArray[np.uint8]:
    """The bytes of a span of a device of threads."""
    span.memory.check(span.start, span.size_bytes)
    return span.memory.bytes[span.start : span.start + span.size_bytes]


# A stream that is a thread with a queue.


@dataclass(frozen=True, slots=True)
class _Work:
    run: Callable[[], None]
    number: int
    fresh: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Wait:
    point: Point


class ThreadStream:
    """As `CudaStream`.

    With `poison`, what work is about to write is overwritten before it is put off: who reads it too early reads that.
    `held` is rank and name of the stream while its next work is held back.
    """

    def __init__(self, name: str, crew: Crew, *, poison: bool) -> None:
        self.name, self.handle = name, 0
        self.held: tuple[float, str] | None = None
        self._crew, self._poison = crew, poison
        self._queue: deque[_Work | _Wait | Point] = deque()
        self._waits_for: Point | None = None
        self._is_busy = self._is_closed = False
        self._numbered = 0
        crew.members.append(self)
        self._thread = threading.Thread(target=self._serve, name=f"autotm-{name}", daemon=True)
        self._thread.start()

    def launch(self, work: Callable[[], None], reads: Sequence[Span] = (), writes: Sequence[Span] = ()) -> None:
        updated = {(id(span.memory), span.start) for span in reads}  # In place: not to be poisoned before.
        fresh = tuple(span for span in writes if (id(span.memory), span.start) not in updated)
        if self._crew.races is not None:
            self._crew.races.queued(self.name, reads, writes)
        self._put(_Work(work, self._numbered, fresh))
        self._numbered += 1

    def copy(self, destination: Span, source: Span) -> None:
        to, out_of = bytes_of(destination), bytes_of(source)
        if to.nbytes != out_of.nbytes:
            raise AutotmError(f"{self.name} stream: copy of {out_of.nbytes} bytes into {to.nbytes}")

        def copy() -> None:
            to[:] = out_of

        self.launch(copy, (source,), (destination,))

    def fill(self, span: Span, byte: int) -> None:
        array = bytes_of(span)
        self.launch(lambda: array.fill(byte), (), (span,))

    def record(self, event: ThreadEvent) -> None:
        races = self._crew.races
        point = Point(races.recorded(self.name) if races else {})
        event.point = point
        self._put(point)

    def wait(self, event: ThreadEvent) -> None:
        if event.point is None:
            return
        if self._crew.races is not None:
            self._crew.races.waited(self.name, event.point.clock)
        self._put(_Wait(event.point))

    def synchronize(self) -> None:
        self._crew.host_waits(lambda: not self.is_running())
        self._crew.require_whole()

    def is_running(self) -> bool:
        return bool(self._queue) or self._is_busy

    def is_stuck(self) -> bool:
        """Whether it goes on only after something else has: no work, a point that is not reached, or held work."""
        if self.held is not None:
            return True
        if self._waits_for is not None:
            return not self._waits_for.reached_ns
        return not self.is_running()

    def close(self) -> None:
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
                    with changed:
                        item.reached_ns = time.perf_counter_ns()
                        changed.notify_all()
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
                with self._crew.changed:
                    self._crew.failure = self._crew.failure or error

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


# The device: two pools, three streams, and the time between events by the clock of the processor.

STREAMS = ("compute", "inward", "outward")


class ThreadDevice(AbstractContextManager["ThreadDevice"]):
    """As `CudaDevice`, on a computer without a GPU; nothing of its times says anything about one.

    Args:
        device_bytes, host_bytes: of the pools that play device memory and the host's.
        order: when work begins.
        poison: what work is about to write is made NaN before it is put off.
        races: check that events order all work that touches the same bytes; see `Races`.
        machine: whose cores the compute stream's kernels run on; None: wherever the system puts them.
    """

    def __init__(
        self,
        device_bytes: int,
        host_bytes: int,
        *,
        order: Order | None = None,
        poison: bool = False,
        races: bool = False,
        machine: Machine | None = None,
    ) -> None:
        self.name = "threads"
        self.device_pool = ThreadMemory("device", Tier.FAST, device_bytes)
        self.host_pool = ThreadMemory("host", Tier.SLOW, host_bytes)
        self._races = Races(STREAMS) if races else None
        self._crew = Crew(order or Order(), self._races)
        self.compute, self.inward, self.outward = (ThreadStream(name, self._crew, poison=poison) for name in STREAMS)
        self._cores = ExitStack()
        if machine is not None:
            # TVM makes a pool of threads for each thread that calls its kernels: here for the stream's.
            self.compute.launch(lambda: self._cores.enter_context(pinned(machine)))
            self.synchronize()

    def event(self, **_: bool) -> ThreadEvent:
        return ThreadEvent(self._crew)

    def elapsed_ns(self, start: ThreadEvent, end: ThreadEvent) -> int:
        if not (start.point and end.point and start.point.reached_ns and end.point.reached_ns):
            raise AutotmError("device of threads: the time was asked of an event that is not recorded, or not reached")
        return end.point.reached_ns - start.point.reached_ns

    def read(self, span: Span) -> npt.NDArray[Any]:
        return bytes_of(span).copy()

    def write(self, span: Span, array: npt.NDArray[Any]) -> None:
        if array.nbytes != span.size_bytes:
            raise AutotmError(f"{span.memory.name} pool: {array.nbytes} bytes for a span of {span.size_bytes}")
        bytes_of(span)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def synchronize(self) -> None:
        self._crew.host_waits(lambda: not any(stream.is_running() for stream in self._crew.members))
        if self._races is not None:
            self._races.still()
        self._crew.require_whole()

    def close(self) -> None:
        self.compute.launch(self._cores.close)
        for stream in self._crew.members:
            stream.close()
        self.device_pool.close()
        self.host_pool.close()

    def __exit__(self, *_: object) -> None:
        self.close()
