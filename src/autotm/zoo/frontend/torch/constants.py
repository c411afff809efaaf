"""What a program computes from nothing but constants (positions, masks, tables of indices), computed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from autotm.capture import is_empty

_RANDOM = torch.Tag.nondeterministic_seeded


def constant_values(graph: fx.Graph, given: Mapping[fx.Node, torch.Tensor]) -> dict[fx.Node, Any]:
    """The value of every node of the graph that depends on no argument of the step, or holds nothing.

    Args:
        graph: of PyTorch's operators.
        given: tensors that training does not change, by placeholder.
    """
    found: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node in given:
                found[node] = given[node]
            elif is_empty(node):
                found[node] = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
            elif node.op == "get_attr":
                found[node] = getattr(graph.owning_module, node.target)
            elif node.op == "call_function" and is_pure(node) and all(item in found for item in node.all_input_nodes):
                arguments, named = fx.node.map_arg((node.args, dict(node.kwargs)), found.__getitem__)
                found[node] = node.target(*arguments, **named)
    return found


def is_pure(node: fx.Node) -> bool:
    """Whether its operator gives the same for the same arguments, and does nothing else."""
    return _RANDOM not in getattr(node.target, "tags", ()) and "assert" not in getattr(node.target, "__name__", "")
