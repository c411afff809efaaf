"""Legal plans from fractional or overfull ones: insert residencies one by one into the room that is left.

All bytes and nanoseconds of engines are integers here, so what this returns keeps the limits exactly, whatever
tolerances a solver had.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autotm.solve.plans.conflicts import Conflicts, Member
from autotm.solve.plans.engines import Engine, Engines
from autotm.solve.problem import (
    Charges,
    Choices,
    Flow,
    Residency,
    Way,
    Window,
    all_slow,
    cost_us,
    fast_spans,
    occupy,
    required_bytes,
)

_SWEEPS = 4
_PREFER_FAST_US = 1e-7
"""Far below a nanosecond: among equally fast plans, the one that leaves more in fast memory."""


class Repair:
    """Residencies of all flows and entries of all tables, together with the fast bytes left during each kernel.

    A flow that has no residency yet is slow; a table has the entry that its operands' tiers leave it, at first with the
    leanest workspaces.

    Attributes:
        residencies: by index of the flow.
        entries: by number of the table.
        left: fast bytes free during each kernel.
        worth: per flow, what slow memory costs for each of its bytes.
        engines: whose moves have the copying engines when.
        conflicts: what must not be fast together.
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

    def accept(self, proposed: Mapping[int, Residency], ways: Mapping[int, int]) -> None:
        """Take the proposed residencies that fit together, the larger tensors first, and then the proposed ways.

        Moves for which the engines have no time are blocking.
        """
        for index in sorted(proposed, key=lambda index: -self.flows[index].size_bytes):
            if self._fits(index, proposed[index]):
                self.insert(index, proposed[index])
        for number, way in ways.items():
            table = self.tables[number]
            first, end = table.groups[self.slow[number]]
            for entry in range(first, end):
                if int(table.way[entry]) == way:
                    self._choose(number, min(int(table.fast_bytes[entry]), self._room(number)))

    def complete(self) -> None:
        """Give every flow that has no residency yet its cheapest one in the memory that is left, then the tables."""
        for index in self.order:
            if index not in self.residencies:
                self.insert(index, self.best(index))
        self._choose_all()

    def improve(self) -> None:
        """Take out and re-insert each flow and entry in turn until nothing improves; never makes the plan slower."""
        for _ in range(_SWEEPS):
            improved = sum(self.exchange((index,)) for index in self.order if not self._is_settled(index))
            if not improved + self._choose_all():
                return

    @property
    def cost_us(self) -> float:
        """What all residencies and entries together cost beside the kernels that have no table."""
        flows = sum(cost_us(self.flows[index], residency) for index, residency in self.residencies.items())
        return flows + sum(self._time_us(number) for number in range(len(self.tables)))

    @property
    def fast_bytes(self) -> list[int]:
        """What the workspaces of each table's entry take from fast memory."""
        return [int(table.fast_bytes[entry]) for table, entry in zip(self.tables, self.entries, strict=True)]

    def copy(self) -> Repair:
        """The same plan, to be changed by itself; what must not be fast together is shared."""
        other = copy.copy(self)
        other.residencies, other.slow, other.entries = dict(self.residencies), list(self.slow), list(self.entries)
        other.left, other.engines = self.left.copy(), self.engines.copy()
        return other

    def exchange(self, group: Sequence[int]) -> bool:
        """Take out the flows of a group and re-insert them in this order; undone and `False` unless that is better."""
        before, entries = self.marked(group)
        before_rank = self.rank(group, entries)
        for index in group:
            self.remove(index)
        for index in group:
            self.insert(index, self.best(index))
        if self.rank(group, entries) < before_rank:
            return True
        self.undo(before, entries)
        return False

    def marked(self, group: Collection[int]) -> tuple[dict[int, Residency], dict[int, int]]:
        """What `undo` needs to take back what happens to these flows from here on."""
        self.engines.mark()
        tables = {tie.table for index in group for tie in self.choices.ties[index]}
        return {index: self.residencies[index] for index in group}, {number: self.entries[number] for number in tables}

    def undo(self, before: Mapping[int, Residency], entries: Mapping[int, int]) -> None:
        """Give flows and tables back what they had when the engines were marked."""
        for index in before:
            self._release(index)
        self.engines.roll_back()
        for index, residency in before.items():
            self._hold(index, residency)
        for number, entry in entries.items():
            self._choose(number, int(self.tables[number].fast_bytes[entry]))

    def give_up(self, members: Sequence[Member]) -> None:
        """Take what a conflict forbids away from the one of its members that this costs least, then improve."""
        losses = {index: self._loss_us(index) for index in dict.fromkeys(index for index, _, _ in members)}
        loser = min(losses, key=lambda index: (losses[index], index))
        self.remove(loser)
        self.insert(loser, self.best(loser))
        self.improve()

    def _loss_us(self, index: int) -> float:
        """What another residency than its present one, now forbidden, costs a flow."""
        before, entries = self.marked((index,))
        rank = self.rank((index,), entries)
        self.remove(index)
        self.insert(index, self.best(index))
        loss_us = self.rank((index,), entries) - rank
        self.undo(before, entries)
        return loss_us

    def _is_settled(self, index: int) -> bool:
        """Whether no other residency can be better."""
        residency, flow = self.residencies[index], self.flows[index]
        never_pays = min(flow.slow_us) >= 0 and not self.choices.ties[index]
        return never_pays and all(residency.fast) and all(residency.between)

    def rank(self, group: Sequence[int], tables: Collection[int]) -> float:
        """Cost of flows and tables, less a little for what is fast."""
        residencies = [self.residencies[index] for index in group]
        fast = sum(sum(residency.fast) + sum(residency.between) for residency in residencies)
        own = sum(cost_us(self.flows[index], residency) for index, residency in zip(group, residencies, strict=True))
        return own + sum(map(self._time_us, tables)) - _PREFER_FAST_US * fast

    def best(self, index: int) -> Residency:
        """The cheapest residency of a flow that has none in the memory and engine time that are left."""
        flow = self.flows[index]
        size = flow.size_bytes
        slow = list(flow.slow_us)
        fast = [
            -_PREFER_FAST_US if must or self.left[start:stop].min() >= size else math.inf
            for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True)
        ]
        for tie in self.choices.ties[index]:
            table, bit = self.tables[tie.table], 1 << tie.operand
            room = self._room(tie.table)
            others = self.slow[tie.table] & ~bit
            slow[tie.gadget] += table.best_us(others | bit, room)
            fast[tie.gadget] += table.best_us(others, room - size)
        between = [-_PREFER_FAST_US if self._gap_fits(flow, k) else math.inf for k in range(len(flow) - 1)]
        if fast.count(math.inf) == len(fast):
            return all_slow(flow)
        gaps = range(len(flow) - 1)
        out = [self._way(flow, flow.out[k], self.engines.out, flow.write_us, flow.beside_write_us) for k in gaps]
        back = [self._way(flow, flow.back[k], self.engines.back, flow.read_us, flow.beside_read_us) for k in gaps]
        return self.conflicts.best(index, Charges(slow, fast, between, out, back), self.residencies)

    def _way(
        self,
        flow: Flow,
        windows: tuple[Window, ...],
        engine: Engine,
        blocking_us: float,
        beside_us: float,
    ) -> Way:
        """The shortest window that memory and engine have room for; else the copy is blocking."""
        for window in windows:
            if self.left[window.start : window.end].min() >= flow.size_bytes and engine.make_room(window):
                return beside_us, window
        return blocking_us, None

    def _gap_fits(self, flow: Flow, k: int) -> bool:
        start, end = flow.gap(k)
        return start >= end or bool(self.left[start:end].min() >= flow.size_bytes)

    def _fits(self, index: int, residency: Residency) -> bool:
        flow = self.flows[index]
        self._reserve(flow, -1)
        room = all(int(self.left[start:end].min()) >= flow.size_bytes for start, end in fast_spans(flow, residency))
        self._reserve(flow, 1)
        return room and self.conflicts.allow(index, residency, self.residencies)

    def insert(self, index: int, residency: Residency) -> None:
        """Give a flow that has none a residency that fits; moves for which engines have no time are blocking."""
        self._hold(index, self.engines.take(index, residency))

    def remove(self, index: int) -> None:
        """Take a residency out; the tables that it is tied to fall back to their leanest ways."""
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
            self._choose(tie.table, 0)

    def _follow(self, index: int, residency: Residency) -> None:
        """Tell the tables the flow's tiers; each takes the best entry that fits."""
        for tie in self.choices.ties[index]:
            bit = 1 << tie.operand
            others = self.slow[tie.table] & ~bit
            self.slow[tie.table] = others if residency.fast[tie.gadget] else others | bit
            self._choose(tie.table, self._room(tie.table))

    def _room(self, number: int) -> int:
        """Bytes that a table's workspaces can take: what is left and what they have."""
        table = self.tables[number]
        return int(self.left[table.kernel]) + int(table.fast_bytes[self.entries[number]])

    def _choose(self, number: int, room_bytes: int) -> bool:
        """Give a table the best entry for `room_bytes`; whether that changed it."""
        table, before = self.tables[number], self.entries[number]
        entry = table.best(self.slow[number], room_bytes)
        self.entries[number] = entry
        self.left[table.kernel] += int(table.fast_bytes[before] - table.fast_bytes[entry])
        return entry != before

    def _choose_all(self) -> int:
        return sum(self._choose(number, self._room(number)) for number in self.menus)

    def _time_us(self, number: int) -> float:
        return float(self.tables[number].time_us[self.entries[number]])

    def _reserve(self, flow: Flow, sign: int) -> None:
        """Room for gadgets that have to be fast is kept from the start, so that every insertion order succeeds."""
        if any(flow.must):
            for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True):
                if must:
                    self.left[start:stop] -= sign * flow.size_bytes
