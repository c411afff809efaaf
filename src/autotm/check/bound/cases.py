"""The cases of a certificate's tree: what each has in fast memory and what not, and the room that this leaves.

The tree says which cases there are by its form alone: a branch has both of its cases, so that every plan falls into a
leaf. Nothing is taken from the search that found it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from autotm.check.fault import Fault, require
from autotm.model.plan import Branch, Certificate, Leaf, Split, WindowBranch, WorkspaceBranch
from autotm.model.step import Graph, Tensor, Tier

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
