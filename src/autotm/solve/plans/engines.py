"""A copying engine's time in a search: which move has it during which kernel.

A set of windows can be kept if each move gets its work's time within its window, shared out in whole nanoseconds.
Moves that have time elsewhere in their windows give way to others: an augmenting path, as for a maximum flow (Ford and
Fulkerson, 1956), so that a move is refused only if no sharing admits it beside those that are there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from autotm.solve.problem import Ints, Residency, Span, Window

Key = tuple[int, int]
"""Who moves: (index of the flow, gadget after the gap)."""


class _Shift(NamedTuple):
    """A move that gives up time during `kernel` for as much during kernel `to`."""

    key: Key
    kernel: int
    to: int


class Engine:
    """The time of one engine that no move has taken, by kernel, and who has the rest.

    Of those who have time during a kernel, `_from` and `_to` say how far their windows reach together.
    """

    def __init__(self, kernel_ns: Sequence[int]) -> None:
        self._free: Ints = np.array(kernel_ns, np.int64)
        self._windows: dict[Key, Window] = {}
        self._shares: list[dict[Key, int]] = [{} for _ in kernel_ns]
        self._from: Ints = np.arange(len(self._free))
        self._to: Ints = self._from + 1
        self._log: list[Callable[[], None]] | None = None

    def copy(self) -> Engine:
        """The same, to be changed by itself."""
        other = copy.copy(self)
        other.__dict__.update(
            _free=self._free.copy(),
            _windows=dict(self._windows),
            _shares=[dict(shares) for shares in self._shares],
            _from=self._from.copy(),
            _to=self._to.copy(),
            _log=None,
        )
        return other

    @property
    def windows(self) -> Mapping[Key, Window]:
        """Of the moves that have their time."""
        return self._windows

    def mark(self) -> None:
        """From here on changes can be taken back."""
        self._log = []

    def roll_back(self) -> None:
        """Take back what was changed since the mark."""
        assert self._log is not None
        log, self._log = self._log, None
        for undo in reversed(log):
            undo()

    def take(self, key: Key, window: Window) -> bool:
        """Give a move its time, others giving way; `False` if there is none for it."""
        if not self.make_room(window):
            return False
        self._enter(key, window)
        missing, kernel = window.work_ns, window.start
        while missing:
            kernel += int((self._free[kernel : window.end] > 0).argmax())
            taken = min(missing, int(self._free[kernel]))
            self._share(kernel, key, taken)
            missing -= taken
            kernel += 1
        return True

    def give(self, key: Key) -> None:
        """Take a move's time back; nothing if it has none."""
        window = self._windows.get(key)
        if window is None:
            return
        for kernel in range(window.start, window.end):
            if key in self._shares[kernel]:
                self._share(kernel, key, 0)
        self._enter(key, None)

    def make_room(self, window: Window) -> bool:
        """Whether there is time for a move in a window, after others gave way."""
        while (missing_ns := window.work_ns - int(self._free[window.start : window.end].sum())) > 0:
            path = self._way_out(window)
            if not path:
                return False
            most_ns = min(missing_ns, int(self._free[path[0].to]), *(self._shares[at.kernel][at.key] for at in path))
            for at in path:
                self._share(at.to, at.key, self._shares[at.to].get(at.key, 0) + most_ns)
                self._share(at.kernel, at.key, self._shares[at.kernel][at.key] - most_ns)
        return True

    def _way_out(self, window: Window) -> list[_Shift]:
        """Moves that can each take the place of the next, from a free kernel outside of the window to one within it.

        Whoever holds time within a span can go as far as their windows reach, whose union is a span again.
        """
        low, high = window.start, window.end
        reached = [(low, high)]
        while True:
            wider = int(self._from[low:high].min()), int(self._to[low:high].max())
            if wider == (low, high):
                return []
            after = self._free[high : wider[1]].nonzero()[0]
            before = self._free[wider[0] : low].nonzero()[0]
            if len(after) or len(before):
                return self._back(high + int(after[0]) if len(after) else wider[0] + int(before[-1]), reached)
            low, high = wider
            reached.append(wider)

    def _back(self, free: int, reached: list[Span]) -> list[_Shift]:
        path = []
        for low, high in reversed(reached):
            if free >= high:
                kernel = low + int(self._to[low:high].argmax())
                key = max(self._shares[kernel], key=lambda key: self._windows[key].end)
            elif free < low:
                kernel = low + int(self._from[low:high].argmin())
                key = min(self._shares[kernel], key=lambda key: self._windows[key].start)
            else:
                continue
            path.append(_Shift(key, kernel, free))
            free = kernel
        return path

    def _share(self, kernel: int, key: Key, time_ns: int) -> None:
        shares = self._shares[kernel]
        before_ns = shares.get(key, 0)
        if self._log is not None:
            self._log.append(partial(self._share, kernel, key, before_ns))
        self._free[kernel] += before_ns - time_ns
        if time_ns:
            shares[key] = time_ns
        else:
            shares.pop(key, None)
        if time_ns and before_ns:
            return
        self._from[kernel] = min((self._windows[key].start for key in shares), default=kernel)
        self._to[kernel] = max((self._windows[key].end for key in shares), default=kernel + 1)

    def _enter(self, key: Key, window: Window | None) -> None:
        if self._log is not None:
            self._log.append(partial(self._enter, key, self._windows.get(key)))
        if window is None:
            self._windows.pop(key, None)
        else:
            self._windows[key] = window


class Engines:
    """Both engines of a search."""

    def __init__(self, kernel_ns: Sequence[int]) -> None:
        self.out = Engine(kernel_ns)
        self.back = Engine(kernel_ns)

    def copy(self) -> Engines:
        """The same, to be changed by themselves."""
        other = copy.copy(self)
        other.out, other.back = self.out.copy(), self.back.copy()
        return other

    def mark(self) -> None:
        """From here on changes can be taken back."""
        self.out.mark()
        self.back.mark()

    def roll_back(self) -> None:
        """Take back what was changed since the mark."""
        self.out.roll_back()
        self.back.roll_back()

    def take(self, index: int, residency: Residency) -> Residency:
        """Give a flow's moves their time; those that there is none for are blocking in the residency returned."""
        out = residency.out if residency.out and self.out.take((index, residency.first_leave), residency.out) else None
        back = tuple((k, window) for k, window in residency.back if self.back.take((index, k), window))
        return residency.beside(out, back)

    def give(self, index: int, residency: Residency) -> None:
        """Take the time of a flow's moves back."""
        if residency.out is not None:
            self.out.give((index, residency.first_leave))
        for k, _ in residency.back:
            self.back.give((index, k))
