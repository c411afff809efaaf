"""Other ways to compute the kernels of a step: only where they need much less memory, as each takes time to compile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tvm import tirx

from autotm.kernels.making import KernelFacts, Make, Request
from autotm.lower.graph import workspaces
from autotm.model.step import Graph, Implementation, Kernel

LEAST_SHARE = 1 / 200
"""Part of the step's peak that an alternative must save: memory that the tightest limits of a study are made of."""


@dataclass(frozen=True)
class Alternative:
    """Another way to compute a kernel, by the name it has among the kernel's implementations."""

    implementation: str
    made: KernelFacts

    def of(self, kernel: Kernel) -> Implementation:
        """It as an alternative of one call."""
        owned = workspaces(f"{kernel.name}.{self.implementation}", self.made)
        return Implementation(self.implementation, self.made.symbol, self.made.identity, owned)


def find_alternatives(
    graph: Graph, functions: Mapping[str, tirx.PrimFunc], kernels: Iterable[KernelFacts], make: Make
) -> dict[str, tuple[Alternative, ...]]:
    """By symbol of a kernel, its alternatives that save at least `LEAST_SHARE` of the step's peak.

    A kernel that came from a search has none.

    Args:
        graph: the step without alternatives.
        functions: the unscheduled function of each kernel symbol.
        kernels: those of the graph.
        make: makes the alternatives.
    """
    least = graph.peak_live_bytes * LEAST_SHARE
    own = {item.symbol: item for item in kernels if item.workspace_bytes >= least}
    asked = {
        (symbol, name): Request(functions[symbol], name, most_workspace_bytes=int(item.workspace_bytes - least))
        for symbol, item in own.items()
        for name in item.others
    }
    found: dict[str, tuple[Alternative, ...]] = dict.fromkeys(own, ())
    for ((symbol, name), request), made in zip(asked.items(), make(list(asked.values())), strict=True):
        if request.wants_code(made):
            found[symbol] = (*found[symbol], Alternative(name, made))
    return found


def with_alternatives(graph: Graph, found: Mapping[str, tuple[Alternative, ...]]) -> Graph:
    """The graph whose kernels may be computed in those ways too."""
    kernels = (
        replace(kernel, alternatives=tuple(other.of(kernel) for other in found.get(kernel.function, ())))
        for kernel in graph.kernels
    )
    return replace(graph, kernels=tuple(kernels))
