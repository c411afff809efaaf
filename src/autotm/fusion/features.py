"""What a policy is told of a fusion decision: numbers of an operator, of its reader, and of the path between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tvm import s_tir

from autotm.fusion.dataflow import Dataflow
from autotm.fusion.decisions import TreePath, decision_at
from autotm.kernels.schedules.dispatch import outline
from autotm.kernels.tir import elements, read_nest, size_bytes, top_blocks
from autotm.model.fusion import Decision
from autotm.model.graph import OpClass

_PATTERNS = ("elementwise", "broadcast", "injective", "reduction", "fusible", "tuple", "opaque")
"""TVM's `OpPatternKind`, 0 to 4, 7 and 8."""
_PLACES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 7: 5, 8: 6}


@dataclass(frozen=True)
class _Operator:
    """What is known of an operator, whatever is fused.

    Attributes:
        op_class: of its code.
        pattern: place in `_PATTERNS`.
        flops: of a call.
        elements, size_bytes: of all that it computes.
        operand_bytes: of what it reads.
        iterations: of its largest loop nest.
        summed: iterations for each element, in the nest that sums most.
        has_call: whether it computes a transcendental function.
        dimensions: of its first result.
    """

    op_class: OpClass
    pattern: int
    flops: int
    elements: int
    size_bytes: int
    operand_bytes: int
    iterations: int
    summed: int
    has_call: bool
    dimensions: int


class Features:
    """Features of the decisions of a step.

    Attributes:
        names: of each feature.
    """

    def __init__(self, flow: Dataflow, threads: int) -> None:
        """Look at the operators of a step, whose kernels run on some threads."""
        self._flow, self._threads = flow, threads
        self._operators = {place: _operator(flow, place) for place in flow.operators}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each feature."""
        first = self._flow.operators[0]
        return tuple(name for name, _ in self._named((first, first)))

    def of(self, path: TreePath) -> tuple[float, ...]:
        """Return the features of the decision at a path."""
        return tuple(value for _, value in self._named(path))

    def _named(self, path: TreePath) -> Iterator[tuple[str, float]]:
        reader, read = (self._operators[place] for place in path[-2:])
        for name, one in (("operator", read), ("reader", reader)):
            yield f"{name} elements", math.log1p(one.elements)
            yield f"{name} operand bytes", math.log1p(one.operand_bytes)
            yield f"{name} flops", math.log1p(one.flops)
            yield f"{name} flops a byte", one.flops / max(one.operand_bytes + one.size_bytes, 1)
            yield f"{name} sums", math.log(one.summed)
            yield f"{name} calls a function", float(one.has_call)
            yield f"{name} dimensions", float(one.dimensions)
        flow, place = self._flow, path[-1]
        readers = len(flow.readers[place])
        is_alone = readers == 1 and place not in flow.returned
        yield "bytes saved", math.log1p(read.size_bytes * (2 if is_alone else 1))
        yield "no other reader", float(is_alone)
        yield "readers", float(readers)
        yield "returned", float(place in flow.returned)
        yield "reads an element", math.log(max(reader.iterations, 1) / max(read.elements, 1))
        yield "same number of elements", float(reader.elements == read.elements)
        yield "level", float(len(path) - 2)
        along = [self._operators[each] for each in path[:-1]]
        yield "flops along the path", math.log1p(sum(one.flops for one in along))
        yield "bytes along the path", math.log1p(sum(one.size_bytes + one.operand_bytes for one in along))
        yield "sums along the path", float(sum(one.summed > 1 for one in along))
        yield "fused by TVM", float(decision_at(flow.default, path) is not Decision.APPLY)
        yield "threads", float(self._threads)
        for name, one in (("operator", read), ("reader", reader)):
            for kind in OpClass:
                yield f"{name} is {kind}", float(one.op_class is kind)
            for number, pattern in enumerate(_PATTERNS):
                yield f"{name} fuses as {pattern}", float(one.pattern == number)


def _operator(flow: Dataflow, place: int) -> _Operator:
    node = flow.nodes[place]
    function, results = node.function, len(node.values)
    known = outline(function)
    operands, computed = function.params[:-results], function.params[-results:]
    schedule = s_tir.Schedule(function)
    nests = [nest for block in top_blocks(schedule) if (nest := read_nest(schedule, block)) is not None]
    return _Operator(
        op_class=known.op_class,
        pattern=_PLACES[flow.pattern(place)],
        flops=known.flops,
        elements=sum(map(elements, computed)),
        size_bytes=sum(map(size_bytes, computed)),
        operand_bytes=sum(map(size_bytes, operands)),
        iterations=max((nest.iterations for nest in nests), default=0),
        summed=max((math.prod(nest.extents[axis] for axis in nest.reduction) for nest in nests), default=1),
        has_call=any(nest.has_call for nest in nests),
        dimensions=len(computed[0].shape),
    )
