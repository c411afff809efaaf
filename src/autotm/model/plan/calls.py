"""Calls: a step some of whose kernels run again, so that their results need not be kept in between.

A plan names them by index in the order in which they are called. The step that is called so is a graph like any other,
in which a kernel that runs again is a kernel of its own, and so is each result that it makes anew a tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from autotm.model.step import Graph, Kernel, Operand, Tensor, workspace

_AGAIN = " again"


def called(graph: Graph, calls: Sequence[int]) -> Graph:
    """The step as it is called: kernel number n is call number n.

    A kernel reads of each intermediate what was computed last. Arguments are the same for all calls of a kernel, so
    one that runs again may neither write any, nor read any that was overwritten after it ran first; `check` vouches
    for that. Names of what is computed again end with "again".

    Args:
        graph: with the implementations that run.
        calls: kernels by index, each for the first time in the order of the graph; `()` is each once.

    Raises:
        ValueError: the calls are not those of the step.
    """
    if not calls:
        return graph
    if list(dict.fromkeys(calls)) != list(range(len(graph.kernels))):
        raise ValueError(f"calls of {len(graph.kernels)} kernels do not name each for the first time in their order")
    kernels = tuple(_kernels(graph, calls))
    users: dict[str, dict[int, bool]] = {}
    for index, kernel in enumerate(kernels):
        for operands, writes in ((kernel.inputs, False), (kernel.outputs + kernel.workspaces, True)):
            for operand in operands:
                known = users.setdefault(operand.tensor, {})
                known[index] = known.get(index, False) or writes
    first = {tensor.name for tensor in graph.tensors}
    anew = [
        _made_again(graph, operand, index)
        for index, kernel in enumerate(kernels)
        for operand in kernel.outputs
        if operand.tensor not in first
    ]
    spaces = [
        workspace(operand, index)
        for index, kernel in enumerate(kernels)
        for operand in kernel.workspaces
        if operand.tensor not in first
    ]
    tensors = (_used(tensor, users.get(tensor.name, {}), len(calls)) for tensor in (*graph.tensors, *anew, *spaces))
    return replace(graph, kernels=kernels, tensors=tuple(tensors))


def repeats(calls: Iterable[int]) -> list[int]:
    """Those of the calls, by number, whose kernel ran before."""
    known: set[int] = set()
    found = []
    for number, kernel in enumerate(calls):
        if kernel in known:
            found.append(number)
        known.add(kernel)
    return found


def _kernels(graph: Graph, calls: Sequence[int]) -> Iterator[Kernel]:
    """Each call as a kernel, whose operands are the newest of their names."""
    times: Counter[int] = Counter()
    newest: dict[str, str] = {}

    def named(operands: tuple[Operand, ...], again: str | None) -> tuple[Operand, ...]:
        """Operands that are read; or, with `again`, that are written, which makes them the newest."""
        found = []
        for operand in operands:
            if again is not None and graph.by_name[operand.tensor].role.is_movable:
                newest[operand.tensor] = operand.tensor + again
            name = newest.get(operand.tensor, operand.tensor)
            found.append(operand if name == operand.tensor else replace(operand, tensor=name))
        return tuple(found)

    for index in calls:
        kernel, again = graph.kernels[index], _AGAIN * times[index]
        times[index] += 1
        inputs = named(kernel.inputs, None)
        outputs, workspaces = (named(operands, again) for operands in (kernel.outputs, kernel.workspaces))
        yield replace(kernel, name=kernel.name + again, inputs=inputs, outputs=outputs, workspaces=workspaces)


def _made_again(graph: Graph, operand: Operand, index: int) -> Tensor:
    name = operand.tensor
    while name not in graph.by_name:
        name = name.removesuffix(_AGAIN)
    return replace(graph.by_name[name], name=operand.tensor, producer=index, readers=())


def _used(tensor: Tensor, users: dict[int, bool], calls: int) -> Tensor:
    """The tensor with the calls that use it, of which one writes it if it has a producer."""
    producer = None if tensor.producer is None else next(index for index, writes in users.items() if writes)
    readers = tuple(sorted(users.keys() - {producer}))
    held = None if tensor.held is None else (0, calls)
    if (producer, readers, held) == (tensor.producer, tensor.readers, tensor.held):
        return tensor
    return replace(tensor, producer=producer, readers=readers, held=held)
