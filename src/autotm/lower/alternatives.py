"""Other ways to compute the kernels of a step: only where they need much less memory, as each takes time to compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import tvm
from tvm import tirx

from autotm.kernels.contraction import others
from autotm.kernels.dispatch import schedule_as
from autotm.kernels.passes import GENERATED
from autotm.kernels.tuned import workspace_bytes
from autotm.lower.extract import Compiled, workspaces
from autotm.model.graph import Graph, Implementation, Kernel

LEAST_SHARE = 1 / 200
"""Part of the step's peak that an alternative must save: memory that the tightest limits of a study are made of."""


@dataclass(frozen=True)
class Alternative:
    """Another way to compute a kernel, by the name it has among the kernel's implementations."""

    implementation: str
    compiled: Compiled

    def of(self, kernel: Kernel) -> Implementation:
        """It as an alternative of one call."""
        made = self.compiled
        owned = workspaces(f"{kernel.name}.{self.implementation}", made.kernel)
        return Implementation(self.implementation, made.symbol, made.identity, owned)


def find_alternatives(
    graph: Graph,
    functions: Mapping[str, tirx.PrimFunc],
    compiled: Mapping[str, Compiled],
    target: tvm.target.Target,
    threads: int,
) -> dict[str, tuple[Alternative, ...]]:
    """By symbol of a kernel, its alternatives that save at least `LEAST_SHARE` of the step's peak.

    A kernel that came from a search has none.
    """
    least = graph.peak_live_bytes * LEAST_SHARE
    found: dict[str, tuple[Alternative, ...]] = {}
    for item in {item.symbol: item for item in compiled.values()}.values():
        own, taken = item.kernel, workspace_bytes(item.kernel)
        if taken < least or GENERATED not in own.func.attrs:
            continue
        made = {name: schedule_as(functions[item.symbol], own, name, target, threads) for name in others(own.op)}
        found[item.symbol] = tuple(
            Alternative(name, Compiled.of(kernel, target))
            for name, kernel in made.items()
            if taken - workspace_bytes(kernel) >= least
        )
    return found


def with_alternatives(graph: Graph, found: Mapping[str, tuple[Alternative, ...]]) -> Graph:
    """The graph whose kernels may be computed in those ways too."""
    kernels = (
        replace(kernel, alternatives=tuple(other.of(kernel) for other in found.get(kernel.function, ())))
        for kernel in graph.kernels
    )
    return replace(graph, kernels=tuple(kernels))
