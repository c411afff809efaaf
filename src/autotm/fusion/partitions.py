"""Every way to share the operators of a step among kernels: regions, the groups within them, the cheapest partitions.

What is said here of nodes holds for any acyclic graph; prices of groups come from elsewhere.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Group = tuple[int, ...]
"""Nodes, ascending."""


class TooManyError(ValueError):
    """There are more groups, or more states, than can be looked at."""


@dataclass(frozen=True)
class Region:
    """Nodes of which each can share a group with another, directly or through others.

    Attributes:
        nodes: ascending.
        edges: pairs that can share a group, the earlier first.
    """

    nodes: Group
    edges: tuple[tuple[int, int], ...]


def regions(nodes: Iterable[int], edges: Iterable[tuple[int, int]]) -> list[Region]:
    """Return the connected parts of a graph, by their first nodes."""
    part = {node: {node} for node in nodes}
    pairs = sorted(edges)
    for first, second in pairs:
        if part[first] is not part[second]:
            smaller, larger = sorted((part[first], part[second]), key=len)
            larger |= smaller
            part.update(dict.fromkeys(smaller, larger))
    parts = {id(own): tuple(sorted(own)) for own in part.values()}
    pairs_of = defaultdict(list)
    for pair in pairs:
        pairs_of[id(part[pair[0]])].append(pair)
    return sorted((Region(own, tuple(pairs_of[key])) for key, own in parts.items()), key=lambda region: region.nodes)


class Precedence:
    """Which nodes are computed before which, whatever lies between them.

    Attributes:
        before: by node, the nodes that its value depends on, as bits.
    """

    def __init__(self, reads: Sequence[Iterable[int]]) -> None:
        """Keep a graph, whose nodes read earlier ones."""
        self.before = [0] * len(reads)
        for node, read in enumerate(reads):
            for other in read:
                self.before[node] |= self.before[other] | 1 << other
        self._after = [0] * len(reads)
        for node in reversed(range(len(reads))):
            for other in reads[node]:
                self._after[other] |= self._after[node] | 1 << node

    def is_convex(self, group: Iterable[int]) -> bool:
        """Return whether nothing outside a group lies between two of its nodes."""
        own = before = after = 0
        for node in group:
            own, before, after = own | 1 << node, before | self.before[node], after | self._after[node]
        return not before & after & ~own


def convex_groups(region: Region, precedence: Precedence, most: int) -> Iterator[Group]:
    """Yield each set of nodes that the region's edges connect and that nothing outside lies between, once.

    Raises:
        TooManyError: its edges connect more than `most` sets.
    """
    beside = defaultdict(set)
    for first, second in region.edges:
        beside[first].add(second)
        beside[second].add(first)
    left = most

    def grown(group: frozenset[int], border: frozenset[int], excluded: frozenset[int]) -> Iterator[frozenset[int]]:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooManyError(f"{len(region.edges)} edges connect more than {most} sets of operators")
        yield group
        for node in sorted(border):  # Whatever has the node is found here, the rest has not.
            excluded |= {node}
            new = frozenset(beside[node]) - group - excluded
            yield from grown(group | {node}, (border - excluded) | new, excluded)

    done: frozenset[int] = frozenset()
    for node in region.nodes:
        done |= {node}
        for group in grown(frozenset({node}), frozenset(beside[node]) - done, done):
            if precedence.is_convex(group):
                yield tuple(sorted(group))


@dataclass(frozen=True)
class Partition:
    """Groups that share out some nodes.

    Attributes:
        price: sum of the groups' prices.
        groups: in an order in which each follows those that it reads.
    """

    price: float
    groups: tuple[Group, ...]


def cheapest(
    nodes: Group, prices: Mapping[Group, float], precedence: Precedence, most_states: int
) -> Iterator[Partition]:
    """Yield the acyclic partitions of nodes into priced groups, the cheapest first, each once.

    What was computed is at each time a set that is closed under what it reads: so no circle can arise. The price of the
    best continuation of each such set is known exactly, so partitions are found in the order of their prices.

    Raises:
        TooManyError: there are more than `most_states` such sets.
    """
    kernels = _Kernels(nodes, prices, precedence)
    rest = kernels.continuations(most_states)
    counter = itertools.count()
    heap: list[tuple[float, int, float, int, tuple[Group, ...]]] = [(rest[0], next(counter), 0.0, 0, ())]
    while heap:
        _, _, price, computed, groups = heapq.heappop(heap)
        if computed == kernels.all:
            yield Partition(price, groups)
            continue
        for group, later in kernels.next(computed):
            if rest[later] < math.inf and kernels.is_normal(groups, group):
                whole = price + prices[group]
                heapq.heappush(heap, (whole + rest[later], next(counter), whole, later, (*groups, group)))


class _Kernels:
    """Priced groups, and what has to be computed before each. Sets of nodes are bits.

    Attributes:
        all: the nodes that are to be computed.
    """

    def __init__(self, nodes: Group, prices: Mapping[Group, float], precedence: Precedence) -> None:
        self.all = sum(1 << node for node in nodes)
        self._prices = prices
        self._bits = {group: sum(1 << node for node in group) for group in prices}
        self._needed = {}
        for group, bits in self._bits.items():
            before = 0
            for node in group:
                before |= precedence.before[node]
            self._needed[group] = before & self.all & ~bits

    def next(self, computed: int) -> list[tuple[Group, int]]:
        """Return the groups that can be computed next, each with what is computed then."""
        return [
            (group, computed | bits)
            for group, bits in self._bits.items()
            if not bits & computed and not self._needed[group] & ~computed
        ]

    def continuations(self, most_states: int) -> dict[int, float]:
        """Return for each set that can be computed the least price of the rest; infinite where nothing completes it."""
        found = {self.all: 0.0}
        stack = [0]
        while stack:  # Depth first: a set is priced when all that follow it are.
            computed = stack[-1]
            following = [] if computed in found else self.next(computed)
            if unknown := {later for _, later in following} - found.keys():
                stack.extend(unknown)
                continue
            stack.pop()
            if computed not in found:
                if len(found) >= most_states:
                    raise TooManyError(f"operators can be computed in more than {most_states} orders of kernels")
                options = (self._prices[group] + found[later] for group, later in following)
                found[computed] = min(options, default=math.inf)
        return found

    def is_normal(self, groups: tuple[Group, ...], last: Group) -> bool:
        """Return whether a group may follow others in the one order that is looked at of all that a partition has.

        It is that in which no group could come before an earlier one that has a later first node (Anisimov and Knuth's
        normal form of words whose letters commute in part).
        """
        for group in reversed(groups):
            if self._bits[group] & self._needed[last]:
                return True
            if group > last:
                return False
        return True


def combined(parts: Sequence[Sequence[Partition]], weights: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield which partition of each part to take, the cheapest sum first.

    Args:
        parts: partitions of each, the cheapest first.
        weights: how often each part counts.
    """

    def price(choice: tuple[int, ...]) -> float:
        return sum(weight * own[at].price for own, at, weight in zip(parts, choice, weights, strict=True))

    first = (0,) * len(parts)
    heap, seen = [(price(first), first)], {first}
    while heap:
        _, choice = heapq.heappop(heap)
        yield choice
        for place, at in enumerate(choice):
            later = (*choice[:place], at + 1, *choice[place + 1 :])
            if at + 1 < len(parts[place]) and later not in seen:
                seen.add(later)
                heapq.heappush(heap, (price(later), later))
