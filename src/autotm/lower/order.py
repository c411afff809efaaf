"""Execution order: an update runs as soon as nobody needs the old value."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping

from autotm.lower.calls import Call


def early_updates(calls: list[Call], aliases: Mapping[str, str]) -> list[Call]:
    """`calls` reordered so that each update follows its inputs and the last other reader of what it replaces.

    Autodiff leaves every update at the end, which would keep all gradients and the activations that they are made of
    alive at once. The update writes over the old value, so other readers of that must come before it. Calls that would
    have to come before one another (two updates, each of which reads what the other replaces) are left out.

    Args:
        calls: in a valid order.
        aliases: new value -> argument whose memory it takes.
    """
    before = _predecessors(calls, aliases)
    after: dict[int, list[int]] = defaultdict(list)
    for index, others in enumerate(before):
        for other in others:
            after[other].append(index)
    waits = [len(others) for others in before]
    is_update = [any(output.tensor in aliases for output in call.outputs) for call in calls]
    ready = [(not is_update[index], index) for index, count in enumerate(waits) if count == 0]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, index = heapq.heappop(ready)
        ordered.append(calls[index])
        for later in after[index]:
            waits[later] -= 1
            if waits[later] == 0:
                heapq.heappush(ready, (not is_update[later], later))
    return ordered


def _predecessors(calls: list[Call], aliases: Mapping[str, str]) -> list[set[int]]:
    """For each call, those that must come before it."""
    producer = {output.tensor: index for index, call in enumerate(calls) for output in call.outputs}
    readers: dict[str, set[int]] = defaultdict(set)
    for index, call in enumerate(calls):
        for operand in call.inputs:
            readers[operand.tensor].add(index)
    before = []
    for index, call in enumerate(calls):
        others = {producer[operand.tensor] for operand in call.inputs if operand.tensor in producer}
        replaced = (aliases[output.tensor] for output in call.outputs if output.tensor in aliases)
        before.append(others.union(*(readers[old] for old in replaced)) - {index})
    return before
