"""Nodes of a graph as calls over a list of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from autotm.api.offload.graph.storages import Operator, Step, tensors_of

Values = list[Any]
"""What each node gave, by its slot; None before, and after it is given up."""
Call = Callable[[Values], Any]


class Slots:
    """The place of each node's value."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._places = {node: place for place, node in enumerate(nodes)}

    def __getitem__(self, node: Node) -> int:
        return self._places[node]

    def empty(self) -> Values:
        """No values yet."""
        return [None] * len(self._places)

    def call(self, node: Node) -> Call:
        """Calls the node's function on the values of others."""
        target, named = node.target, dict(node.kwargs)
        assert callable(target)
        if not any(isinstance(item, tuple | list | dict | slice) for item in (*node.args, *named.values())):
            flat = [(isinstance(item, Node), self[item] if isinstance(item, Node) else item) for item in node.args]
            if not any(isinstance(item, Node) for item in named.values()):
                return lambda values: target(*[values[item] if is_node else item for is_node, item in flat], **named)

        def call(values: Values) -> Any:
            def value_of(other: Node) -> Any:
                return values[self[other]]

            args = torch.fx.node.map_arg(node.args, value_of)
            return target(*args, **torch.fx.node.map_arg(named, value_of))

        return call


def bytes_of(value: torch.Tensor) -> torch.Tensor:
    """All bytes of the storage behind a tensor; it stays valid while that is emptied and filled again."""
    storage = value.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage, 0, (storage.nbytes(),), (1,))


def keep(step: Step, slots: Slots, values: Values, operator: Operator, found: Any) -> dict[int, torch.Tensor]:
    """Take what an operator gave, and make the views of it while it is there; the bytes of each storage it made."""
    values[slots[operator.node]] = found
    for view in operator.views:
        values[slots[view]] = slots.call(view)(values)
    tensors = list(tensors_of(found))
    if not isinstance(found, torch.Tensor):
        values[slots[operator.node]] = None  # Its tensors have nodes of their own, and are given up one by one.
    return {place: bytes_of(tensors[step.storages[place].element]) for place in operator.outputs}


def argument_bytes(step: Step, slots: Slots, values: Values) -> dict[int, torch.Tensor]:
    """The storages of arguments, to be told apart from others; they are never moved."""
    return {
        place: values[slots[storage.nodes[0]]]
        for place, storage in enumerate(step.storages)
        if storage.argument is not None
    }
