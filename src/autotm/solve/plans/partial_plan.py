"""A plan in the making: residencies of flows and entries of tables, and the fast bytes and engine time that they leave.

All bytes and nanoseconds of engines are integers here, so what this returns keeps the limits exactly, whatever
tolerances a solver had.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from autotm.solve.plans.conflicts import Conflicts
from autotm.solve.plans.engines import Engines
from autotm.solve.problem import Choices, Flow, Residency, all_slow, cost_us, fast_spans, occupy, required_bytes

PREFER_FAST_US = 1e-7
"""Far below a nanosecond: among equally fast plans, the one that leaves more in fast memory."""


class PartialPlan:
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

    @property
    def cost_us(self) -> float:
        """What all residencies and entries together cost beside the kernels that have no table."""
        flows = sum(cost_us(self.flows[index], residency) for index, residency in self.residencies.items())
        return flows + sum(self._time_us(number) for number in range(len(self.tables)))

    @property
    def fast_bytes(self) -> list[int]:
        """What the workspaces of each table's entry take from fast memory."""
        return [int(table.fast_bytes[entry]) for table, entry in zip(self.tables, self.entries, strict=True)]

    def copy(self) -> Self:
        """The same plan, to be changed by itself; what must not be fast together is shared."""
        other = copy.copy(self)
        other.residencies, other.slow, other.entries = dict(self.residencies), list(self.slow), list(self.entries)
        other.left, other.engines = self.left.copy(), self.engines.copy()
        return other

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
            self.choose(number, int(self.tables[number].fast_bytes[entry]))

    def rank(self, group: Sequence[int], tables: Collection[int]) -> float:
        """Cost of flows and tables, less a little for what is fast."""
        residencies = [self.residencies[index] for index in group]
        fast = sum(sum(residency.fast) + sum(residency.between) for residency in residencies)
        own = sum(cost_us(self.flows[index], residency) for index, residency in zip(group, residencies, strict=True))
        return own + sum(map(self._time_us, tables)) - PREFER_FAST_US * fast

    def fits(self, index: int, residency: Residency) -> bool:
        """Whether a flow that has none can have this residency in the memory that is left."""
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
            self.choose(tie.table, 0)

    def _follow(self, index: int, residency: Residency) -> None:
        """Tell the tables the flow's tiers; each takes the best entry that fits."""
        for tie in self.choices.ties[index]:
            bit = 1 << tie.operand
            others = self.slow[tie.table] & ~bit
            self.slow[tie.table] = others if residency.fast[tie.gadget] else others | bit
            self.choose(tie.table, self.room(tie.table))

    def room(self, number: int) -> int:
        """Bytes that a table's workspaces can take: what is left and what they have."""
        table = self.tables[number]
        return int(self.left[table.kernel]) + int(table.fast_bytes[self.entries[number]])

    def choose(self, number: int, room_bytes: int) -> bool:
        """Give a table the best entry for `room_bytes`; whether that changed it."""
        table, before = self.tables[number], self.entries[number]
        entry = table.best(self.slow[number], room_bytes)
        self.entries[number] = entry
        self.left[table.kernel] += int(table.fast_bytes[before] - table.fast_bytes[entry])
        return entry != before

    def choose_all(self) -> int:
        """Give every table that has a choice the best entry that fits; how many changed."""
        return sum(self.choose(number, self.room(number)) for number in self.menus)

    def _time_us(self, number: int) -> float:
        return float(self.tables[number].time_us[self.entries[number]])

    def _reserve(self, flow: Flow, sign: int) -> None:
        """Room for gadgets that have to be fast is kept from the start, so that every insertion order succeeds."""
        if any(flow.must):
            for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True):
                if must:
                    self.left[start:stop] -= sign * flow.size_bytes
