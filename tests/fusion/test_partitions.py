"""Regions, groups and partitions of random graphs, held against what tries everything."""

from __future__ import annotations

import itertools
import random

import pytest

from autotm.fusion.partitions import (
    Partition,
    Precedence,
    Region,
    TooManyError,
    cheapest,
    combined,
    convex_groups,
    regions,
)


def graph(seed):
    """What each node reads, and which of these pairs can share a group."""
    draw = random.Random(seed)
    reads = [sorted(draw.sample(range(node), min(node, draw.randint(0, 2)))) for node in range(draw.randint(2, 8))]
    edges = [(read, node) for node, of_node in enumerate(reads) for read in of_node if draw.random() < 0.85]
    return reads, edges


def connected(group, edges):
    """Whether edges within a group connect it."""
    seen = {group[0]}
    for _ in group:
        seen |= {end for edge in edges if {*edge} <= {*group} and {*edge} & seen for end in edge}
    return seen == {*group}


def acyclic(groups, reads):
    """Whether groups can run one after the other; whatever is in none of them runs on its own."""
    place = {node: number for number, group in enumerate(groups) for node in group}
    place |= {node: len(groups) + node for node in range(len(reads)) if node not in place}
    before = {number: set() for number in place.values()}
    for node, of_node in enumerate(reads):
        before[place[node]] |= {place[read] for read in of_node} - {place[node]}
    while ready := [number for number, others in before.items() if not others & before.keys()]:
        for number in ready:
            del before[number]
    return not before


def partitions(nodes, groups):
    """Every way to share out nodes among groups."""
    if not nodes:
        yield ()
        return
    for group in groups:
        if min(nodes) in group and {*group} <= nodes:
            yield from ((group, *rest) for rest in partitions(nodes - {*group}, groups))


SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_are_all_connected_convex_sets_once(seed):
    reads, edges = graph(seed)
    precedence = Precedence(reads)
    found = [group for region in regions(range(len(reads)), edges) for group in convex_groups(region, precedence, 999)]
    sets = itertools.chain.from_iterable(
        itertools.combinations(range(len(reads)), size) for size in range(1, len(reads) + 1)
    )
    assert sorted(found) == sorted(group for group in sets if connected(group, edges) and acyclic([group], reads))


@pytest.mark.parametrize("seed", SEEDS)
def test_partitions_come_by_price_each_once_without_circles(seed):
    reads, edges = graph(seed)
    precedence, draw = Precedence(reads), random.Random(seed)
    for region in regions(range(len(reads)), edges):
        prices = {group: draw.random() * len(group) for group in convex_groups(region, precedence, 999)}
        found = list(cheapest(region.nodes, prices, precedence, 9999))
        wanted = {frozenset(own) for own in partitions({*region.nodes}, prices) if acyclic(own, reads)}
        assert (len(found), {frozenset(own.groups) for own in found}) == (len(wanted), wanted)
        assert [own.price for own in found] == sorted(own.price for own in found)
        assert all(own.price == pytest.approx(sum(prices[group] for group in own.groups)) for own in found)


def test_regions_are_told_by_their_first_nodes():
    assert regions(range(5), [(1, 3), (0, 4)]) == [
        Region((0, 4), ((0, 4),)),
        Region((1, 3), ((1, 3),)),
        Region((2,), ()),
    ]


def test_choices_of_several_parts_come_by_their_sum():
    parts = [[Partition(price, ()) for price in prices] for prices in ([1.0, 2.0, 9.0], [0.0, 0.6])]
    found = list(combined(parts, [1, 3]))
    assert found == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_too_many_sets_and_states_are_told():
    reads = [[], *([0] for _ in range(12))]
    (star,) = regions(range(13), [(0, node) for node in range(1, 13)])
    with pytest.raises(TooManyError, match="12 edges connect more than 1000 sets of operators"):
        list(convex_groups(star, Precedence(reads), 1000))
    alone = {(node,): 1.0 for node in range(13)}
    with pytest.raises(TooManyError, match="operators can be computed in more than 1000 orders"):
        next(cheapest(star.nodes, alone, Precedence(reads), 1000))
