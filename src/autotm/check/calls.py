"""Whether a step may be called as a plan says: what runs again finds its arguments as they were, and writes none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotm.check.fault import Fault, require
from autotm.model.plan import Plan
from autotm.model.step import Graph, storage_of


def called_kernels(graph: Graph, plan: Plan) -> Sequence[int]:
    """The kernel of each call of a plan."""
    return plan.calls or range(len(graph.kernels))


def check_calls(graph: Graph, plan: Plan) -> None:
    """Each kernel runs, for the first time in the graph's order, and no call finds another value of an argument.

    The memory of an argument has a version: how many kernels have written to it. Every call of a kernel has to find
    the versions that the kernel finds where each runs once, and leave those that it leaves there.

    Raises:
        FaultError: the first broken rule.
    """
    calls = called_kernels(graph, plan)
    count = len(graph.kernels)
    first = list(dict.fromkeys(calls))
    require(first == list(range(count)), Fault.CALLS, f"they do not call {count} kernels for the first time in order")
    plain: Counter[str] = Counter()
    once = [_touched(graph, index, plain) for index in range(count)]
    versions: Counter[str] = Counter()
    for number, index in enumerate(calls):
        where = f"call {number}, of kernel {index} '{graph.kernels[index].name}'"
        found, left = _touched(graph, index, versions)
        for name, version in once[index][0].items():
            require(found[name] == version, Fault.CALLS, f"{where}: '{name}' was overwritten before")
        for name, version in once[index][1].items():
            require(left[name] == version, Fault.CALLS, f"{where}: it writes '{name}', which it may do once")


def _touched(graph: Graph, index: int, versions: Counter[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Versions that a kernel finds of what it reads, and leaves of what it writes; `versions` are then those after."""
    found = {name: versions[name] for name in _arguments(graph, index, written=False)}
    written = _arguments(graph, index, written=True)
    versions.update(written)
    return found, {name: versions[name] for name in written}


def _arguments(graph: Graph, index: int, *, written: bool) -> set[str]:
    """Names of the arguments' memory that a kernel reads or writes."""
    kernel = graph.kernels[index]
    operands = kernel.outputs if written else kernel.inputs
    names = (operand.tensor for operand in operands)
    return {storage_of(graph, name) for name in names if not graph.by_name[name].role.is_movable}
