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
    found: list[dict[str, int]] = []
    left: list[dict[str, int]] = []
    for index in range(count):
        now = left[-1] if left else {}
        found.append({name: now.get(name, 0) for name in _arguments(graph, index, written=False)})
        written = Counter(now)
        written.update(set(_arguments(graph, index, written=True)))
        left.append(dict(written))
    versions: Counter[str] = Counter()
    for number, index in enumerate(calls):
        where = f"call {number}, of kernel {index} '{graph.kernels[index].name}'"
        for name, version in found[index].items():
            require(versions[name] == version, Fault.CALLS, f"{where}: '{name}' was overwritten before")
        for name in set(_arguments(graph, index, written=True)):
            versions[name] += 1
            same = versions[name] == left[index][name]
            require(same, Fault.CALLS, f"{where}: it writes '{name}', which it may do once")


def _arguments(graph: Graph, index: int, *, written: bool) -> list[str]:
    """Names of the arguments' memory that a kernel reads or writes."""
    kernel = graph.kernels[index]
    operands = kernel.outputs if written else kernel.inputs
    names = (operand.tensor for operand in operands)
    return [storage_of(graph, name) for name in names if not graph.by_name[name].role.is_movable]
