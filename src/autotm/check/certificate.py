"""A certificate's cases, and what fast memory and copying engines cost at its prices, in several cases at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from autotm.check.fault import Fault, require
from autotm.model.certificate import (
    Branch,
    Certificate,
    Cut,
    CutPrices,
    KernelPrices,
    Leaf,
    Prices,
    SpanPrices,
    Split,
    WindowBranch,
    WorkspaceBranch,
)
from autotm.model.graph import Graph, Tensor, Tier

# The cases of a certificate's tree: what each has in fast memory and what not, and the room that this leaves.
#
# The tree says which cases there are by its form alone: a branch has both of its cases, so that every plan falls into a
# leaf. Nothing is taken from the search that found it.

Flags = npt.NDArray[np.bool_]

Key = TypeVar("Key")

Assumption = tuple[Split, bool]
"""A branch, and whether it is the first of its cases."""

Window = tuple[int, int]
"""Kernels [start, end) beside which a tensor is copied."""


@dataclass(frozen=True)
class Case:
    """A leaf of the tree.

    Attributes:
        assumed: what holds in it.
        prices: number of the set that bounds it.
    """

    assumed: tuple[Assumption, ...]
    prices: int


def cases_of(certificate: Certificate) -> list[Case]:
    """The leaves of the tree.

    Raises:
        FaultError: a case is missing or too many, or a leaf names prices that are not there.
    """
    waiting: list[tuple[Assumption, ...]] = [()]
    found = []
    for node in certificate.tree:
        require(bool(waiting), Fault.CERTIFICATE, "the tree has more nodes than cases")
        assumed = waiting.pop()
        if not isinstance(node, Leaf):
            waiting += [(*assumed, (node, False)), (*assumed, (node, True))]
            continue
        known = 0 <= node.prices < len(certificate.prices)
        require(known, Fault.CERTIFICATE, f"no set of prices has number {node.prices}")
        found.append(Case(assumed, node.prices))
    require(not waiting, Fault.CERTIFICATE, f"{len(waiting)} cases of the tree are missing")
    return found


class Assumed:
    """What several cases take for granted, as arrays over the cases.

    Attributes:
        room: (cases, kernels) bytes of the limit that the tensors assumed fast leave.
        never: (cases,) false; this very array stands for flags that nothing is assumed of.
    """

    def __init__(self, graph: Graph, cases: Sequence[Case], limit_bytes: int, for_life: frozenset[str]) -> None:
        self._graph = graph
        self._for_life = for_life
        self.never = np.zeros(len(cases), bool)
        self.room = np.full((len(cases), len(graph.kernels)), limit_bytes, np.int64)
        self._fast: dict[tuple[str, int], Flags] = {}
        self._not_fast: dict[tuple[str, int], Flags] = {}
        self._only: dict[tuple[str, Tier, int], dict[Window, Flags]] = {}
        self._other: dict[tuple[str, Tier, int], dict[Window, Flags]] = {}
        self._bytes: dict[int, npt.NDArray[np.int64]] = {}
        self._names = {tensor.name for tensor in graph.movable}
        for number, case in enumerate(cases):
            for split, is_first in case.assumed:
                if isinstance(split, Branch):
                    self._take_place(number, split, is_first)
                elif isinstance(split, WindowBranch):
                    self._take_window(number, split, is_first)
                else:
                    self._take_workspaces(number, split, is_first)
        self._least_room = self.room.min(axis=0, initial=limit_bytes)
        self._least_of_all = int(self.room.min(initial=limit_bytes))

    def _take_place(self, number: int, branch: Branch, is_fast: bool) -> None:
        tensor = self._tensor(branch.tensor)
        start, end = _span(tensor, branch.kernel, branch.tensor in self._for_life)
        known = self._fast if is_fast else self._not_fast
        flags = self._flags(known, (branch.tensor, start))
        if is_fast and not flags[number]:
            self.room[number, start:end] -= tensor.allocated_bytes
        flags[number] = True

    def _take_window(self, number: int, branch: WindowBranch, is_first: bool) -> None:
        tensor, window = self._tensor(branch.copied), (branch.start, branch.end)
        between = branch.copied not in self._for_life and branch.start not in tensor.users and branch.end > branch.start
        where = f"a branch on a copy of '{branch.copied}' beside kernels [{branch.start}, {branch.end})"
        require(between, Fault.CERTIFICATE, where)
        gap = _span(tensor, branch.start, False)
        key = branch.copied, branch.destination, gap[0]
        known = self._only if is_first else self._other
        self._flags(known.setdefault(key, {}), window)[number] = True

    def _take_workspaces(self, number: int, branch: WorkspaceBranch, is_first: bool) -> None:
        inside = 0 <= branch.during < self.room.shape[1] and bool(self._graph.kernels[branch.during].alternatives)
        require(inside, Fault.CERTIFICATE, f"a branch on workspaces of kernel {branch.during}")
        if branch.during not in self._bytes:
            most = np.iinfo(np.int64).max
            self._bytes[branch.during] = np.array([[-1], [most]]).repeat(len(self.never), axis=1)
        least, most_bytes = self._bytes[branch.during]
        if is_first:
            most_bytes[number] = min(most_bytes[number], branch.most_bytes)
        else:
            least[number] = max(least[number], branch.most_bytes)

    def _tensor(self, name: str) -> Tensor:
        require(name in self._names, Fault.CERTIFICATE, f"a branch on '{name}', which cannot move")
        return self._graph.by_name[name]

    def _flags(self, known: dict[Key, Flags], key: Key) -> Flags:
        return known.setdefault(key, np.zeros(len(self.never), bool))

    def workspaces(self, kernel: int) -> npt.NDArray[np.int64]:
        """(2, cases) What the fast workspaces of a kernel take more than, and what they take at most."""
        least, most_bytes = self._bytes.get(kernel, (np.full(len(self.never), -1), self.room[:, kernel]))
        return np.array([least, np.minimum(most_bytes, self.room[:, kernel])])

    def not_copied(self, tensor: Tensor, destination: Tier, first: int, window: Window | None) -> Flags:
        """(cases,) Whether a copy over the gap that begins at kernel `first` is assumed not to be done in this way.

        A way is a window, or None for a copy that the step waits for.
        """
        key = tensor.name, destination, first
        excluded = self.never
        for only, flags in self._only.get(key, {}).items():
            if only != window:
                excluded = np.asarray(np.logical_or(excluded, flags))
        if window is not None:
            excluded = np.asarray(np.logical_or(excluded, self._other.get(key, {}).get(window, self.never)))
        return excluded

    def fast(self, tensor: Tensor, start: int) -> Flags:
        """(cases,) Whether it is assumed to be fast in the span that begins at kernel `start`."""
        return self._fast.get((tensor.name, start), self.never)

    @property
    def empty(self) -> Flags:
        """(cases,) Whether what is assumed to be fast exceeds the limit: no plan is such a case."""
        return np.asarray((self.room < 0).any(axis=1))

    def tier(self, tensor: Tensor, user: int) -> tuple[Flags, Flags]:
        """(cases,) Whether it is assumed to be fast at a kernel that uses it, and whether not to be."""
        key = tensor.name, tensor.live.start if tensor.name in self._for_life else user
        return self._fast.get(key, self.never), self._not_fast.get(key, self.never)

    def excluded(self, tensor: Tensor, start: int, end: int) -> Flags:
        """(cases,) Whether it cannot be fast during kernels [start, end): it is assumed not to be, or has no room."""
        excluded = self._not_fast.get((tensor.name, start), self.never)
        size_bytes = tensor.allocated_bytes
        if size_bytes <= self._least_of_all or size_bytes <= self._least_room[start:end].min():
            return excluded
        full = np.logical_and(self.has_no_room(tensor, start, end), ~self.fast(tensor, start))
        return np.asarray(np.logical_or(excluded, full))

    def has_no_room(self, tensor: Tensor, start: int, end: int) -> Flags:
        """(cases,) Whether it does not fit during kernels [start, end), a part of a span."""
        return np.asarray((self.room[:, start:end] < tensor.allocated_bytes).any(axis=1))


def _span(tensor: Tensor, kernel: int, for_life: bool) -> tuple[int, int]:
    """Kernels [start, end) that a branch at `kernel` speaks of."""
    if for_life:
        first = kernel == tensor.live.start
        require(first, Fault.CERTIFICATE, f"a branch on '{tensor.name}' at {kernel}, it stays from {tensor.live.start}")
        return tensor.live.start, tensor.live.stop
    if kernel in tensor.users:
        return kernel, kernel + 1
    inside = tensor.users[0] < kernel < tensor.users[-1]
    require(inside, Fault.CERTIFICATE, f"a branch on '{tensor.name}' at {kernel}, its users are {tensor.users}")
    after = bisect_left(tensor.users, kernel)
    return tensor.users[after - 1] + 1, tensor.users[after]


def batches(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    """So many cases at a time."""
    for first in range(0, len(cases), size):
        yield cases[first : first + size]


# What fast memory costs at a certificate's prices, by bytes and by weights, in several cases at once.
#
# Fast at one time are at most L bytes. So whatever tensors weigh, those that are fast weigh together at most W(L),
# where W(x) is the most that tensors with weights weigh of which the bytes do not exceed x. A kernel's workspaces of
# B bytes that are fast too leave W(L - B) of that: they weigh W(L) - W(L - B). Relaxing such rows at prices >= 0
# keeps the bound valid, whatever the weights are.

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_WEIGHT = 10**6
"""Of all tensors of a cut together; the memory to find what fits goes with it."""


class Weights:
    """The cuts of a certificate.

    Raises:
        FaultError: tensors of a cut are not distinct tensors that can move, weights not whole numbers >= 1 for each of
            them, or more than a million together.
    """

    def __init__(self, certificate: Certificate, graph: Graph, limit_bytes: int) -> None:
        movable = {tensor.name: tensor.allocated_bytes for tensor in graph.movable}
        self.limit_bytes = limit_bytes
        self.of: dict[str, list[tuple[int, int]]] = {}
        """By tensor, the cuts that give it a weight, with it."""
        self._least_bytes = []
        for number, cut in enumerate(certificate.cuts):
            _require_valid_cut(number, cut, movable)
            for name, weight in zip(cut.tensors, cut.weights, strict=True):
                self.of.setdefault(name, []).append((number, weight))
            self._least_bytes.append(_least_bytes([movable[name] for name in cut.tensors], cut.weights))

    def __len__(self) -> int:
        return len(self._least_bytes)

    def most(self, cut: int, room_bytes: Ints) -> Ints:
        """W: the most that fits so many bytes, 0 where that is none."""
        found: Ints = np.searchsorted(self._least_bytes[cut], np.maximum(room_bytes, 0), side="right") - 1
        return found


def _require_valid_cut(number: int, cut: Cut, movable: dict[str, int]) -> None:
    known = set(cut.tensors) <= set(movable) and len(set(cut.tensors)) == len(cut.tensors)
    require(known, Fault.CERTIFICATE, f"the tensors of cut {number} are not distinct tensors that can move")
    whole = len(cut.weights) == len(cut.tensors) and all(weight >= 1 for weight in cut.weights)
    require(whole, Fault.CERTIFICATE, f"cut {number} has not one weight >= 1 a tensor")
    total = sum(cut.weights)
    require(total <= _MOST_WEIGHT, Fault.CERTIFICATE, f"cut {number} weighs {total}, more than {_MOST_WEIGHT}")


def _least_bytes(sizes_bytes: Sequence[int], weights: Sequence[int]) -> Ints:
    """By weight, the fewest bytes of tensors that weigh as much or more."""
    exact = np.full(sum(weights) + 1, np.iinfo(np.int64).max // 2, np.int64)
    exact[0] = 0
    for size_bytes, weight in zip(sizes_bytes, weights, strict=True):
        exact[weight:] = np.minimum(exact[weight:], exact[:-weight] + size_bytes)
    least: Ints = np.minimum.accumulate(exact[::-1])[::-1]
    return least


class HoldingCosts:
    """Prices of bytes and weights during each of `count` kernels, one set of prices a case.

    Raises:
        FaultError: a price is not finite and >= 0, a cut not there or priced twice, or the kernels are not those of a
            step.
    """

    def __init__(self, weights: Weights, cases: Sequence[Prices], count: int) -> None:
        self._weights = weights
        self._bytes = np.array([spread(stated.fast, count) for stated in cases])
        self._cuts: dict[int, Floats] = {}
        for case, stated in enumerate(cases):
            numbers = [each.cut for each in stated.cuts]
            known = len(set(numbers)) == len(numbers) and all(0 <= number < len(weights) for number in numbers)
            require(
                known, Fault.CERTIFICATE, f"prices of cuts {numbers}, which are not distinct cuts of {len(weights)}"
            )
            for each in stated.cuts:
                self._cuts.setdefault(each.cut, np.zeros((len(cases), count)))[case] = spread(each, count)
        self._until = until(self._bytes)
        self._cuts_until = {cut: until(prices) for cut, prices in self._cuts.items()}

    def whole_us(self, limit_bytes: int) -> Floats:
        """(cases,) Holding cost of all fast memory during the whole step, and of all weight that fits."""
        total: Floats = self._bytes.sum(axis=1) * limit_bytes
        for cut, prices in self._cuts.items():
            total += prices.sum(axis=1) * int(self._weights.most(cut, np.array(limit_bytes)))
        return total

    def span_us(self, name: str, size_bytes: int, start: int, end: int) -> Floats:
        """(cases,) Holding cost of a tensor during kernels [start, end)."""
        total: Floats = (self._until[:, end] - self._until[:, start]) * size_bytes
        for cut, weight in self._weights.of.get(name, ()):
            if cut in self._cuts_until:
                sums = self._cuts_until[cut]
                total += (sums[:, end] - sums[:, start]) * weight
        return total

    def at_us(self, kernel: int, size_bytes: Floats) -> Floats:
        """(sizes, cases) Holding cost of workspaces of so many bytes each (whole numbers) during one kernel."""
        total: Floats = size_bytes[:, None] * self._bytes[:, kernel]
        limit_bytes = self._weights.limit_bytes
        for cut, prices in self._cuts.items():
            if prices[:, kernel].any():
                left = self._weights.most(cut, limit_bytes - size_bytes.astype(np.int64))
                taken = self._weights.most(cut, np.array(limit_bytes)) - left
                total += taken[:, None] * prices[:, kernel]
        return total


def until(prices: Floats) -> Floats:
    """(cases, kernels + 1) Sums of the prices of all kernels before each."""
    return np.concatenate((np.zeros((len(prices), 1)), np.cumsum(prices, axis=1)), axis=1)


def spread(stated: KernelPrices | CutPrices, count: int) -> Floats:
    """(kernels,) Stated prices, if they are fit for a bound."""
    kernels = list(stated.kernels)
    distinct = kernels == sorted(set(kernels)) and all(0 <= kernel < count for kernel in kernels)
    require(distinct, Fault.CERTIFICATE, "kernels with prices are not distinct, ascending kernels of the step")
    found = np.asarray(stated.prices_us, dtype=np.float64)
    require(len(found) == len(kernels), Fault.CERTIFICATE, f"{len(found)} prices for {len(kernels)} kernels")
    valid = bool(np.isfinite(found).all() and (found >= 0).all())
    require(valid, Fault.CERTIFICATE, "a price is not finite and >= 0")
    prices = np.zeros(count)
    prices[kernels] = found
    return prices


# What the time of a copying engine costs at a certificate's prices, in several cases at once.
#
# Moves that must be made within a span of kernels take an engine together no longer than these kernels take. Relaxing
# such rows at prices >= 0, for any spans, keeps the bound valid.


class Spans:
    """Prices of spans of the `count` kernels of a step, one set of prices a case.

    Raises:
        FaultError: a price is not finite and >= 0, or a span not one of kernels of the step.
    """

    def __init__(self, cases: Sequence[SpanPrices], count: int) -> None:
        for stated in cases:
            _require_valid_spans(stated, count)
        spans = sorted({span for stated in cases for span in zip(stated.starts, stated.ends, strict=True)})
        place = {span: n for n, span in enumerate(spans)}
        self._starts = np.array([start for start, _ in spans], np.int64)
        self._ends = np.array([end for _, end in spans], np.int64)
        self._price_us = np.zeros((len(cases), len(spans)))
        for case, stated in enumerate(cases):
            for span, price_us in zip(zip(stated.starts, stated.ends, strict=True), stated.prices_us, strict=True):
                self._price_us[case, place[span]] += price_us

    def whole_us(self, until_ns: npt.NDArray[np.int64]) -> Floats:
        """(cases,) Of all that the engine can do in the spans; kernels begin at `until_ns`."""
        total: Floats = self._price_us @ (until_ns[self._ends] - until_ns[self._starts])
        return total

    def around_us(self, start: int, end: int) -> Floats:
        """(cases,) Of a nanosecond of work that must be done within kernels [start, end)."""
        total: Floats = self._price_us[:, (self._starts <= start) & (self._ends >= end)].sum(axis=1)
        return total


def _require_valid_spans(stated: SpanPrices, count: int) -> None:
    same = len(stated.starts) == len(stated.ends) == len(stated.prices_us)
    require(same, Fault.CERTIFICATE, "prices of spans without their first and last kernels")
    inside = all(0 <= start < end <= count for start, end in zip(stated.starts, stated.ends, strict=True))
    require(inside, Fault.CERTIFICATE, "a span with a price is not one of kernels of the step")
    prices_us = np.asarray(stated.prices_us, dtype=np.float64)
    valid = bool(np.isfinite(prices_us).all() and (prices_us >= 0).all())
    require(valid, Fault.CERTIFICATE, "the price of a span is not finite and >= 0")
