"""Residencies of a tensor, and the cheapest at given prices of fast memory, one by one or all at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.model.graph import Tier
from autotm.model.plan import Move, Stay
from autotm.solve.choices import TensorChoices, Window
from autotm.solve.problem import Floats, Ints


@dataclass(frozen=True, slots=True)
class Residency:
    """One residency of a tensor through the step.

    Attributes:
        fast: whether it is fast at each of m gadgets.
        between: whether it stays fast over each of the m - 1 gaps between.
        out: the window of its copy to slow memory; None where that is blocking, or there is none.
        back: (gadget, window) of its asynchronous read-backs, ascending.
    """

    fast: tuple[bool, ...]
    between: tuple[bool, ...]
    out: Window | None = None
    back: tuple[tuple[int, Window], ...] = ()

    @property
    def first_leave(self) -> int:
        """Gadgets of the fast run that starts at birth; m when it never leaves, 0 when born slow."""
        if not self.fast[0]:
            return 0
        count = 1
        while count < len(self.fast) and self.between[count - 1]:
            count += 1
        return count

    def with_windows(self, out: Window | None, back: tuple[tuple[int, Window], ...]) -> Residency:
        """Return the same residency with these windows."""
        return self if (self.out, self.back) == (out, back) else replace(self, out=out, back=back)

    def reads(self) -> list[int]:
        """Return the gadgets just before which the tensor is read back to fast memory."""
        return [k for k in range(1, len(self.fast)) if self.fast[k] and not self.between[k - 1]]


@lru_cache(1 << 16)
def by_blocking_moves(fast: tuple[bool, ...], between: tuple[bool, ...]) -> Residency:
    """Return a residency without windows; one object for equal ones, of which a large step has many."""
    return Residency(fast, between)


def all_slow(flow: TensorChoices) -> Residency:
    """Return the residency of a tensor that is never fast."""
    return by_blocking_moves((False,) * len(flow), (False,) * (len(flow) - 1))


def cost_us(flow: TensorChoices, residency: Residency) -> float:
    """Return the time that a residency adds to the all-fast step: slow operands, at most one write, read-backs."""
    slow = sum(cost for cost, fast in zip(flow.slow_us, residency.fast, strict=True) if not fast)
    write = 0.0
    if 0 < residency.first_leave < len(flow):
        write = flow.write_us if residency.out is None else residency.out.added_us
    back = dict(residency.back)
    return slow + write + sum(back[k].added_us if k in back else flow.read_us for k in residency.reads())


def fast_spans(flow: TensorChoices, residency: Residency) -> list[tuple[int, int]]:
    """Return the kernel spans [start, end) during which the tensor holds fast memory, ascending, one for each stay."""
    spans: list[tuple[int, int]] = []
    back = dict(residency.back)
    for k, fast in enumerate(residency.fast):
        if not fast:
            continue
        if k and residency.between[k - 1]:
            spans[-1] = (spans[-1][0], flow.stops[k])
        else:
            spans.append((back[k].start if k in back else flow.starts[k], flow.stops[k]))
    if residency.out is not None:
        spans[0] = (spans[0][0], residency.out.end)
    return spans


def occupy(used: npt.NDArray[np.int64], flow: TensorChoices, residency: Residency, sign: int = 1) -> None:
    """Add (or with `sign` -1 remove) the residency's bytes to the fast bytes in use during each kernel."""
    for start, end in fast_spans(flow, residency):
        used[start:end] += sign * flow.size_bytes


def stays_and_moves(flow: TensorChoices, residency: Residency) -> tuple[list[Stay], list[Move]]:
    """Return the residency as a plan states it.

    The write begins just before the kernel after the last gadget of the first fast run; a read ends just before its
    gadget. The slow copy is held until the last gadget that needs it, as operand or as the source of a read.
    """
    back = dict(residency.back)
    stays = [Stay(flow.tensor, Tier.FAST, start, end) for start, end in fast_spans(flow, residency)]
    moves = [
        Move(flow.tensor, Tier.FAST, flow.starts[k], back[k].start if k in back else None) for k in residency.reads()
    ]
    needs = [k for k in range(len(flow)) if not residency.fast[k] or k in residency.reads()]
    if needs:
        left = residency.first_leave
        start = flow.starts[0] if left == 0 else flow.stops[left - 1]
        last = needs[-1]
        source_end = flow.starts[last] + (last not in back)
        end = flow.stops[last] if not residency.fast[last] else source_end
        stays.append(Stay(flow.tensor, Tier.SLOW, start, end))
        if left:
            before, since = (start, None) if residency.out is None else (residency.out.end, residency.out.start)
            moves.append(Move(flow.tensor, Tier.SLOW, before, since))
    return stays, moves


_BORN_FAST, _COPIED, _SLOW = range(3)
"""In fast memory since birth; in fast memory with a valid slow copy; in slow memory only."""

PricedCopy = tuple[float, Window | None]
"""The cheapest way of a copy over a gap at some prices: its cost, and its window, which is None if it is blocking."""


@dataclass(frozen=True)
class Charges:
    """The charges of a flow at some prices of memory and engines; infinity forbids a choice.

    Attributes:
        slow_us, fast_us: charge for being slow and for being fast at each gadget.
        between_us: charge for staying fast over each gap.
        out, back: the cheapest way to copy the tensor to slow, to fast memory over each gap.
    """

    slow_us: Sequence[float]
    fast_us: Sequence[float]
    between_us: Sequence[float]
    out: Sequence[PricedCopy]
    back: Sequence[PricedCopy]


def best_residency(flow: TensorChoices, charges: Charges) -> Residency:
    """Return the cheapest residency, by dynamic programming over the flow's gadgets.

    Where the flow's own rules leave no other choice, some finite path must exist.
    """
    costs, choices = _forward(flow, charges)
    state = min(range(3), key=costs.__getitem__)
    if costs[state] == math.inf:
        raise ValueError(f"tensor '{flow.tensor}' has no residency at these prices")
    fast, between = [state != _SLOW], []
    for choice in reversed(choices):
        state, stayed = choice[state]
        between.append(stayed)
        fast.append(state != _SLOW)
    residency = by_blocking_moves(tuple(reversed(fast)), tuple(reversed(between)))
    left = residency.first_leave
    out = charges.out[left - 1][1] if 0 < left < len(flow) else None
    windows = ((k, charges.back[k - 1][1]) for k in residency.reads())
    return residency.with_windows(out, tuple((k, window) for k, window in windows if window is not None))


def best_value(flow: TensorChoices, charges: Charges) -> float:
    """Return the cost of the cheapest residency, prices included."""
    return min(_forward(flow, charges)[0])


def _forward(flow: TensorChoices, charges: Charges) -> tuple[list[float], list[list[tuple[int, bool]]]]:
    choices: list[list[tuple[int, bool]]] = []
    first_fast, first_slow = charges.fast_us[0], charges.slow_us[0]
    costs = [first_fast if flow.may[0] else math.inf, math.inf, math.inf if flow.must[0] else first_slow]
    for k in range(1, len(flow)):
        costs, choice = _step(flow, k, costs, charges)
        choices.append(choice)
    return costs, choices


def _step(
    flow: TensorChoices, k: int, costs: list[float], charges: Charges
) -> tuple[list[float], list[tuple[int, bool]]]:
    """Return the costs of the three states at gadget k, and of each the state before and whether the gap was fast."""
    born, copied, slow = costs
    at = charges.fast_us[k] if flow.may[k] else math.inf
    stay = charges.between_us[k - 1] if flow.may_between[k - 1] else math.inf
    read = charges.back[k - 1][0] if flow.may_read[k] else math.inf
    write = born + charges.out[k - 1][0]
    slow_at = math.inf if flow.must[k] else charges.slow_us[k]
    to_copied = (
        (copied + stay, (_COPIED, True)),
        (copied + read, (_COPIED, False)),
        (slow + read, (_SLOW, False)),
        (write + read, (_BORN_FAST, False)),
    )
    to_slow = ((slow, (_SLOW, False)), (copied, (_COPIED, False)), (write, (_BORN_FAST, False)))
    copied_cost, copied_from = min(to_copied)
    slow_cost, slow_from = min(to_slow)
    return [born + stay + at, copied_cost + at, slow_cost + slow_at], [(_BORN_FAST, True), copied_from, slow_from]


Flags = npt.NDArray[np.bool_]

_NOTHING: Mapping[str, Floats] = {}
_NEVER = 1e18
"""A cost that no residency takes; finite, so that differences stay numbers."""


@dataclass(frozen=True)
class _Gadget:
    """The k-th gadgets of the flows that have one, and the gaps before them, which end where these start."""

    starts: Ints
    stops: Ints
    slow_us: Floats
    fast_us: Floats
    gap_starts: Ints
    stay_us: Floats
    read_us: Floats

    def __len__(self) -> int:
        return len(self.starts)


class _HoldingCosts:
    """The holding costs of flows: the price of their bytes, and for some flows further costs.

    `besides_us` has the further costs by the flow's row, of shape (kernels + 1,), summed over the kernels before each.
    """

    def __init__(self, sizes_bytes: Ints, prices_us: Floats, besides_us: Mapping[int, Floats]) -> None:
        self._sizes_bytes = sizes_bytes
        self._until_us = np.concatenate(([0.0], np.cumsum(prices_us)))
        self._rows = np.array(sorted(besides_us), np.int64)
        self._besides_us = np.array([besides_us[row] for row in sorted(besides_us)])

    def of(self, starts: Ints, stops: Ints) -> Floats:
        """Return the holding cost of the first flows over spans of kernels, one span each."""
        paid: Floats = (self._until_us[stops] - self._until_us[starts]) * self._sizes_bytes[: len(starts)]
        rows = self._rows[: int(np.searchsorted(self._rows, len(starts)))]
        if len(rows):
            places = np.arange(len(rows))
            paid[rows] += self._besides_us[places, stops[rows]] - self._besides_us[places, starts[rows]]
        return paid


@dataclass(frozen=True)
class CheapestResidencies:
    """Cheapest residencies at some prices.

    Attributes:
        cost_us: (flows,) cost of each, holding cost included, at the prices at which it was the cheapest.
        used_bytes: (kernels,) bytes that all of them hold in fast memory.
        fast, between: by gadget k, whether the flows that have one are fast there, and over the gap before; in the
            order of `PricedResidencies.order`.
    """

    cost_us: Floats
    used_bytes: Ints
    fast: Sequence[Flags]
    between: Sequence[Flags]


class PricedResidencies:
    """The cheapest residencies of all flows at once when fast memory has a price, recomputing lost tensors or not.

    Flows are arrays, the longest first, so that the flows that have a k-th gadget are the first ones.

    Args:
        flows: the tensors' choices, with blocking moves.
        limit_bytes: tensors larger than this never are in fast memory.
        kernels: number of kernels of the step.
        again_us: per flow, the least cost of computing its tensor again; infinite where that is impossible.
    """

    def __init__(
        self, flows: Sequence[TensorChoices], limit_bytes: int, kernels: int, again_us: Floats | float = math.inf
    ) -> None:
        self.limit_bytes = limit_bytes
        self.order = sorted(range(len(flows)), key=lambda index: -len(flows[index]))
        self._kernels = kernels
        self._rows = {flows[index].tensor: row for row, index in enumerate(self.order)}
        ordered = [flows[index] for index in self.order]
        self._sizes = np.array([flow.size_bytes for flow in ordered], np.int64)
        self._write_us = np.array([flow.write_us for flow in ordered])
        self._again_us = np.minimum(np.broadcast_to(again_us, len(flows))[self.order], _NEVER)
        longest = max(map(len, ordered), default=0)
        self._gadgets = [_gadget([flow for flow in ordered if len(flow) > k], k, limit_bytes) for k in range(longest)]

    def cheapest(self, prices_us_per_byte: Floats, weighed_us: Mapping[str, Floats] = _NOTHING) -> CheapestResidencies:
        """Return all tensors' cheapest residencies at these prices, of shape (kernels,), not negative.

        `weighed_us` has the further costs of some tensors for being fast, of shape (kernels + 1,), summed over the
        kernels before each.
        """
        besides_us = {self._rows[tensor]: paid for tensor, paid in weighed_us.items() if tensor in self._rows}
        holding = _HoldingCosts(self._sizes, prices_us_per_byte, besides_us)
        costs = np.zeros((3, len(self.order)))
        codes: list[npt.NDArray[np.int8]] = []
        for k, gadget in enumerate(self._gadgets):
            count = len(gadget)
            fast_us = gadget.fast_us + holding.of(gadget.starts, gadget.stops)
            if k:
                after, code = self._step(gadget, costs[:, :count], holding)
                codes.append(code)
                costs[:, :count] = after
            else:
                costs[_COPIED] = _NEVER
            costs[_BORN_FAST, :count] += fast_us
            costs[_COPIED, :count] += fast_us
            costs[_SLOW, :count] += gadget.slow_us
        return self._cheapest(self._in_order(costs.min(axis=0)), costs.argmin(axis=0), codes)

    def _in_order(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values in the order in which the flows were given, from those in the order of rows (flows,)."""
        by_flow = np.empty_like(values)
        by_flow[self.order] = values
        return by_flow

    def mixed(self, first: CheapestResidencies, second: CheapestResidencies, from_first: Flags) -> CheapestResidencies:
        """Take residencies from `first` where `from_first`, of shape (flows,), is true, and from `second` elsewhere."""
        ordered = from_first[self.order]

        def mix(some: Sequence[Flags], others: Sequence[Flags]) -> list[Flags]:
            return [np.where(ordered[: len(one)], one, other) for one, other in zip(some, others, strict=True)]

        return CheapestResidencies(
            np.where(from_first, first.cost_us, second.cost_us),
            self.used_bytes(first, from_first) + self.used_bytes(second, ~from_first),
            mix(first.fast, second.fast),
            mix(first.between, second.between),
        )

    def differ(self, first: CheapestResidencies, second: CheapestResidencies) -> Flags:
        """Return whether each flow's two residencies are different (flows,)."""
        differ = np.zeros(len(self.order), bool)
        for some, others in zip([*first.fast, *first.between], [*second.fast, *second.between], strict=True):
            differ[: len(some)] |= some != others
        return self._in_order(differ)

    def holding_us(self, cheapest: CheapestResidencies, prices_us_per_byte: Floats) -> Floats:
        """Compute the holding cost of those residencies at these prices (flows,)."""
        holding = np.concatenate(([0.0], np.cumsum(prices_us_per_byte)))
        paid = np.zeros(len(self.order))
        for gadget, fast, stayed in zip(self._gadgets, cheapest.fast, cheapest.between, strict=True):
            held = np.where(fast, holding[gadget.stops] - holding[gadget.starts], 0.0)
            held += np.where(stayed, holding[gadget.starts] - holding[gadget.gap_starts], 0.0)
            paid[: len(gadget)] += held * self._sizes[: len(gadget)]
        return self._in_order(paid)

    def used_bytes(self, cheapest: CheapestResidencies, chosen: Flags) -> Ints:
        """Compute the fast bytes that the residencies of some flows hold (kernels,); `chosen` is of shape (flows,)."""
        change, ordered = np.zeros(self._kernels + 1), chosen[self.order]
        for gadget, fast, stayed in zip(self._gadgets, cheapest.fast, cheapest.between, strict=True):
            self._hold(change, fast & ordered[: len(gadget)], gadget.starts, gadget.stops)
            self._hold(change, stayed & ordered[: len(gadget)], gadget.gap_starts, gadget.starts)
        return _summed(change)

    def holders(self, cheapest: CheapestResidencies, kernel: int) -> Flags:
        """Return whether each flow is fast during a kernel (flows,)."""
        holds = np.zeros(len(self.order), bool)
        for gadget, fast, stayed in zip(self._gadgets, cheapest.fast, cheapest.between, strict=True):
            at = fast & (gadget.starts <= kernel) & (kernel < gadget.stops)
            at |= stayed & (gadget.gap_starts <= kernel) & (kernel < gadget.starts)
            holds[: len(gadget)] |= at
        return self._in_order(holds)

    def residencies(self, cheapest: CheapestResidencies, chosen: Sequence[int]) -> dict[int, Residency]:
        """Return the residencies of some flows."""
        place = {index: row for row, index in enumerate(self.order)}
        fast = [flags.tolist() for flags in cheapest.fast]
        between = [flags.tolist() for flags in cheapest.between]
        counts = [len(gadget) for gadget in self._gadgets]
        residencies = {}
        for index in chosen:
            row = place[index]
            length = sum(1 for count in counts if row < count)
            residencies[index] = by_blocking_moves(
                tuple(fast[k][row] for k in range(length)), tuple(between[k][row] for k in range(1, length))
            )
        return residencies

    def _step(self, gadget: _Gadget, costs: Floats, holding: _HoldingCosts) -> tuple[Floats, npt.NDArray[np.int8]]:
        """Return the costs of the three states after a gap, and twice the state before each plus whether it stayed."""
        count = len(gadget)
        born, copied, slow = costs
        stay_us = gadget.stay_us + holding.of(gadget.gap_starts, gadget.starts)
        write_us, again_us = self._write_us[:count], self._again_us[:count]
        back_us = np.minimum(gadget.read_us, again_us)
        options: tuple[tuple[tuple[Floats, int], ...], ...] = (
            ((born + stay_us, 2 * _BORN_FAST + 1), (born + again_us, 2 * _BORN_FAST)),
            (
                (copied + stay_us, 2 * _COPIED + 1),
                (copied + back_us, 2 * _COPIED),
                (slow + back_us, 2 * _SLOW),
                (born + write_us + gadget.read_us, 2 * _BORN_FAST),
            ),
            ((slow, 2 * _SLOW), (copied, 2 * _COPIED), (born + np.minimum(write_us, again_us), 2 * _BORN_FAST)),
        )
        after, codes = np.empty((3, count)), np.empty((3, count), np.int8)
        for state, ((cost, first), *others) in enumerate(options):
            after[state], codes[state] = cost, first
            for other, code in others:
                codes[state][other < after[state]] = code
                np.minimum(after[state], other, out=after[state])
        return after, codes

    def _cheapest(self, cost_us: Floats, states: Ints, codes: Sequence[npt.NDArray[np.int8]]) -> CheapestResidencies:
        change = np.zeros(self._kernels + 1)
        fast, between = [], []
        for k in range(len(self._gadgets) - 1, -1, -1):
            gadget = self._gadgets[k]
            count = len(gadget)
            is_fast = states[:count] != _SLOW
            self._hold(change, is_fast, gadget.starts, gadget.stops)
            fast.append(is_fast)
            stayed = np.zeros(count, bool)
            if k:
                code = codes[k - 1][states[:count], np.arange(count)].astype(np.int64)
                stayed = code % 2 == 1
                self._hold(change, stayed, gadget.gap_starts, gadget.starts)
                states[:count] = code // 2
            between.append(stayed)
        return CheapestResidencies(cost_us, _summed(change), fast[::-1], between[::-1])

    def _hold(self, change: Floats, which: Flags, starts: Ints, stops: Ints) -> None:
        sizes = self._sizes[: len(which)][which]
        change += np.bincount(starts[which], sizes, len(change))
        change -= np.bincount(stops[which], sizes, len(change))


def _summed(change: Floats) -> Ints:
    return np.rint(np.cumsum(change)[:-1]).astype(np.int64)


def _gadget(flows: Sequence[TensorChoices], k: int, limit_bytes: int) -> _Gadget:
    def allowed(flags: list[bool]) -> Floats:
        return np.where(np.array(flags, bool), 0.0, _NEVER)

    before = [flow.stops[k - 1] if k else flow.starts[0] for flow in flows]
    return _Gadget(
        starts=np.array([flow.starts[k] for flow in flows], np.int64),
        stops=np.array([flow.stops[k] for flow in flows], np.int64),
        slow_us=np.array([_NEVER if flow.must[k] else flow.slow_us[k] for flow in flows]),
        fast_us=allowed([flow.may[k] and flow.size_bytes <= limit_bytes for flow in flows]),
        gap_starts=np.array(before, np.int64),
        stay_us=allowed([k > 0 and flow.may_between[k - 1] for flow in flows]),
        read_us=np.array([flow.read_us if flow.may_read[k] else _NEVER for flow in flows]),
    )
