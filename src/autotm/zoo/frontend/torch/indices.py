"""Checks of a step's inputs before it runs: indices lie within what they index, the module's assertions hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from autotm.model.files import BadInputError
from autotm.zoo.frontend.torch.constants import is_pure
from autotm.zoo.frontend.torch.program import where
from autotm.zoo.frontend.torch.rare import argument

Array = npt.NDArray[Any]
_ALONG_AN_AXIS = {"gather", "index_select", "scatter", "scatter_add", "scatter_reduce"}
"""Operators whose arguments are a tensor, an axis, and indices along it, from 0 on."""
_FROM_THE_END_TOO = {"index", "index_put"}
"""Operators whose arguments are a tensor and indices along its first axes, which may be negative."""

_MOVING = {
    "_to_copy", "_unsafe_view", "alias", "clone", "detach", "expand", "permute", "reshape", "select", "slice",
    "squeeze", "t", "transpose", "unsqueeze", "view",
}  # fmt: skip
"""Operators that give elements of a tensor as they are."""


@dataclass(frozen=True)
class _Use:
    """Indices of a node, and the first and the last that its operator takes."""

    indices: fx.Node
    node: fx.Node
    first: int
    last: int


class IndexChecks:
    """Checks of the indices and assertions that a graph computes from its integer inputs alone."""

    def __init__(self, graph: fx.Graph, inputs: Mapping[str, str], known: Mapping[fx.Node, Any]) -> None:
        """Collect them from a graph.

        Args:
            graph: of PyTorch's operators.
            inputs: the name of the input behind a placeholder, by the placeholder's.
            known: the values of nodes that depend on no argument.
        """
        self._known, self._inputs = known, inputs
        self._names: dict[fx.Node, frozenset[str]] = dict.fromkeys(known, frozenset())
        for node in graph.nodes:
            if node in known or not _is_whole(node):
                continue
            if node.op == "placeholder" and node.name in inputs:
                self._names[node] = frozenset({inputs[node.name]})
            elif node.op == "call_function" and is_pure(node):
                arguments = [self._names.get(item) for item in node.all_input_nodes]
                if all(names is not None for names in arguments):
                    self._names[node] = frozenset().union(*arguments)
        self._asserted = [
            node
            for node in graph.nodes
            if node.target == torch.ops.aten._assert_async.msg and self._names.get(node.args[0])  # noqa: SLF001 - its name
        ]
        self._uses = [use for node in graph.nodes for use in _uses(node) if self._names.get(use.indices)]

    def check_sources(self, node: fx.Node) -> None:
        """Refuse an operator of ours whose indices nobody checks.

        Raises:
            BadInputError: they come from other operators, which may give any; kernels of ours would read elsewhere.
        """
        for use in _uses(node):
            if use.indices not in self._names and not _is_rank(use.indices, use.last + 1):
                raise BadInputError(
                    f"its indices, {use.indices.name}, are computed in the step, where nothing checks them"
                )

    def __call__(self, values: Mapping[str, Array]) -> None:
        """Check the indices and assertions.

        Args:
            values: of inputs by name, as the source has them; indices that come from others are not checked.

        Raises:
            BadInputError: one is out of range; names it, its input, the range, and the line of the user's code.
        """
        evaluated = {
            node: torch.from_numpy(np.ascontiguousarray(values[name]))
            for node in self._names
            if node.op == "placeholder" and (name := self._inputs.get(node.name)) in values
        }
        for node in self._asserted:
            if self._names[node.args[0]] <= values.keys() and not self._value(node.args[0], evaluated).all():
                raise BadInputError(f"{_of(self._names[node.args[0]])}: {where(node)}: {node.args[1]}")
        for use in self._uses:
            names = self._names[use.indices]
            if names <= values.keys():
                indices = self._value(use.indices, evaluated)
                outside = indices[(indices < use.first) | (indices > use.last)]
                if outside.numel():
                    raise BadInputError(
                        f"{_of(names)}: index {outside[0].item()} is out of range: {where(use.node)} takes "
                        f"{use.first} to {use.last}"
                    )

    def _value(self, node: fx.Node, evaluated: dict[fx.Node, Any]) -> Any:
        if node in self._known:
            return self._known[node]
        if node not in evaluated:
            arguments, named = fx.node.map_arg(
                (node.args, dict(node.kwargs)), lambda item: self._value(item, evaluated)
            )
            evaluated[node] = node.target(*arguments, **named)  # type: ignore[operator]
        return evaluated[node]


def _of(names: Iterable[str]) -> str:
    return f"input {' and '.join(sorted(names))}"


def _is_whole(node: fx.Node) -> bool:
    """Whether it gives one tensor of whole numbers or truth values."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _uses(node: fx.Node) -> Iterator[_Use]:
    """The indices among a node's arguments."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - no other name
        return
    name = node.target.overloadpacket.__name__
    if name == "embedding":
        table, indices = node.args[:2]
        yield _use(node, indices, _shape(table)[0], is_signed=False)
    elif name in _ALONG_AN_AXIS:
        tensor, axis, indices = node.args[:3]
        yield _use(node, indices, _shape(tensor)[axis] if _shape(tensor) else 1, is_signed=False)
    elif name in _FROM_THE_END_TOO:
        tensor, several = node.args[:2]
        for axis, indices in enumerate(several):
            if isinstance(indices, fx.Node) and indices.meta["val"].dtype != torch.bool:
                yield _use(node, indices, _shape(tensor)[axis], is_signed=True)


def _is_rank(node: fx.Node, extent: int) -> bool:
    """Whether indices are places of the largest along an axis of no more than so many elements: chosen experts, say."""
    while _name(node) in _MOVING and node.args:
        node = node.args[0]
    if _name(node) != "getitem" or _name(node.args[0]) != "topk":
        return False
    source = node.args[0]
    shape = _shape(source.args[0])
    return (shape[argument(source, 2, "dim", -1)] if shape else 1) <= extent


def _name(node: Any) -> str:
    target = getattr(node, "target", None)
    return str(getattr(getattr(target, "overloadpacket", target), "__name__", ""))


def _use(node: fx.Node, indices: Any, extent: int, *, is_signed: bool) -> _Use:
    return _Use(indices, node, -extent if is_signed else 0, extent - 1)


def _shape(node: Any) -> Sequence[int]:
    return [int(extent) for extent in node.meta["val"].shape]
