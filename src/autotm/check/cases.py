"""The cases of a certificate's tree: what each has in fast memory and what not, and the room that this leaves.

The tree says which cases there are by its form alone: a branch has both of its cases, so that every plan falls into a
leaf. Nothing is taken from the search that found it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.check.fault import Fault, require
from autotm.model.certificate import Branch, Certificate, Empty, Leaf
from autotm.model.graph import Graph, Tensor

Flags = npt.NDArray[np.bool_]

Assumption = tuple[Branch, bool]
"""A branch, and which of its cases: whether the tensor is in fast memory."""


@dataclass(frozen=True)
class Case:
    """A leaf of the tree.

    Attributes:
        assumed: what holds in it.
        leaf: what is said of it.
    """

    assumed: tuple[Assumption, ...]
    leaf: Leaf | Empty


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
        if isinstance(node, Branch):
            waiting += [(*assumed, (node, False)), (*assumed, (node, True))]
            continue
        if isinstance(node, Leaf):
            known = 0 <= node.prices < len(certificate.prices)
            require(known, Fault.CERTIFICATE, f"no set of prices has number {node.prices}")
        found.append(Case(assumed, node))
    require(not waiting, Fault.CERTIFICATE, f"{len(waiting)} cases of the tree are missing")
    return found


class Assumed:
    """What several cases take for granted, as arrays over the cases.

    Attributes:
        room: (cases, kernels) bytes of the limit that the tensors assumed fast leave.
    """

    def __init__(self, graph: Graph, cases: Sequence[Case], limit_bytes: int, for_life: frozenset[str]) -> None:
        self.room = np.full((len(cases), len(graph.kernels)), limit_bytes, np.int64)
        self._fast: dict[tuple[str, int], Flags] = {}
        self._not_fast: dict[tuple[str, int], Flags] = {}
        names = {tensor.name for tensor in graph.movable}
        for number, case in enumerate(cases):
            for branch, is_fast in case.assumed:
                require(branch.tensor in names, Fault.CERTIFICATE, f"a branch on '{branch.tensor}', which cannot move")
                tensor = graph.by_name[branch.tensor]
                start, end = _span(tensor, branch.kernel, branch.tensor in for_life)
                key = branch.tensor, start
                known = self._fast if is_fast else self._not_fast
                if is_fast and not (key in known and known[key][number]):
                    self.room[number, start:end] -= tensor.allocated_bytes
                known.setdefault(key, np.zeros(len(cases), bool))[number] = True
        self._least_room = self.room.min(axis=0, initial=limit_bytes)
        self._never = np.zeros(len(cases), bool)

    def fast(self, tensor: Tensor, start: int) -> Flags:
        """(cases,) Whether it is assumed to be fast in the span that begins at kernel `start`."""
        return self._fast.get((tensor.name, start), self._never)

    def excluded(self, tensor: Tensor, start: int, end: int) -> Flags:
        """(cases,) Whether it cannot be fast during kernels [start, end): it is assumed not to be, or has no room."""
        excluded = self._not_fast.get((tensor.name, start), self._never)
        if self._least_room[start:end].min() >= tensor.allocated_bytes:
            return excluded
        full = np.logical_and(self.has_no_room(tensor, start, end), ~self.fast(tensor, start))
        either: Flags = np.logical_or(excluded, full)
        return either

    def has_no_room(self, tensor: Tensor, start: int, end: int) -> Flags:
        """(cases,) Whether it does not fit during kernels [start, end), a part of a span."""
        full: Flags = (self.room[:, start:end] < tensor.allocated_bytes).any(axis=1)
        return full


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


def check_empty(cases: Sequence[Case], assumed: Assumed) -> None:
    """Cases said to be empty are.

    Raises:
        FaultError: what such a case has in fast memory fits.
    """
    for number, case in enumerate(cases):
        if isinstance(case.leaf, Empty):
            inside = 0 <= case.leaf.full_at < assumed.room.shape[1]
            left = int(assumed.room[number, case.leaf.full_at]) if inside else 0
            text = f"a case is said to have no room at kernel {case.leaf.full_at}, where {left} bytes are left"
            require(left < 0, Fault.CERTIFICATE, text)


def batches(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    """So many cases at a time."""
    for first in range(0, len(cases), size):
        yield cases[first : first + size]
