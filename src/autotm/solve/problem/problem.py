"""One placement problem: the step, its costs, the budget, and the restrictions of the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from autotm.model.files import BadInputError, unknown_name
from autotm.model.measurement import BesideKernels, Links, Profile
from autotm.model.step import Graph, Limit, Role, Tensor, Tier, fixed_bytes
from autotm.solve.problem.options import SolveOptions
from autotm.solve.problem.packing import Packing
from autotm.solve.problem.tabulate import Tabulation, tabulate


@dataclass(frozen=True)
class Problem:
    """What an optimizer is asked; `packing` judges whether a plan can have addresses, where that matters."""

    graph: Graph
    profile: Profile
    links: Links
    limit: Limit
    options: SolveOptions
    packing: Packing | None = None

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.graph.movable]
        for name, tier in self.options.fixed.items():
            if name not in names:
                raise unknown_name("fixed tensor", name, names)
            if tier is Tier.PMEM and self.options.fast_operands_only:
                raise BadInputError(f"tensor '{name}' is fixed in slow memory, but kernels here need fast operands")

    def at(self, limit: Limit) -> Problem:
        """The same problem with another limit; what does not depend on the limit is worked out once for both."""
        other = replace(self, limit=limit)
        shared = ("beside", "tabulation", "tabled", "placed", "base_us")
        other.__dict__.update({name: getattr(self, name) for name in shared})
        return other

    @cached_property
    def limit_bytes(self) -> int:
        """The budget in bytes.

        Raises:
            InfeasibleLimitError: what no plan places takes more than all of it.
        """
        return self.limit.fast_bytes(self.graph.peak_live_bytes, fixed_bytes(self.graph))

    @cached_property
    def beside(self) -> BesideKernels:
        """What asynchronous moves and kernels take from each other."""
        return BesideKernels(self.graph, self.profile, self.links)

    @cached_property
    def tabulation(self) -> Tabulation:
        """The tables of kernels that the additive reading does not describe, or that have several implementations."""
        return tabulate(self.graph, self.profile, self.options)

    @cached_property
    def tabled(self) -> frozenset[int]:
        """Kernels whose operands are priced by their table."""
        return frozenset(self.tabulation.tabled)

    @cached_property
    def placed(self) -> tuple[Tensor, ...]:
        """Tensors that are placed by themselves: all but the workspaces that come with an implementation."""
        kernels = self.graph.kernels
        return tuple(
            tensor
            for tensor in self.graph.movable
            if tensor.role is not Role.WORKSPACE or not kernels[tensor.users[0]].alternatives
        )

    @cached_property
    def base_us(self) -> float:
        """Time of the kernels without a table when everything is fast."""
        with_table = {table.kernel for table in self.tabulation.tables}
        kernels = enumerate(self.graph.kernels)
        return sum(self.profile.base_us(kernel) for index, kernel in kernels if index not in with_table)
