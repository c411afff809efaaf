"""Which configurations can be timed in one run of the step: those of kernels that share no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotm.model.step import Configuration, Graph
from autotm.profile.timing import cases


@dataclass(frozen=True)
class Wanted:
    """A configuration of kernel number `kernel` whose time is wanted; `slow` are its tensors in slow memory."""

    kernel: int
    configuration: Configuration
    slow: frozenset[str]


def wanted_configurations(graph: Graph) -> tuple[Wanted, ...]:
    """Every configuration of every distinct kernel of a step without alternatives, kernel after kernel."""
    number = {kernel.name: index for index, kernel in enumerate(graph.kernels)}
    return tuple(
        Wanted(number[case.kernel.name], config, _slow(graph, number[case.kernel.name], config))
        for case in cases(graph, "full")
        for config in case.configurations
    )


def _slow(graph: Graph, kernel: int, config: Configuration) -> frozenset[str]:
    slots = graph.slots_of(graph.kernels[kernel])
    return frozenset(tensor for tensor, filled in slots.items() if config[filled[0]] == "P")


def rounds(graph: Graph, wanted: Sequence[Wanted]) -> tuple[tuple[Wanted, ...], ...]:
    """Sets of configurations of kernels that share no movable tensor, each wanted one in exactly one set.

    Greedy, as in the notebook of AutoTM's prototype: each set takes, in order, all that still fit. So every kernel of a
    set finds its tensors where it wants them.
    """
    left, found = list(wanted), []
    while left:
        taken: list[Wanted] = []
        later: list[Wanted] = []
        used: set[str] = set()
        kernels: set[int] = set()
        for one in left:
            tensors = graph.slots_of(graph.kernels[one.kernel]).keys()
            if one.kernel in kernels or not used.isdisjoint(tensors):
                later.append(one)
                continue
            taken.append(one)
            kernels.add(one.kernel)
            used.update(tensors)
        found.append(tuple(taken))
        left = later
    return tuple(found)
