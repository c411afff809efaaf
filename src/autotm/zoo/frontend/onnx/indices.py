"""Checks of an ONNX step's inputs before it runs: indices lie within what they index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from autotm.model.files import BadInputError
from autotm.zoo.frontend.onnx.model_file import label
from autotm.zoo.frontend.onnx.node_models import Array, computed, is_random, names_read

ShapeOf = Callable[[str], tuple[int, ...]]
"""Of a tensor by name."""
_ALONG_AN_AXIS = {"Gather", "GatherElements", "Scatter", "ScatterElements"}
_OF_PLACES = {"GatherND", "ScatterND"}
"""Operators whose indices have one number for each of some axes, last."""


@dataclass(frozen=True)
class _Use:
    """Indices by name, and the extents of the axes that they index: one, or one for each number of a place."""

    indices: str
    node: NodeProto
    extents: tuple[int, ...]


class IndexChecks:
    """Checks of the indices that a graph computes from its integer inputs alone."""

    def __init__(self, opset: int, inputs: Mapping[str, str]) -> None:
        """Begin with none.

        Args:
            opset: version of ONNX's operators.
            inputs: names in the step, by those in the file, of the inputs that hold whole numbers.
        """
        self._opset, self._inputs = opset, inputs
        self._names = {name: frozenset({given}) for name, given in inputs.items()}
        self._nodes: dict[str, tuple[NodeProto, Mapping[str, Array]]] = {}
        self._uses: list[_Use] = []

    def follow(self, node: NodeProto, known: Mapping[str, Array]) -> None:
        """Note what a node computes, if it computes from these inputs and constants alone."""
        read = [name for name in names_read(node) if name not in known]
        if not is_random(node, known) and all(name in self._names for name in read):
            names = frozenset().union(*(self._names[name] for name in read))
            for result in node.output:
                self._names[result], self._nodes[result] = names, (node, known)

    def check_known(self, node: NodeProto, known: Mapping[str, Array], shape_of: ShapeOf) -> None:
        """Check the indices of a node that are constants.

        Raises:
            BadInputError: one is out of range.
        """
        for use in _uses(node, shape_of):
            if use.indices in known:
                _check(use, known[use.indices], f"'{use.indices}'")

    def check_sources(self, node: NodeProto, known: Mapping[str, Array], shape_of: ShapeOf) -> None:
        """Note the indices of a node that a kernel of ours computes: the inputs behind them are checked.

        Raises:
            BadInputError: they come from other operators, which may give any.
        """
        for use in _uses(node, shape_of):
            if use.indices in self._names:
                self._uses.append(use)
            elif use.indices not in known:
                raise BadInputError(
                    f"its indices, '{use.indices}', are computed in the step, where nothing checks them"
                )

    def __call__(self, values: Mapping[str, Array]) -> None:
        """Check indices.

        Args:
            values: of inputs by their names in the step; indices that come from others are not checked.

        Raises:
            BadInputError: one is out of range; names it, its input, the range, and the node.
        """
        evaluated = {name: np.asarray(values[given]) for name, given in self._inputs.items() if given in values}
        for use in self._uses:
            names = self._names[use.indices]
            if names <= values.keys():
                _check(use, self._value(use.indices, evaluated), _of(names))

    def _value(self, name: str, evaluated: dict[str, Array]) -> Array:
        if name not in evaluated:
            node, known = self._nodes[name]
            values = {item: known[item] if item in known else self._value(item, evaluated) for item in names_read(node)}
            results = [item for item in node.output if item]
            evaluated.update(zip(results, computed(node, values, results, self._opset), strict=True))
        return evaluated[name]


def _uses(node: NodeProto, shape_of: ShapeOf) -> Iterator[_Use]:
    if node.op_type in _ALONG_AN_AXIS:
        axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
        yield _Use(node.input[1], node, (shape_of(node.input[0])[axis],))
    elif node.op_type in _OF_PLACES:
        first = next((item.i for item in node.attribute if item.name == "batch_dims"), 0)
        yield _Use(node.input[1], node, shape_of(node.input[0])[first : first + shape_of(node.input[1])[-1]])


def _check(use: _Use, indices: Array, what: str) -> None:
    extents = np.asarray(use.extents)
    outside = (indices < -extents) | (indices >= extents)
    if outside.any():
        place = tuple(np.argwhere(outside)[0])
        extent = use.extents[place[-1] if len(use.extents) > 1 else 0]
        raise BadInputError(
            f"{what}: index {indices[place]} is out of range: {label(use.node)} takes {-extent} to {extent - 1}"
        )


def _of(names: Collection[str]) -> str:
    return f"input {' and '.join(sorted(names))}"
