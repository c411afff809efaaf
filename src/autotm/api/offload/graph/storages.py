"""The nodes of a joint graph as operators over storages: what allocates, what only views, what is read when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from autotm.api.offload.graph.capture import Captured, storage_of
from autotm.model.files import BadInputError
from autotm.model.step import Role


@dataclass
class Storage:
    """Memory that one operator allocates, or that an argument brings; all its views come and go with it.

    Attributes:
        name: of the node that is first in it.
        size_bytes: as PyTorch allocates it.
        argument: its role; None where an operator makes it.
        producer: index of that operator.
        readers: of the others that use it, ascending.
        nodes: that view it, first the one that it is named after.
        element: of the tensors that this node gives, the one that is in it.
    """

    name: str
    size_bytes: int
    argument: Role | None
    producer: int | None
    readers: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    element: int = 0

    @property
    def last(self) -> int:
        """The last operator that uses it; -1 where none does."""
        return max(self.readers, default=-1 if self.producer is None else self.producer)


@dataclass
class Operator:
    """A node that computes.

    Attributes:
        node: that is called.
        inputs: storages that it reads, each once.
        outputs: storages that it allocates.
        views: nodes to be made right after it: views of what it allocated. They are made while it is there, and stay
            valid when the storage is emptied and filled again.
    """

    node: Node
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    views: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """A joint graph, ready to be timed, planned and run.

    Attributes:
        operators: in PyTorch's order.
        storages: of arguments first.
        argument_views: nodes that view arguments and constants.
        constants: tensors that the graph holds itself, by node.
        results: storages that are there at the end.
    """

    captured: Captured
    operators: tuple[Operator, ...]
    storages: tuple[Storage, ...]
    argument_views: tuple[Node, ...]
    constants: dict[Node, torch.Tensor]
    results: tuple[int, ...]


def step_of(captured: Captured) -> Step:
    """Tell operators from views, by the storages that PyTorch's own tracing gave them.

    Raises:
        BadInputError: an operator overwrites a tensor, or takes a function.
    """
    made = _Reader(captured)
    for node in captured.graph.graph.nodes:
        made.read(node)
    results = tuple(dict.fromkeys(made.places[storage_of(node.meta["val"])] for node in captured.results))
    return Step(
        captured, tuple(made.operators), tuple(made.storages), tuple(made.argument_views), made.constants, results
    )


class _Reader:
    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.operators: list[Operator] = []
        self.storages: list[Storage] = []
        self.argument_views: list[Node] = []
        self.constants: dict[Node, torch.Tensor] = {}
        self.places: dict[int, int] = {}
        self._extents: dict[int, set[tuple[int, int]]] = defaultdict(set)

    def read(self, node: Node) -> None:
        match node.op:
            case "placeholder":
                self._argument(node, self.captured.arguments[node][0])
            case "get_attr":
                value = getattr(self.captured.graph, str(node.target))
                if not isinstance(value, torch.Tensor):
                    raise BadInputError(
                        f"offload: operator with a function of its own, '{node.name}', is not supported"
                    )
                node.meta.setdefault("val", value)
                self.constants[node] = value
                self._argument(node, Role.CONSTANT)
            case "call_function":
                self._call(node)

    def _argument(self, node: Node, argument: Role) -> None:
        value = node.meta["val"]
        key = storage_of(value)
        if key not in self.places:
            self.places[key] = len(self.storages)
            self.storages.append(Storage(node.name, 0, argument, None))
        storage = self.storages[self.places[key]]
        # A batch may be a slice of a large tensor, which is none of the step's business; tensors may share memory.
        extent = (value.storage_offset() * value.element_size(), value.numel() * value.element_size())
        if extent not in self._extents[key]:
            self._extents[key].add(extent)
            storage.size_bytes += extent[1]
        storage.nodes.append(node)

    def _call(self, node: Node) -> None:
        if isinstance(node.target, torch._ops.HigherOrderOperator):  # noqa: SLF001 - it has no public name
            raise BadInputError(f"offload: operator '{node.target}' takes functions, which is not supported")
        is_operator = isinstance(node.target, torch._ops.OpOverload)  # noqa: SLF001 - as above
        if is_operator and node.target._schema.is_mutable:  # noqa: SLF001 - as above
            raise BadInputError(f"offload: operator '{node.target}' overwrites a tensor, which is not supported")
        read = dict.fromkeys(
            self.places[storage_of(value)]
            for source in node.all_input_nodes
            for value in tensors_of(source.meta.get("val"))
        )
        values = list(tensors_of(node.meta.get("val")))
        fresh: dict[int, int] = {}
        for element, value in enumerate(values):
            if storage_of(value) not in self.places:
                fresh.setdefault(storage_of(value), element)
        if node.target is getitem or (values and not fresh):
            self._view(node, values, read)
            return
        index = len(self.operators)
        for place in read:
            self.storages[place].readers.append(index)
        outputs = []
        for key, element in fresh.items():
            self.places[key] = len(self.storages)
            outputs.append(self.places[key])
            size_bytes, name = values[element].untyped_storage().nbytes(), f"{node.name}.{element}"
            self.storages.append(Storage(name, size_bytes, None, index, nodes=[node], element=element))
        self.operators.append(Operator(node, tuple(read), tuple(outputs)))

    def _view(self, node: Node, values: list[torch.Tensor], read: dict[int, None]) -> None:
        for place in dict.fromkeys(self.places[storage_of(value)] for value in values):
            self.storages[place].nodes.append(node)
        # An element of several results belongs to its operator, whichever storages the others have.
        producers = [self.storages[place].producer for place in read]
        last = max((producer for producer in producers if producer is not None), default=None)
        (self.argument_views if last is None else self.operators[last].views).append(node)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a node gives: a tensor, several, or none."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_of(item)
