"""Legal plans from fractional or overfull ones: insert residencies one by one into the room that is left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autotm.solve.plans.conflicts import Member
from autotm.solve.plans.engines import Engine
from autotm.solve.plans.partial_plan import PREFER_FAST_US, PartialPlan
from autotm.solve.problem import Charges, Flow, Residency, Way, Window, all_slow

_SWEEPS = 4


class Repair(PartialPlan):
    """A plan that is completed and improved by what is best for one flow after the other."""

    def accept(self, proposed: Mapping[int, Residency], ways: Mapping[int, int]) -> None:
        """Take the proposed residencies that fit together, the larger tensors first, and then the proposed ways.

        Moves for which the engines have no time are blocking.
        """
        for index in sorted(proposed, key=lambda index: -self.flows[index].size_bytes):
            if self.fits(index, proposed[index]):
                self.insert(index, proposed[index])
        for number, way in ways.items():
            table = self.tables[number]
            first, end = table.groups[self.slow[number]]
            for entry in range(first, end):
                if int(table.way[entry]) == way:
                    self.choose(number, min(int(table.fast_bytes[entry]), self.room(number)))

    def complete(self) -> None:
        """Give every flow that has no residency yet its cheapest one in the memory that is left, then the tables."""
        for index in self.order:
            if index not in self.residencies:
                self.insert(index, self.best(index))
        self.choose_all()

    def improve(self) -> None:
        """Take out and re-insert each flow and entry in turn until nothing improves; never makes the plan slower."""
        for _ in range(_SWEEPS):
            improved = sum(self.exchange((index,)) for index in self.order if not self._is_settled(index))
            if not improved + self.choose_all():
                return

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

    def best(self, index: int) -> Residency:
        """The cheapest residency of a flow that has none in the memory and engine time that are left."""
        flow = self.flows[index]
        size = flow.size_bytes
        slow = list(flow.slow_us)
        fast = [
            -PREFER_FAST_US if must or self.left[start:stop].min() >= size else math.inf
            for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True)
        ]
        for tie in self.choices.ties[index]:
            table, bit = self.tables[tie.table], 1 << tie.operand
            room = self.room(tie.table)
            others = self.slow[tie.table] & ~bit
            slow[tie.gadget] += table.best_us(others | bit, room)
            fast[tie.gadget] += table.best_us(others, room - size)
        between = [-PREFER_FAST_US if self._gap_fits(flow, k) else math.inf for k in range(len(flow) - 1)]
        if fast.count(math.inf) == len(fast):
            return all_slow(flow)
        gaps = range(len(flow) - 1)
        out = [self._way(flow, flow.out[k], self.engines.out, flow.write_us) for k in gaps]
        back = [self._way(flow, flow.back[k], self.engines.back, flow.read_us) for k in gaps]
        return self.conflicts.best(index, Charges(slow, fast, between, out, back), self.residencies)

    def _way(
        self,
        flow: Flow,
        windows: tuple[Window, ...],
        engine: Engine,
        blocking_us: float,
    ) -> Way:
        """The shortest window that memory and engine have room for; else the copy is blocking."""
        for window in windows:
            if self.left[window.start : window.end].min() >= flow.size_bytes and engine.make_room(window):
                return window.added_us, window
        return blocking_us, None

    def _gap_fits(self, flow: Flow, k: int) -> bool:
        start, end = flow.gap(k)
        return start >= end or bool(self.left[start:end].min() >= flow.size_bytes)
