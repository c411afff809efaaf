"""Where a plan loses against the bound that prices prove.

The gap is a sum of terms none of which is below 0 (complementary slackness): what each flow's residency and each
table's entry cost more than their cheapest at these prices, and the price of memory and of engine time that the plan
leaves unused. Memory apart, this says which flows a search should turn to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotm.solve.bounds import Priced, SpanPrices
from autotm.solve.plans.engines import Engine
from autotm.solve.plans.repair import Repair
from autotm.solve.problem import Floats, Flow, Ints, Window


class Losses:
    """What a search can win by the flows of a program, at some prices."""

    def __init__(self, flows: Sequence[Flow], priced: Priced) -> None:
        self._flows = len(flows)
        self._priced = priced
        engines = priced.prices.engines
        self._out = _Idle(engines.out, [flow.out for flow in flows])
        self._back = _Idle(engines.back, [flow.back for flow in flows])

    def of_us(self, repair: Repair) -> Floats:
        """(flows,) What a plan loses by each, none below 0.

        The loss of an entry is its operands', that of idle engine time of the flows that could use it and do not.
        """
        lost_us = np.zeros(self._flows)
        for index, residency in repair.residencies.items():
            lost_us[index] = self._priced.regret_us(index, residency)
        for index, ties in enumerate(repair.choices.ties):
            for tie in ties:
                table, entry = repair.tables[tie.table], repair.entries[tie.table]
                regret_us = self._priced.entry_regret_us(tie.table, table, entry)
                lost_us[index] += regret_us / len(table.operands)
        lost_us += self._out.shared_us(repair.engines.out, self._flows)
        lost_us += self._back.shared_us(repair.engines.back, self._flows)
        return np.maximum(lost_us, 0.0)


class _Idle:
    """The flows that could use an engine within the spans that have a price."""

    def __init__(self, prices: SpanPrices, windows: Sequence[Sequence[Sequence[Window]]]) -> None:
        each = [(index, window) for index, gaps in enumerate(windows) for gap in gaps for window in gap]
        self._prices = prices
        owners: Ints = np.array([index for index, _ in each], np.int64)
        starts = np.array([window.start for _, window in each], np.int64)
        ends = np.array([window.end for _, window in each], np.int64)
        spans = zip(prices.starts.tolist(), prices.ends.tolist(), strict=True)
        self._users = [np.unique(owners[(starts >= start) & (ends <= end)]) for start, end in spans]

    def shared_us(self, engine: Engine, flows: int) -> Floats:
        """(flows,) The price of idle time, in equal shares."""
        unused_us = self._prices.unused_us(engine.windows.values())
        busy = np.array(sorted({index for index, _ in engine.windows}), np.int64)
        shared_us = np.zeros(flows)
        for span in np.flatnonzero(unused_us > 0).tolist():
            users = np.setdiff1d(self._users[span], busy, assume_unique=True)
            if len(users):
                shared_us[users] += unused_us[span] / len(users)
        return shared_us
