"""Which kernels must be timed in which configurations."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from autotm.model.step import DEFAULT_IMPLEMENTATION, Configuration, Graph, Kernel, configuration

log = logging.getLogger(__name__)

FULL_LIMIT = 8
"""A kernel with more movable tensors is profiled additively even when all configurations are asked: 2^9 runs each."""


@dataclass(frozen=True)
class Case:
    """One implementation of a distinct kernel: an example call of it, and every configuration that calls may need.

    Attributes:
        graph: the step in which kernels that have this implementation are computed by it.
        kernel: the example, with no other implementation.
        default_identity: of the same kernel as it is computed by default.
        configurations: all-fast first.
    """

    graph: Graph
    kernel: Kernel
    default_identity: str
    configurations: tuple[Configuration, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Identity and implementation of the kernel."""
        return self.kernel.identity, self.kernel.implementation

    @property
    def is_default(self) -> bool:
        """Whether other implementations of the kernel are compared with this one."""
        return self.kernel.implementation == DEFAULT_IMPLEMENTATION


def ways_of(graph: Graph) -> tuple[Graph, ...]:
    """The step computed by default, then by each other implementation wherever a kernel has it."""
    others = dict.fromkeys(other.name for kernel in graph.kernels for other in kernel.alternatives)
    return (
        graph.computed_by(()),
        *(
            graph.computed_by(
                [name if name in kernel.implementations else kernel.implementation for kernel in graph.kernels]
            )
            for name in others
        ),
    )


def cases(graph: Graph, mode: Literal["additive", "full"]) -> tuple[Case, ...]:
    """Every kernel identity of the graph once, default implementations first, in order of first appearance."""
    examples: dict[tuple[str, str], tuple[Graph, Kernel, str]] = {}
    needed: dict[tuple[str, str], dict[Configuration, None]] = {}
    for step in ways_of(graph):
        for kernel, default in zip(step.kernels, graph.kernels, strict=True):
            key = kernel.identity, kernel.implementation
            examples.setdefault(key, (step, kernel, default.identity))
            needed.setdefault(key, {}).update(dict.fromkeys(_configurations(step, kernel, mode)))
    return tuple(Case(*examples[key], tuple(configs)) for key, configs in needed.items())


def sittings(found: Iterable[Case]) -> tuple[tuple[Case, ...], ...]:
    """Cases that have to be timed in turn: all implementations of a kernel, the default first."""
    of_kernel: dict[str, list[Case]] = {}
    for case in found:
        of_kernel.setdefault(case.default_identity, []).append(case)
    return tuple(tuple(cases) for cases in of_kernel.values())


def _configurations(graph: Graph, kernel: Kernel, mode: Literal["additive", "full"]) -> list[Configuration]:
    tensors = list(graph.slots_of(kernel))
    if mode == "full" and len(tensors) > FULL_LIMIT:
        log.warning("kernel '%s' has %d movable tensors: profiled additively", kernel.name, len(tensors))
        mode = "additive"
    most = len(tensors) if mode == "full" else 1
    slow_sets = itertools.chain.from_iterable(itertools.combinations(tensors, count) for count in range(most + 1))
    return [configuration(graph, kernel, slow) for slow in slow_sets]
