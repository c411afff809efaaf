"""Improving a legal plan: by ejection, and by inserting a few flows again where it loses against the bound."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from autotm.solve.choices import Choices, TensorChoices, Window
from autotm.solve.plans import PlanBuilder
from autotm.solve.prices import Priced, SpanPrices
from autotm.solve.problem import Floats, Ints
from autotm.solve.residencies import Residency, fast_spans

_TRIALS = 4000
"""Exchanges tried in all; about a second. Counted, not timed, so that results repeat."""
_GADGETS = 2
_RIVALS = 6
"""Exchanges tried for one tensor: at so many gadgets, with so many rivals each."""


def eject(builder: PlanBuilder) -> None:
    """Exchange pairs of flows while that helps: one that pays for slow memory takes the place of one that is fast.

    Never makes the plan slower.
    """
    if not (dearest := _dearest(builder)):  # So it is where operands must be fast, and listing holders takes seconds.
        return
    holders = _Holders(builder)
    trials = _TRIALS
    improved = True
    while improved and trials > 0:
        improved = False
        for index in dearest:
            for rival in _rivals(builder, holders, index):
                trials -= 1
                before = {flow: builder.residencies[flow] for flow in (index, rival)}
                if builder.exchange((index, rival)):
                    holders.update(before)
                    improved = True
                    break
            if trials <= 0:
                return
        dearest = _dearest(builder)


def _dearest(builder: PlanBuilder) -> list[int]:
    """Return the flows that pay for slow memory, the dearest first."""
    residencies = builder.residencies.items()
    cost_us = {index: sum(_slow_us(builder.choices, index, residency)) for index, residency in residencies}
    return sorted((index for index, us in cost_us.items() if us > 0), key=lambda index: (-cost_us[index], index))


class _Holders:
    """The flows that are fast during each kernel, in `at`."""

    def __init__(self, builder: PlanBuilder) -> None:
        self._builder = builder
        self.at: dict[int, set[int]] = defaultdict(set)
        for index, residency in builder.residencies.items():
            for kernel in self._kernels(index, residency):
                self.at[kernel].add(index)

    def update(self, before: dict[int, Residency]) -> None:
        """Follow flows from their residencies before to those they have now."""
        for index, residency in before.items():
            for kernel in self._kernels(index, residency):
                self.at[kernel].discard(index)
            for kernel in self._kernels(index, self._builder.residencies[index]):
                self.at[kernel].add(index)

    def _kernels(self, index: int, residency: Residency) -> list[int]:
        spans = fast_spans(self._builder.flows[index], residency)
        return [kernel for start, end in spans for kernel in range(start, end)]


def _slow_us(choices: Choices, index: int, residency: Residency) -> list[float]:
    """Return for each gadget the most microseconds that being fast there would save; 0 where it is fast already."""
    most_us = choices.most_us[index]
    return [0.0 if fast else us for us, fast in zip(most_us, residency.fast, strict=True)]


def _rivals(builder: PlanBuilder, holders: _Holders, index: int) -> list[int]:
    """List flows whose removal makes room for this one at the gadgets where it saves most, the least valuable first."""
    flow = builder.flows[index]
    slow_us = _slow_us(builder.choices, index, builder.residencies[index])
    rivals: dict[int, None] = {}
    for k in sorted(range(len(flow)), key=lambda k: -slow_us[k])[:_GADGETS]:
        if slow_us[k] <= 0 or not flow.may[k]:
            continue
        start, stop = flow.starts[k], flow.stops[k]
        tightest = start + int(builder.left[start:stop].argmin())
        missing = flow.size_bytes - int(builder.left[tightest])
        others = [other for other in holders.at[tightest] if other != index]
        large = [other for other in others if builder.flows[other].size_bytes >= missing]
        rivals.update(dict.fromkeys(sorted(large, key=lambda other: (builder.worth[other], other))[:_RIVALS]))
    return list(rivals)


class Losses:
    """Where a plan loses against the bound of some prices, and so which flows a search should turn to.

    The gap is a sum of terms none of which is below 0 (complementary slackness): what each flow's residency and each
    table's entry cost more than their cheapest at these prices, and the price of memory and of engine time that the
    plan leaves unused.
    """

    def __init__(self, flows: Sequence[TensorChoices], priced: Priced) -> None:
        self._flows = len(flows)
        self._priced = priced
        engines = priced.prices.engines
        self._out = engines.out, _users(engines.out, [flow.out for flow in flows])
        self._back = engines.back, _users(engines.back, [flow.back for flow in flows])

    def of_us(self, builder: PlanBuilder) -> Floats:
        """Return what a plan loses by each flow, never below 0 (flows,); unused memory counts as no loss.

        The loss of an entry is its operands', that of idle engine time of the flows that could use it and do not.
        """
        lost_us = np.zeros(self._flows)
        for index, residency in builder.residencies.items():
            lost_us[index] = self._priced.regret_us(index, residency)
        for index, ties in enumerate(builder.choices.ties):
            for tie in ties:
                table, entry = builder.tables[tie.table], builder.entries[tie.table]
                regret_us = self._priced.entry_regret_us(tie.table, table, entry)
                lost_us[index] += regret_us / len(table.operands)
        for (prices, users), engine in ((self._out, builder.engines.out), (self._back, builder.engines.back)):
            idle_us, unused_us = np.zeros(self._flows), prices.unused_us(engine.windows.values())
            busy = np.array(sorted({index for index, _ in engine.windows}), np.int64)
            for span in np.flatnonzero(unused_us > 0).tolist():
                free = np.setdiff1d(users[span], busy, assume_unique=True)
                if len(free):
                    idle_us[free] += unused_us[span] / len(free)
            lost_us += idle_us
        return np.maximum(lost_us, 0.0)


def _users(prices: SpanPrices, windows: Sequence[Sequence[Sequence[Window]]]) -> list[Ints]:
    """Return, by span with a price, the flows that could use the engine within it."""
    each = [(index, window) for index, gaps in enumerate(windows) for gap in gaps for window in gap]
    owners: Ints = np.array([index for index, _ in each], np.int64)
    starts = np.array([window.start for _, window in each], np.int64)
    ends = np.array([window.end for _, window in each], np.int64)
    spans = zip(prices.starts.tolist(), prices.ends.tolist(), strict=True)
    return [np.unique(owners[(starts >= start) & (ends <= end)]) for start, end in spans]


_TOGETHER = (2, 12)
"""Least and most flows taken out at once."""
_PATIENCE = 10
"""Rounds without improvement after which the search ends, as a multiple of the number of flows that matter."""
_FRESH = 300
"""Rounds after which losses are worked out anew."""
_PAYS = 0.1
"""Part of its distance to the bound that a plan has to lose in some time for the search to go on."""
_LEAST_WEIGHT = 0.02
"""Of a flow by which nothing is lost, in mean losses, where the first of a group is drawn; the others' is one more."""


def refine(
    builder: PlanBuilder,
    priced: Priced,
    deadline_s: float,
    target_us: float,
    seed: int,
    exchange: Callable[[Sequence[int]], bool] | None = None,
    pays_s: float = math.inf,
) -> None:
    """Improve the plan until it costs no more than `target_us`, `time.perf_counter` reaches `deadline_s`, or no more.

    Within each `pays_s` seconds it has to come closer to the bound by a part of its distance.

    A few flows that get in each other's way are taken out, and inserted in another order: a large neighbourhood search
    (Shaw, 1998) that draws flows by what the plan loses by them at the prices of the bound.

    `exchange` takes flows out and inserts them again if that helps; the plan's own, if not given. Only flows that could
    be cheaper than they are, and those that hold memory when they do, are taken out.
    """
    groups = _Groups(builder, priced, seed)
    if groups.count < _TOGETHER[0]:
        return
    rounds, idle, cost_us, before_us, due_s = 0, 0, builder.cost_us, math.inf, -math.inf
    while idle < _PATIENCE * groups.count and cost_us > target_us and (now := time.perf_counter()) < deadline_s:
        if now >= due_s:
            if cost_us - priced.bound_us > (1 - _PAYS) * before_us:
                return
            before_us, due_s = cost_us - priced.bound_us, now + pays_s
        if rounds % _FRESH == 0:
            groups.weigh()
            cost_us = builder.cost_us
        rounds += 1
        group = groups.draw()
        group_us = builder.cost_of(group)
        if (exchange or builder.exchange)(group):
            idle = 0
            cost_us += builder.cost_of(group) - group_us
        else:
            idle += 1


class _Groups:
    """Draws groups of flows that are alive at one kernel, in any order."""

    def __init__(self, builder: PlanBuilder, priced: Priced, seed: int) -> None:
        self._builder = builder
        self._losses = Losses(builder.flows, priced)
        self._byte_us = priced.prices.byte_us
        self._random = np.random.default_rng(seed)
        flows = enumerate(builder.flows)
        matter = [index for index, flow in flows if any(flow.out + flow.back) or any(flow.slow_us)]
        self._eligible: Ints = np.array(matter, np.int64)
        self._starts: Ints = np.array([builder.flows[index].starts[0] for index in matter], np.int64)
        self._stops: Ints = np.array([builder.flows[index].stops[-1] for index in matter], np.int64)
        self._weights: Floats = np.ones(len(matter))

    @property
    def count(self) -> int:
        """Flows that may be drawn."""
        return len(self._eligible)

    def weigh(self) -> None:
        """Draw by what the plan loses now."""
        lost_us = self._losses.of_us(self._builder)[self._eligible]
        if lost_us.any():
            self._weights = lost_us / lost_us.mean() + _LEAST_WEIGHT

    def draw(self) -> list[int]:
        """Draw a flow, and others alive at a kernel of its life; the kernel is drawn by the price of memory."""
        first = self._one_of(self._weights)
        start, stop = int(self._starts[first]), int(self._stops[first])
        byte_us = self._byte_us[start:stop]
        kernel = start + (self._one_of(byte_us) if byte_us.any() else int(self._random.integers(stop - start)))
        alive = (self._starts <= kernel) & (kernel < self._stops)
        alive[first] = False
        others = alive.nonzero()[0]
        count = min(len(others), int(self._random.integers(_TOGETHER[0] - 1, _TOGETHER[1])))
        weights = self._weights[others] + 1
        chosen = self._random.choice(others, count, replace=False, p=weights / weights.sum()) if count else others
        group: list[int] = self._random.permutation(self._eligible[[first, *chosen]]).tolist()
        return group

    def _one_of(self, weights: Floats) -> int:
        until = np.cumsum(weights)
        return int(np.searchsorted(until, self._random.random() * until[-1], side="right"))
