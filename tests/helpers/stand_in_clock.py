"""A clock that moves on only when it is read or waited for: tests count what was asked of it, and judge no time."""

from __future__ import annotations

import importlib
import threading
import time
from types import SimpleNamespace

import pytest

from autotm.memory.copies import AsyncCopy


class StandInClock:
    """Stands in for `time`, `time.perf_counter_ns` and `select`, in the modules that it is put into.

    Attributes:
        now_ns: what it shows.
        tick_ns, call_ns: how far each reading and each system call of a busy wait move it on, which else never ends.
        late_ns: how much later than asked a sleep returns.
        read_at_ns, called_at_ns: when it was read, and when a busy wait made a system call.
        slept_ns: how long each sleep was to last.
    """

    def __init__(self, tick_ns: int = 0, call_ns: int = 1000, late_ns: int = 0) -> None:
        self.now_ns = 0
        self.tick_ns, self.call_ns, self.late_ns = tick_ns, call_ns, late_ns
        self.read_at_ns: list[int] = []
        self.called_at_ns: list[int] = []
        self.slept_ns: list[int] = []
        self._lock = threading.Lock()
        self._may_sleep_on = threading.Event()
        self._may_sleep_on.set()

    def put_into(self, monkeypatch: pytest.MonkeyPatch, *modules: str) -> StandInClock:
        """Replace what these modules imported; the names are within autotm."""
        select = SimpleNamespace(select=self.select)
        for module in map(importlib.import_module, (f"autotm.{name}" for name in modules)):
            for name, stand_in in (("perf_counter_ns", self.perf_counter_ns), ("time", self), ("select", select)):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, stand_in)
        return self

    def hold_sleeps_until_a_copy_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Asynchronous copies take none of their time before a step waits for one, as if kernels took no time."""
        self._may_sleep_on.clear()
        wait = AsyncCopy.wait

        def waited_for(async_copy: AsyncCopy) -> None:
            self._may_sleep_on.set()
            wait(async_copy)
            self._may_sleep_on.clear()

        monkeypatch.setattr(AsyncCopy, "wait", waited_for)

    def advance(self, ns: float) -> int:
        """Advance the clock by `ns` and return its time after that."""
        with self._lock:
            self.now_ns += round(ns)
            return self.now_ns

    def perf_counter_ns(self) -> int:
        """What it shows."""
        now_ns = self.advance(self.tick_ns)
        self.read_at_ns.append(now_ns)
        return now_ns

    def perf_counter(self) -> float:
        """What it shows, in seconds."""
        return self.perf_counter_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass, and `late_ns` more; other threads run meanwhile."""
        time.sleep(0)
        self._may_sleep_on.wait()
        self.slept_ns.append(round(seconds * 1e9))
        self.advance(seconds * 1e9 + (self.late_ns if seconds else 0))

    def select(self, *_: object) -> None:
        """Let a system call's time pass."""
        self.called_at_ns.append(self.advance(self.call_ns))
