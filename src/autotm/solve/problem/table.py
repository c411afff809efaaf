"""A kernel's times as a table: one entry for each way to compute it and each placement of its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Way:
    """An implementation with its workspaces in fast or slow memory."""

    implementation: str
    fast_workspaces: tuple[str, ...] = ()
    slow_workspaces: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Table:
    """The entries of one kernel.

    Entries are sorted by operand placement, then ascending in bytes and descending in time: none is both larger and
    slower than another of the same placement.

    Attributes:
        kernel: its index.
        operands: the tensors whose tiers the entries tell apart.
        ways: implementations with their workspaces' tiers.
        slow: (entries,) bit o is set where operand o is in slow memory.
        time_us: (entries,)
        fast_bytes: (entries,) what the workspaces take from fast memory during the kernel.
        way: (entries,) index into `ways`.
        least_us, most_us: per operand, the least and the most that slow memory adds, all else being equal.
    """

    kernel: int
    operands: tuple[str, ...]
    ways: tuple[Way, ...]
    slow: Ints
    time_us: Floats
    fast_bytes: Ints
    way: Ints
    least_us: tuple[float, ...]
    most_us: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.slow)

    @cached_property
    def groups(self) -> Mapping[int, tuple[int, int]]:
        """Entries [first, last + 1) of each placement."""
        placements, firsts = np.unique(self.slow, return_index=True)
        ends = [*firsts[1:].tolist(), len(self.slow)]
        return dict(zip(placements.tolist(), zip(firsts.tolist(), ends, strict=True), strict=True))

    @cached_property
    def menus(self) -> Mapping[int, tuple[tuple[int, float], ...]]:
        """(bytes, microseconds) of the entries of each placement."""
        sizes, times = self.fast_bytes.tolist(), self.time_us.tolist()
        return {
            placement: tuple(zip(sizes[first:end], times[first:end], strict=True))
            for placement, (first, end) in self.groups.items()
        }

    @cached_property
    def least_bytes(self) -> int:
        """What the leanest way takes; the same for every placement."""
        return int(self.fast_bytes.min())

    @cached_property
    def most_bytes(self) -> int:
        """What the largest way takes."""
        return int(self.fast_bytes.max())

    def best(self, slow: int, room_bytes: int) -> int:
        """The fastest entry for a placement whose workspaces fit `room_bytes`; the leanest where none does."""
        first, end = self.groups[slow]
        if end - first == 1:
            return first
        return first + max(0, int(np.searchsorted(self.fast_bytes[first:end], room_bytes, side="right")) - 1)

    def best_us(self, slow: int, room_bytes: int) -> float:
        """The time of `best`."""
        menu = self.menus[slow]
        found = menu[0][1]
        for size, time_us in menu[1:]:
            if size > room_bytes:
                break
            found = time_us
        return found

    def restricted(self, known: Mapping[int, bool]) -> Table:
        """The entries in which operand o is slow exactly where `known[o]` says so."""
        kept = np.ones(len(self), bool)
        for operand, is_slow in known.items():
            kept &= (self.slow >> operand & 1).astype(bool) == is_slow
        return self._of(self.operands, self.slow, kept)

    def projected(self, columns: Sequence[int], *, free_bytes: bool) -> Table:
        """The least times over all operands but those in `columns`; with `free_bytes` memory does not matter."""
        slow = np.zeros(len(self), np.int64)
        for bit, operand in enumerate(columns):
            slow |= (self.slow >> operand & 1) << bit
        sizes = np.zeros_like(self.fast_bytes) if free_bytes else self.fast_bytes
        order = np.lexsort((self.time_us, sizes, slow))
        kept = undominated(slow[order], self.time_us[order])
        operands = tuple(self.operands[operand] for operand in columns)
        return self._of(operands, slow, order[kept])

    def _of(self, operands: tuple[str, ...], slow: Ints, kept: npt.NDArray[np.int64 | np.bool_]) -> Table:
        by_name = dict(zip(self.operands, zip(self.least_us, self.most_us, strict=True), strict=True))
        return Table(
            self.kernel,
            operands,
            self.ways,
            slow[kept],
            self.time_us[kept],
            self.fast_bytes[kept],
            self.way[kept],
            tuple(by_name[name][0] for name in operands),
            tuple(by_name[name][1] for name in operands),
        )


def undominated(slow: Ints, time_us: Floats) -> Ints:
    """Of entries sorted by placement, bytes, time: those faster than every leaner one of their placement."""
    kept, placement, fastest = [], -1, np.inf
    for entry, (here, entry_us) in enumerate(zip(slow.tolist(), time_us.tolist(), strict=True)):
        if here != placement or entry_us < fastest:
            kept.append(entry)
            placement, fastest = here, entry_us
    return np.array(kept, np.int64)
