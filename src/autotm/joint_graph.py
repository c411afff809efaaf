"""PyTorch's joint graph of a step: captured, read as operators over storages, called over the values of its nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import getitem
from typing import Any

import torch
from torch import fx, nn
from torch.fx import Node

from autotm.capture import TANGENT, Captured, checked_loss, refusals
from autotm.capture import capture as captured_by_pytorch
from autotm.model.errors import BadInputError
from autotm.model.graph import Role

aten = torch.ops.aten


def named_batch(batch: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs and targets by the names of their arguments, which no parameter has."""
    return {f"batch {number}": tensor for number, tensor in enumerate(batch)}


def capture(
    module: nn.Module,
    inputs: Sequence[torch.Tensor],
    loss: Callable[..., Any] | None,
    targets: Sequence[torch.Tensor],
    device: torch.device,
) -> Captured:
    """Trace the step; the captured values are those that do not come with a batch.

    Raises:
        BadInputError: it depends on the values of tensors, or PyTorch cannot trace it.
    """

    def call(applied: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        output = applied(*tensors[: len(inputs)])
        return checked_loss(output if loss is None else loss(output, *tensors[len(inputs) :]))

    batch = named_batch((*inputs, *targets))
    order = "a plan is made for one order of operators"
    with refusals("offload", order, "a plan is made for fixed shapes", "PyTorch cannot capture the step:"):
        captured = captured_by_pytorch(
            module, call, batch, trains=True, table=_EAGER_DROPOUT if device.type == "cpu" else {}
        )
    taken = {storage_of(node.meta["val"]) for node in captured.arguments}
    own = partial(_with_own_memory, captured.graph, taken)
    return replace(
        captured,
        outputs=[own(node) for node in captured.outputs],
        gradients={name: own(node) for name, node in captured.gradients.items()},
        values={name: tensor for name, tensor in captured.values.items() if name not in batch},
    )


def _with_own_memory(graph: fx.Graph, taken: set[int], node: Node) -> Node:
    """Return a result, or a copy if its storage is in `taken` or larger than it, as autograd does; add to `taken`."""
    value = node.meta["val"]
    storage = storage_of(value)
    if storage not in taken and value.untyped_storage().nbytes() == value.numel() * value.element_size():
        taken.add(storage)
        return node
    (output,) = graph.find_nodes(op="output")
    with graph.inserting_before(output), value.fake_mode:
        copied = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
        copied.meta["val"] = value.clone(memory_format=torch.contiguous_format)
    return copied


def storage_of(value: torch.Tensor) -> int:
    """Return a key that tensors with shared memory have in common; it is valid as long as one of them lives."""
    return value.untyped_storage()._cdata  # noqa: SLF001 - as PyTorch's partitioners tell storages apart


@torch.library.custom_op("autotm::bernoulli_like", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _bernoulli_like(like: torch.Tensor, keep: float) -> torch.Tensor:
    """Return ones with probability `keep`, else zeros, drawn in the order of the memory of `like`.

    PyTorch's own functional operator draws in the order of the axes, which is another one where axes are transposed.
    """
    return torch.empty_like(like).bernoulli_(keep)


@_bernoulli_like.register_fake
def _(like: torch.Tensor, keep: float) -> torch.Tensor:
    del keep
    return torch.empty_like(like)


def _dropout(value: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute dropout as the CPU computes it outside of graphs: the mask is scaled before it is kept."""
    if train is False or p == 0:
        return value.clone(), torch.ones_like(value)
    keep = 1 - p
    noise = torch.ops.autotm.bernoulli_like(value, keep)
    noise = noise / keep if keep else noise.zero_()
    return value * noise, noise


def _dropout_backward(gradient: torch.Tensor, noise: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the gradient of `_dropout`; `noise` already contains the scale."""
    del scale
    return gradient * noise


_EAGER_DROPOUT = {aten.native_dropout.default: _dropout, aten.native_dropout_backward.default: _dropout_backward}
"""While tracing, PyTorch takes the fused operator of GPUs for dropout everywhere; the CPU's rounds differently."""


@dataclass
class Storage:
    """Memory that one operator allocates, or that an argument brings; all its views come and go with it.

    Attributes:
        name: name of the first node that views it.
        size_bytes: as PyTorch allocates it.
        argument: its role; None where an operator makes it.
        producer: index of the operator that makes it.
        readers: indices of the other operators that use it, ascending.
        nodes: nodes that view it, first the one that it is named after.
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
        """The last operator that reads it; -1 where none does."""
        return max(self.readers, default=-1)


@dataclass
class Operator:
    """A node that computes.

    Attributes:
        node: the node that is called.
        inputs: storages that it reads, each once.
        outputs: storages that it allocates.
        views: nodes to be made right after it: views of what it allocated. They are made while it is there, and stay
            valid when the storage is emptied and filled again.
    """

    node: Node
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    views: list[Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of what is called."""
        target = self.node.target
        is_operator = isinstance(target, torch._ops.OpOverload)  # noqa: SLF001 - it has no public name
        return str(target) if is_operator else target.__name__  # type: ignore[union-attr]

    @property
    def is_random(self) -> bool:
        """Whether it draws from PyTorch's generator."""
        return torch.Tag.nondeterministic_seeded in getattr(self.node.target, "tags", ())


class Step:
    """A joint graph, ready to be timed, planned and run: operators, told from views by PyTorch's traced storages.

    Attributes:
        captured: the graph.
        operators: in PyTorch's order.
        storages: of arguments first.
        argument_views: nodes that view arguments and constants.
        constants: tensors that the graph holds itself, by node.
        results: storages that are there at the end.
    """

    def __init__(self, captured: Captured) -> None:
        """Read the graph; BadInputError if an operator overwrites a tensor, or takes a function."""
        self.captured = captured
        self.operators: list[Operator] = []
        self.storages: list[Storage] = []
        self.argument_views: list[Node] = []
        self.constants: dict[Node, torch.Tensor] = {}
        self._places: dict[int, int] = {}
        self._extents: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for node in captured.graph.nodes:
            if node.op == "placeholder":
                self._argument(node, captured.arguments[node][0])
            elif node.op == "get_attr":
                value = getattr(captured.graph.owning_module, str(node.target))
                if not isinstance(value, torch.Tensor):
                    raise BadInputError(
                        f"offload: operator with a function of its own, '{node.name}', is not supported"
                    )
                node.meta.setdefault("val", value)
                self.constants[node] = value
                self._argument(node, Role.CONSTANT)
            elif node.op == "call_function":
                self._call(node)
        last = (*captured.outputs, *captured.gradients.values(), *captured.updates.values())
        self.results = tuple(dict.fromkeys(self._places[storage_of(node.meta["val"])] for node in last))

    @property
    def held(self) -> set[int]:
        """Storages that are never moved: those of arguments and constants."""
        return {place for place, storage in enumerate(self.storages) if storage.argument is not None}

    @property
    def batch(self) -> dict[str, torch.Tensor]:
        """The tensors of the batch without values, by their names."""
        arguments = self.captured.arguments.items()
        return {name: node.meta["val"] for node, (role, name) in arguments if role is Role.INPUT}

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return next((value.shape[0] for value in self.batch.values() if value.ndim), 1)

    @property
    def turn(self) -> int:
        """Index of the first operator of the backward pass: the first that reads the derivative of the loss."""
        tangents = {node for node, (_, name) in self.captured.arguments.items() if name == TANGENT}
        readers = [reader for one in self.storages if tangents & {*one.nodes} for reader in one.readers]
        return min(readers, default=len(self.operators))

    def _argument(self, node: Node, argument: Role) -> None:
        value = node.meta["val"]
        key = storage_of(value)
        if key not in self._places:
            self._places[key] = len(self.storages)
            self.storages.append(Storage(node.name, 0, argument, None))
        storage = self.storages[self._places[key]]
        # A batch may be a slice of a larger tensor, whose other bytes the step does not use; tensors may share memory.
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
            self._places[storage_of(value)]
            for source in node.all_input_nodes
            for value in tensors_of(source.meta.get("val"))
        )
        values = list(tensors_of(node.meta.get("val")))
        fresh: dict[int, int] = {}
        for element, value in enumerate(values):
            if storage_of(value) not in self._places:
                fresh.setdefault(storage_of(value), element)
        if node.target is getitem or (values and not fresh):
            self._view(node, values, read)
            return
        index = len(self.operators)
        for place in read:
            self.storages[place].readers.append(index)
        outputs = []
        for key, element in fresh.items():
            self._places[key] = len(self.storages)
            outputs.append(self._places[key])
            size_bytes, name = values[element].untyped_storage().nbytes(), f"{node.name}.{element}"
            self.storages.append(Storage(name, size_bytes, None, index, nodes=[node], element=element))
        self.operators.append(Operator(node, tuple(read), tuple(outputs)))

    def _view(self, node: Node, values: list[torch.Tensor], read: dict[int, None]) -> None:
        for place in dict.fromkeys(self._places[storage_of(value)] for value in values):
            self.storages[place].nodes.append(node)
        # An element of several results belongs to its operator, whichever storages the others have.
        producers = [self.storages[place].producer for place in read]
        last = max((producer for producer in producers if producer is not None), default=None)
        (self.argument_views if last is None else self.operators[last].views).append(node)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a node's value, which is a tensor, a list or tuple of values, or neither."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_of(item)


Values = dict[Node, Any]
"""The value of each node that ran; None once it was released."""


def call_of(node: Node, target: Callable[..., Any] | None = None) -> Callable[[Values], Any]:
    """Return a function that calls the node's function, or another in its place, on the values of others."""
    target, named = target or node.target, dict(node.kwargs)
    assert callable(target)
    if not any(isinstance(item, tuple | list | dict | slice | Node) for item in named.values()) and not any(
        isinstance(item, tuple | list | dict | slice) for item in node.args
    ):
        flat = [(isinstance(item, Node), item) for item in node.args]
        return lambda values: target(*[values[item] if is_node else item for is_node, item in flat], **named)

    def call(values: Values) -> Any:
        args, kwargs = torch.fx.node.map_arg((node.args, named), values.__getitem__)
        return target(*args, **kwargs)

    return call


def bytes_of(result: Any, element: int) -> torch.Tensor:
    """Return all bytes of the storage behind a tensor of a result; they stay valid while it is emptied and refilled."""
    value = list(tensors_of(result))[element]
    storage = value.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage, 0, (storage.nbytes(),), (1,))


def keep(step: Step, values: Values, operator: Operator, result: Any) -> dict[int, torch.Tensor]:
    """Store an operator's result, make the views of it, and return the bytes of each storage that it made."""
    values[operator.node] = result
    for view in operator.views:
        values[view] = call_of(view)(values)
    if not isinstance(result, torch.Tensor):
        values[operator.node] = None  # Its tensors have nodes of their own, and are given up one by one.
    return {place: bytes_of(result, step.storages[place].element) for place in operator.outputs}
