"""The cheapest journeys of all tensors at once when fast memory is rented, and a lost tensor may be computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.solve.flow import Flow
from autotm.solve.table import Floats, Ints

_BORN, _COPIED, _SLOW = range(3)
"""In fast memory without a slow copy; in fast memory with one; in slow memory only."""
_NEVER = 1e18
"""A cost that no journey takes; finite, so that differences stay numbers."""


class Rented:
    """Flows as arrays (tensors, gadgets), the gadgets that a tensor does not have being free and without a choice.

    Args:
        flows: the tensors' choices; (P1) and (P2) need not have been applied.
        again_us: per flow, what computing it again costs at least; infinite where that cannot be.
        limit_bytes: tensors larger than this never are in fast memory.
        kernels: of the step.
    """

    def __init__(self, flows: Sequence[Flow], again_us: Floats, limit_bytes: int, kernels: int) -> None:
        self.limit_bytes = limit_bytes
        self._kernels = kernels
        self._sizes = np.array([flow.size_bytes for flow in flows], np.float64)
        self._write_us = np.array([flow.write_us for flow in flows])
        self._read_us = np.array([flow.read_us for flow in flows])
        self._again_us = np.minimum(again_us, _NEVER)
        longest = max(map(len, flows), default=0)
        self._starts = _padded([flow.starts for flow in flows], longest, kernels, np.int64)
        self._stops = _padded([flow.stops for flow in flows], longest, kernels, np.int64)
        self._slow_us = _padded([flow.slow_us for flow in flows], longest, 0.0, np.float64)
        self._must = _padded([flow.must for flow in flows], longest, False, np.bool_)
        may = _padded([flow.may for flow in flows], longest, True, np.bool_)
        self._may = may & (self._sizes <= limit_bytes)[:, None]
        self._exists = np.arange(longest) < np.array([len(flow) for flow in flows], np.int64)[:, None]

    def cheapest(self, prices_us_per_byte: Floats) -> tuple[float, Ints]:
        """The sum over tensors of their cheapest journeys at these prices, rent included, and the bytes these rent.

        Args:
            prices_us_per_byte: (kernels,) not negative.
        """
        rent = np.concatenate(([0.0], np.cumsum(prices_us_per_byte)))
        fast_us = (rent[self._stops] - rent[self._starts]) * self._sizes[:, None]
        fast_us = np.where(self._may, fast_us, np.where(self._exists, _NEVER, 0.0))
        slow_us = np.where(self._must, _NEVER, self._slow_us)
        costs = np.stack([fast_us[:, 0], np.full(len(self._sizes), _NEVER), slow_us[:, 0]], axis=1)
        ways = []
        for k in range(1, fast_us.shape[1]):
            gap = self._gap(k)
            stay_us = np.where(gap[1] > gap[0], (rent[gap[1]] - rent[gap[0]]) * self._sizes, 0.0)
            after, way = self._step(costs, np.where(self._may[:, k] & self._may[:, k - 1], stay_us, _NEVER))
            after += np.stack([fast_us[:, k], fast_us[:, k], slow_us[:, k]], axis=1)
            costs = np.where(self._exists[:, k, None], after, costs)
            ways.append(way)
        return float(costs.min(axis=1).sum()), self._rented(costs.argmin(axis=1), ways)

    def _gap(self, k: int) -> tuple[Ints, Ints]:
        return self._stops[:, k - 1], np.where(self._exists[:, k], self._starts[:, k], self._stops[:, k - 1])

    def _step(self, costs: Floats, stay_us: Floats) -> tuple[Floats, npt.NDArray[np.int8]]:
        """Costs of the three states after a gap, and for each twice the state before it plus whether it stayed."""
        born, copied, slow = costs.T
        write, read, again = self._write_us, self._read_us, self._again_us
        back = np.minimum(read, again)
        options: tuple[tuple[tuple[Floats, int], ...], ...] = (
            ((born + stay_us, 2 * _BORN + 1), (born + again, 2 * _BORN)),
            (
                (copied + stay_us, 2 * _COPIED + 1),
                (copied + back, 2 * _COPIED),
                (slow + back, 2 * _SLOW),
                (born + write + read, 2 * _BORN),
            ),
            ((slow, 2 * _SLOW), (copied, 2 * _COPIED), (born + np.minimum(write, again), 2 * _BORN)),
        )
        values, codes = [], []
        for state in options:
            stacked = np.stack([cost for cost, _ in state])
            values.append(stacked.min(axis=0))
            codes.append(np.array([code for _, code in state], np.int8)[stacked.argmin(axis=0)])
        return np.stack(values, axis=1), np.stack(codes, axis=1)

    def _rented(self, states: Ints, ways: Sequence[npt.NDArray[np.int8]]) -> Ints:
        """Bytes that the journeys ending in `states` hold in fast memory during each kernel."""
        change = np.zeros(self._kernels + 1, np.int64)
        sizes = self._sizes.astype(np.int64)
        rows = np.arange(len(states))

        def hold(which: npt.NDArray[np.bool_], starts: Ints, stops: Ints) -> None:
            np.add.at(change, starts[which], sizes[which])
            np.add.at(change, stops[which], -sizes[which])

        for k in range(len(ways), -1, -1):
            exists = self._exists[:, k]
            hold(exists & (states != _SLOW), self._starts[:, k], self._stops[:, k])
            if k:
                code = ways[k - 1][rows, states].astype(np.int64)
                start, stop = self._gap(k)
                hold(exists & (code % 2 == 1) & (stop > start), start, stop)
                states = np.where(exists, code // 2, states)
        return change[:-1].cumsum()


def _padded(rows: Sequence[Sequence[object]], width: int, fill: object, dtype: npt.DTypeLike) -> Any:
    """The rows as one array, short ones filled up."""
    table = np.full((len(rows), width), fill, dtype)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table
