"""Legal plans in integers from fractional or overfull ones: conflicts, the time of engines, and repair."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from autotm.model.graph import Tier
from autotm.model.plan import Stay
from autotm.solve.choices import Choices, Span, TensorChoices, Window, required_bytes
from autotm.solve.problem import Ints
from autotm.solve.residencies import (
    Charges,
    PricedCopy,
    Residency,
    all_slow,
    best_residency,
    best_value,
    cost_us,
    fast_spans,
    occupy,
)

Member = tuple[int, int, int]
"""A flow that is fast at gadgets [first, last] and over the gaps between: (flow, first, last)."""


class Conflicts:
    """Sets of stays in fast memory that have no addresses together, although their bytes fit.

    Packing finds them (`layout/addresses.py`). No plan is tried that has all members of one.
    """

    def __init__(self, flows: Sequence[TensorChoices]) -> None:
        self._flows = flows
        self._by_name = {flow.tensor: index for index, flow in enumerate(flows)}
        self._sets: list[tuple[Member, ...]] = []
        self._of: dict[int, list[int]] = defaultdict(list)

    def add(self, stays: Iterable[Stay]) -> tuple[Member, ...]:
        """Take over a conflict; workspaces, which come with their kernels, are no members.

        Returns:
            its members; nothing is taken over where there are none.
        """
        members = []
        for stay in stays:
            if stay.tier is Tier.FAST and stay.tensor in self._by_name:
                flow = self._flows[index := self._by_name[stay.tensor]]
                inside = [k for k in range(len(flow)) if stay.start <= flow.starts[k] and flow.stops[k] <= stay.end]
                members.append((index, inside[0], inside[-1]))
        if members:
            for index, _, _ in members:
                self._of[index].append(len(self._sets))
            self._sets.append(tuple(members))
        return tuple(members)

    def __len__(self) -> int:
        return len(self._sets)

    def forget(self, count: int) -> None:
        """Keep the first `count` sets only."""
        del self._sets[count:]
        for index, numbers in self._of.items():
            self._of[index] = [number for number in numbers if number < count]

    def allow(self, index: int, residency: Residency, others: Mapping[int, Residency]) -> bool:
        """Return whether a flow's residency completes no conflict with the residencies of the others."""
        return not any(holds(residency, member) for member in self._left_to(index, others))

    def best(self, index: int, charges: Charges, others: Mapping[int, Residency]) -> Residency:
        """Return the flow's cheapest residency that completes no conflict; where it has to be fast, the cheapest."""
        flow = self._flows[index]
        residency = best_residency(flow, charges)
        for member in self._left_to(index, others):
            if holds(residency, member):
                others_us = [(best_value(flow, other), other) for other in _without(flow, charges, member)]
                possible = [pair for pair in others_us if pair[0] < math.inf]
                charges = min(possible, key=lambda pair: pair[0], default=(0.0, charges))[1]
                residency = best_residency(flow, charges)
        return residency

    def _left_to(self, index: int, others: Mapping[int, Residency]) -> list[Member]:
        """List stays in fast memory that the flow must not have, since each completes a conflict with other flows."""
        left = []
        for number in self._of.get(index, ()):
            mine = [member for member in self._sets[number] if member[0] == index]
            rest = [member for member in self._sets[number] if member[0] != index]
            if all(member[0] in others and holds(others[member[0]], member) for member in rest):
                left += mine[:1]
        return left


def holds(residency: Residency, member: Member) -> bool:
    """Return whether the residency is fast wherever the member says."""
    _, first, last = member
    return all(residency.fast[first : last + 1]) and all(residency.between[first:last])


def _without(flow: TensorChoices, charges: Charges, member: Member) -> list[Charges]:
    """Return charges, each of which forbids one part of the member: fast memory at a gadget, or over a gap."""
    _, first, last = member
    fast, between = list(charges.fast_us), list(charges.between_us)
    at = [k for k in range(first, last + 1) if not flow.must[k]]
    without = [replace(charges, fast_us=[*fast[:k], math.inf, *fast[k + 1 :]]) for k in at]
    return without + [
        replace(charges, between_us=[*between[:k], math.inf, *between[k + 1 :]]) for k in range(first, last)
    ]


Key = tuple[int, int]
"""Who moves: (index of the flow, gadget after the gap)."""


class _Shift(NamedTuple):
    """A move that gives up time during `kernel` for as much during kernel `to`."""

    key: Key
    kernel: int
    to: int


class Engine:
    """The engine time that no move has taken, by kernel, and the moves that have the rest.

    A set of windows can be kept if each move gets its work's time within its window, shared out in whole nanoseconds.
    A move is refused only if no sharing admits it along with those present. Moves that have time elsewhere in their
    windows give way to it: an augmenting path, as for a maximum flow (Ford and Fulkerson, 1956).

    Of those who have time during a kernel, `_from` and `_to` say how far their windows reach together.
    """

    def __init__(self, kernel_ns: Sequence[int]) -> None:
        self._free: Ints = np.array(kernel_ns, np.int64)
        self._until_ns: Sequence[int] = [0, *accumulate(map(int, kernel_ns))]
        self.windows: dict[Key, Window] = {}
        """Of the moves that have their time."""
        self._shares: list[dict[Key, int]] = [{} for _ in kernel_ns]
        self._from: Ints = np.arange(len(self._free))
        self._to: Ints = self._from + 1
        self._log: list[Callable[[], None]] | None = None

    def copy(self) -> Engine:
        """Return a copy that changes by itself."""
        other = copy.copy(self)
        other.__dict__.update(
            _free=self._free.copy(),
            windows=dict(self.windows),
            _shares=[dict(shares) for shares in self._shares],
            _from=self._from.copy(),
            _to=self._to.copy(),
            _log=None,
        )
        return other

    def mark(self) -> None:
        """Log changes from here on, so that `roll_back` can undo them."""
        self._log = []

    def roll_back(self) -> None:
        """Undo all changes since `mark`."""
        assert self._log is not None
        log, self._log = self._log, None
        for undo in reversed(log):
            undo()

    def take(self, key: Key, window: Window) -> bool:
        """Give a move its time, after moving others' time where needed; return `False` if there is not enough."""
        if not self.has_time(window):
            return False
        self._free_window(window)
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
        """Free a move's time; do nothing if it has none."""
        window = self.windows.get(key)
        if window is None:
            return
        for kernel in range(window.start, window.end):
            if key in self._shares[kernel]:
                self._share(kernel, key, 0)
        self._enter(key, None)

    def has_time(self, window: Window) -> bool:
        """Return whether a move and those that have their time can all keep their windows.

        The one that must be complete first is served first; that fails only where nothing succeeds (Horn, Naval
        Research Logistics Quarterly 21, 1974). Only those compete that can move time into the window.
        """
        if self._missing_ns(window) <= 0:
            return True
        *_, (low, high) = self._reach(window)
        jobs = [one for one in self.windows.values() if low <= one.start and one.end <= high]
        jobs = sorted([*jobs, window], key=lambda job: job.start)
        starts_ns = [*(self._until_ns[job.start] for job in jobs), self._until_ns[-1] + 1]  # The last: after all ends.
        waiting: list[tuple[int, int]] = []  # Of each job, its end, and the nanoseconds that are left of it.
        now_ns = 0
        for job, (start_ns, next_ns) in zip(jobs, pairwise(starts_ns), strict=True):
            heappush(waiting, (self._until_ns[job.end], job.work_ns))
            now_ns = max(now_ns, start_ns)
            while waiting and now_ns < next_ns:
                end_ns, left_ns = heappop(waiting)
                done_ns = now_ns + left_ns
                if done_ns > end_ns:
                    return False
                now_ns = min(done_ns, next_ns)
                if now_ns < done_ns:
                    heappush(waiting, (end_ns, done_ns - now_ns))
        return True

    def _free_window(self, window: Window) -> None:
        """Move other moves' time out of a window that has time until its move fits."""
        while (missing_ns := self._missing_ns(window)) > 0:
            path = self._augmenting_path(window)
            most_ns = min(missing_ns, int(self._free[path[0].to]), *(self._shares[at.kernel][at.key] for at in path))
            for at in path:
                self._share(at.to, at.key, self._shares[at.to].get(at.key, 0) + most_ns)
                self._share(at.kernel, at.key, self._shares[at.kernel][at.key] - most_ns)

    def _missing_ns(self, window: Window) -> int:
        return window.work_ns - int(self._free[window.start : window.end].sum())

    def _augmenting_path(self, window: Window) -> list[_Shift]:
        """Return moves that can each take the next one's place, from a free kernel outside the window to one in it."""
        wider = self._reach(window)
        reached = [next(wider)]
        for low, high in wider:
            begun, ended = reached[-1]
            if self._free[ended:high].any():
                return self._back(ended + int((self._free[ended:high] > 0).argmax()), reached)
            if self._free[low:begun].any():
                return self._back(low + int(self._free[low:begun].nonzero()[0][-1]), reached)
            reached.append((low, high))
        raise AssertionError("a window that has time has a path to it")

    def _reach(self, window: Window) -> Iterator[Span]:
        """Yield a window, and the spans that its kernels' time can be moved to in one step, two steps, and so on.

        Whoever holds time within a span can go as far as their windows reach, whose union is a span again.
        """
        low, high = window.start, window.end
        first, end = int(self._from[low:high].min()), int(self._to[low:high].max())
        yield low, high
        while first < low or end > high:
            new = [self._from[first:low], self._from[high:end]], [self._to[first:low], self._to[high:end]]
            low, high = first, end
            yield low, high
            first = min(low, *(int(part.min()) for part in new[0] if len(part)))
            end = max(high, *(int(part.max()) for part in new[1] if len(part)))

    def _back(self, free: int, reached: list[Span]) -> list[_Shift]:
        path = []
        for low, high in reversed(reached):
            if free >= high:
                kernel = low + int(self._to[low:high].argmax())
                key = max(self._shares[kernel], key=lambda key: self.windows[key].end)
            elif free < low:
                kernel = low + int(self._from[low:high].argmin())
                key = min(self._shares[kernel], key=lambda key: self.windows[key].start)
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
        self._from[kernel] = min((self.windows[key].start for key in shares), default=kernel)
        self._to[kernel] = max((self.windows[key].end for key in shares), default=kernel + 1)

    def _enter(self, key: Key, window: Window | None) -> None:
        if self._log is not None:
            self._log.append(partial(self._enter, key, self.windows.get(key)))
        if window is None:
            self.windows.pop(key, None)
        else:
            self.windows[key] = window


class Engines:
    """Both engines of a search."""

    def __init__(self, kernel_ns: Sequence[int]) -> None:
        self.out = Engine(kernel_ns)
        self.back = Engine(kernel_ns)

    def copy(self) -> Engines:
        """Return copies that change by themselves."""
        other = copy.copy(self)
        other.out, other.back = self.out.copy(), self.back.copy()
        return other

    def mark(self) -> None:
        """Log changes from here on, so that `roll_back` can undo them."""
        self.out.mark()
        self.back.mark()

    def roll_back(self) -> None:
        """Undo all changes since `mark`."""
        self.out.roll_back()
        self.back.roll_back()

    def take(self, index: int, residency: Residency) -> Residency:
        """Give a flow's moves engine time; return the residency, in which moves without any are blocking."""
        out = residency.out if residency.out and self.out.take((index, residency.first_leave), residency.out) else None
        back = tuple((k, window) for k, window in residency.back if self.back.take((index, k), window))
        return residency.with_windows(out, back)

    def give(self, index: int, residency: Residency) -> None:
        """Free the engine time of a flow's moves."""
        if residency.out is not None:
            self.out.give((index, residency.first_leave))
        for k, _ in residency.back:
            self.back.give((index, k))


_PREFER_FAST_US = 1e-7
"""Far below a nanosecond: among equally fast plans, the one that leaves more in fast memory."""
_SWEEPS = 4  # at most; it ends before, once nothing improves


class PlanBuilder:
    """A plan in the making: residencies of flows and entries of tables, and the fast bytes and engine time left.

    It is completed and improved by the best choice of one flow after another. All bytes and nanoseconds of engines are
    integers, so it keeps the limits exactly, whatever tolerances a solver had. A flow that has no residency yet is
    slow; a table has the entry that its operands' tiers leave it, at first with the leanest workspaces.

    Attributes:
        residencies: by index of the flow.
        entries: by number of the table.
        left: fast bytes free during each kernel.
        worth: per flow, the cost of slow memory for each of its bytes.
        engines: the copying engines' time, and the moves that have it.
        conflicts: stays that must not be fast together.
    """

    def __init__(self, choices: Choices, limit_bytes: int, kernels: int, conflicts: Conflicts | None = None) -> None:
        self.choices = choices
        self.conflicts = Conflicts(choices.flows) if conflicts is None else conflicts
        self.flows = choices.flows
        self.tables = choices.tables
        self.residencies: dict[int, Residency] = {}
        self.slow = [2 ** len(table.operands) - 1 for table in self.tables]
        self.entries = [table.best(slow, 0) for table, slow in zip(self.tables, self.slow, strict=True)]
        self.left: npt.NDArray[np.int64] = limit_bytes - required_bytes(choices, kernels)
        self.engines = Engines(choices.kernel_ns)
        costs = zip(choices.most_us, self.flows, strict=True)
        self.worth = [sum(most_us) / flow.size_bytes for most_us, flow in costs]
        self.order = sorted(range(len(self.flows)), key=lambda index: -self.worth[index])
        self.menus = [number for number, table in enumerate(self.tables) if len(table) > len(table.groups)]

    @property
    def cost_us(self) -> float:
        """The cost of all residencies and entries together; the kernels that have no table come on top."""
        flows = sum(cost_us(self.flows[index], residency) for index, residency in self.residencies.items())
        return flows + sum(self._time_us(number) for number in range(len(self.tables)))

    def cost_of(self, group: Iterable[int]) -> float:
        """Return the cost of some residencies and of the entries that they are tied to."""
        tables = {tie.table for index in group for tie in self.choices.ties[index]}
        flows = sum(cost_us(self.flows[index], self.residencies[index]) for index in group)
        return flows + sum(map(self._time_us, tables))

    @property
    def fast_bytes(self) -> list[int]:
        """Bytes of fast memory that the workspaces of each table's entry take."""
        return [int(table.fast_bytes[entry]) for table, entry in zip(self.tables, self.entries, strict=True)]

    def copy(self) -> Self:
        """Copy the plan, so that it can change by itself; both share their conflicts."""
        other = copy.copy(self)
        other.residencies, other.slow, other.entries = dict(self.residencies), list(self.slow), list(self.entries)
        other.left, other.engines = self.left.copy(), self.engines.copy()
        return other

    def marked(self, group: Collection[int]) -> tuple[dict[int, Residency], dict[int, int]]:
        """Mark the present state; return the residencies of these flows and the entries of their tables, for `undo`."""
        self.engines.mark()
        tables = {tie.table for index in group for tie in self.choices.ties[index]}
        return {index: self.residencies[index] for index in group}, {number: self.entries[number] for number in tables}

    def undo(self, before: Mapping[int, Residency], entries: Mapping[int, int]) -> None:
        """Restore flows and tables to the state in which the engines were marked."""
        for index in before:
            self._release(index)
        self.engines.roll_back()
        for index, residency in before.items():
            self._hold(index, residency)
        for number, entry in entries.items():
            self.choose(number, int(self.tables[number].fast_bytes[entry]))

    def rank(self, group: Collection[int]) -> float:
        """Return the cost of flows and of their tables' entries, less a little for each fast gadget and gap."""
        residencies = [self.residencies[index] for index in group]
        fast = sum(sum(residency.fast) + sum(residency.between) for residency in residencies)
        return self.cost_of(group) - _PREFER_FAST_US * fast

    def fits(self, index: int, residency: Residency) -> bool:
        """Return whether a flow without a residency can have this one in the memory that is left."""
        flow = self.flows[index]
        self._reserve(flow, -1)
        has_memory = all(self.left[start:end].min() >= flow.size_bytes for start, end in fast_spans(flow, residency))
        self._reserve(flow, 1)
        return has_memory and self.conflicts.allow(index, residency, self.residencies)

    def insert(self, index: int, residency: Residency) -> None:
        """Give a flow that has none a residency that fits; moves for which engines have no time are blocking."""
        self._hold(index, self.engines.take(index, residency))

    def remove(self, index: int) -> None:
        """Take a residency out; the tables that it is tied to fall back to their leanest variants."""
        self.engines.give(index, self.residencies[index])
        self._release(index)

    def _hold(self, index: int, residency: Residency) -> None:
        self._reserve(self.flows[index], -1)
        occupy(self.left, self.flows[index], residency, -1)
        self.residencies[index] = residency
        self._follow(index, residency)

    def _release(self, index: int) -> None:
        flow = self.flows[index]
        occupy(self.left, flow, self.residencies.pop(index))
        self._reserve(flow, 1)
        self._follow(index, all_slow(flow))
        for tie in self.choices.ties[index]:
            self.choose(tie.table, 0)

    def _follow(self, index: int, residency: Residency) -> None:
        """Update the flow's tiers in its tables; each takes the best entry that fits."""
        for tie in self.choices.ties[index]:
            bit = 1 << tie.operand
            others = self.slow[tie.table] & ~bit
            self.slow[tie.table] = others if residency.fast[tie.gadget] else others | bit
            self.choose(tie.table, self.available_bytes(tie.table))

    def available_bytes(self, number: int) -> int:
        """Return the fast bytes that a table's workspaces can take: those left and those that they already take."""
        table = self.tables[number]
        return int(self.left[table.kernel]) + int(table.fast_bytes[self.entries[number]])

    def choose(self, number: int, free_bytes: int) -> bool:
        """Give a table the best entry for `free_bytes`; return whether that changed it."""
        table, before = self.tables[number], self.entries[number]
        entry = table.best(self.slow[number], free_bytes)
        self.entries[number] = entry
        self.left[table.kernel] += int(table.fast_bytes[before] - table.fast_bytes[entry])
        return entry != before

    def choose_all(self) -> int:
        """Give every table that has a choice the best entry that fits; return how many changed."""
        return sum(self.choose(number, self.available_bytes(number)) for number in self.menus)

    def _time_us(self, number: int) -> float:
        return float(self.tables[number].time_us[self.entries[number]])

    def _reserve(self, flow: TensorChoices, sign: int) -> None:
        """Reserve memory for gadgets that must be fast, so that every insertion order succeeds; `sign` -1 frees it."""
        if any(flow.must):
            for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True):
                if must:
                    self.left[start:stop] -= sign * flow.size_bytes

    def accept(self, residencies: Mapping[int, Residency], variants: Mapping[int, int]) -> None:
        """Take the residencies that fit together, the larger tensors first, and then the variants.

        Moves for which the engines have no time are blocking.
        """
        for index in sorted(residencies, key=lambda index: -self.flows[index].size_bytes):
            if self.fits(index, residencies[index]):
                self.insert(index, residencies[index])
        for number, variant in variants.items():
            table = self.tables[number]
            first, end = table.groups[self.slow[number]]
            for entry in range(first, end):
                if int(table.variant[entry]) == variant:
                    self.choose(number, min(int(table.fast_bytes[entry]), self.available_bytes(number)))

    def complete(self) -> None:
        """Give every flow that has no residency yet its cheapest one in the memory that is left, then the tables."""
        for index in self.order:
            if index not in self.residencies:
                self.insert(index, self.best(index))
        self.choose_all()

    def improve(self) -> None:
        """Take out and re-insert each flow and entry in turn until nothing improves; never makes the plan slower."""
        for _ in range(_SWEEPS):
            improved = sum(self.exchange((index,)) for index in self.order if not self._is_best(index))
            if not improved + self.choose_all():
                return

    def exchange(self, group: Sequence[int]) -> bool:
        """Take out the flows of a group and re-insert them in this order; undo it and return `False` if not better."""
        before, entries = self.marked(group)
        before_rank = self.rank(group)
        for index in group:
            self.remove(index)
        for index in group:
            self.insert(index, self.best(index))
        if self.rank(group) < before_rank:
            return True
        self.undo(before, entries)
        return False

    def give_up(self, members: Sequence[Member]) -> None:
        """Break a conflict: change the residency of the flow that loses least by it, then improve the plan."""
        losses = {index: self._loss_us(index) for index in dict.fromkeys(index for index, _, _ in members)}
        loser = min(losses, key=lambda index: (losses[index], index))
        self.remove(loser)
        self.insert(loser, self.best(loser))
        self.improve()

    def _loss_us(self, index: int) -> float:
        """Return how much the cost grows when a flow leaves its present residency, now forbidden, for another one."""
        before, entries = self.marked((index,))
        rank = self.rank((index,))
        self.remove(index)
        self.insert(index, self.best(index))
        loss_us = self.rank((index,)) - rank
        self.undo(before, entries)
        return loss_us

    def _is_best(self, index: int) -> bool:
        """Return whether no other residency can be better."""
        residency, flow = self.residencies[index], self.flows[index]
        never_pays = min(flow.slow_us) >= 0 and not self.choices.ties[index]
        return never_pays and all(residency.fast) and all(residency.between)

    def best(self, index: int) -> Residency:
        """Return the cheapest residency, in the memory and engine time left, of a flow that has none."""
        flow = self.flows[index]
        size = flow.size_bytes
        slow = list(flow.slow_us)
        fast = [
            -_PREFER_FAST_US if must or self.left[start:stop].min() >= size else math.inf
            for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True)
        ]
        for tie in self.choices.ties[index]:
            table, bit = self.tables[tie.table], 1 << tie.operand
            free_bytes = self.available_bytes(tie.table)
            others = self.slow[tie.table] & ~bit
            slow[tie.gadget] += table.best_us(others | bit, free_bytes)
            fast[tie.gadget] += table.best_us(others, free_bytes - size)
        gaps = [flow.gap(k) for k in range(len(flow) - 1)]
        fits = (start >= end or self.left[start:end].min() >= size for start, end in gaps)
        between = [-_PREFER_FAST_US if one else math.inf for one in fits]
        if fast.count(math.inf) == len(fast):
            return all_slow(flow)
        out = [self._copy(flow, windows, self.engines.out, flow.write_us) for windows in flow.out]
        back = [self._copy(flow, windows, self.engines.back, flow.read_us) for windows in flow.back]
        return self.conflicts.best(index, Charges(slow, fast, between, out, back), self.residencies)

    def _copy(self, flow: TensorChoices, windows: tuple[Window, ...], engine: Engine, blocking_us: float) -> PricedCopy:
        """Return the shortest window with enough free memory and engine time; a blocking copy where none has."""
        for window in windows:
            if self.left[window.start : window.end].min() >= flow.size_bytes and engine.has_time(window):
                return window.added_us, window
        return blocking_us, None
