"""Which kernels must be timed in which configurations."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import Literal

from autotm.model.graph import Graph, Kernel
from autotm.model.tier import Configuration, configuration

log = logging.getLogger(__name__)

FULL_LIMIT = 8
"""A kernel with more movable tensors is profiled additively even when all configurations are asked: 2^9 runs each."""


@dataclass(frozen=True)
class Case:
    """One distinct kernel: an example call of it, and every configuration that some call of it may need."""

    kernel: Kernel
    configurations: tuple[Configuration, ...]


def cases(graph: Graph, mode: Literal["additive", "full"]) -> tuple[Case, ...]:
    """Every kernel identity of the graph once, in order of first appearance, all-fast configuration first."""
    examples: dict[str, Kernel] = {}
    needed: dict[str, dict[Configuration, None]] = {}
    for kernel in graph.kernels:
        examples.setdefault(kernel.identity, kernel)
        needed.setdefault(kernel.identity, {}).update(dict.fromkeys(_configurations(graph, kernel, mode)))
    return tuple(Case(examples[identity], tuple(configs)) for identity, configs in needed.items())


def _configurations(graph: Graph, kernel: Kernel, mode: Literal["additive", "full"]) -> list[Configuration]:
    tensors = list(graph.slots_of(kernel))
    if mode == "full" and len(tensors) > FULL_LIMIT:
        log.warning("kernel '%s' has %d movable tensors: profiled additively", kernel.name, len(tensors))
        mode = "additive"
    most = len(tensors) if mode == "full" else 1
    slow_sets = itertools.chain.from_iterable(itertools.combinations(tensors, count) for count in range(most + 1))
    return [configuration(graph, kernel, slow) for slow in slow_sets]
