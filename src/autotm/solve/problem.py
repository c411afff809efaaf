"""One placement problem: the step, its costs, the budget, and the restrictions of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autotm.model.errors import BadInputError, unknown_name
from autotm.model.graph import Graph
from autotm.model.limit import Limit
from autotm.model.link import Links
from autotm.model.profile import Profile
from autotm.model.tier import Tier
from autotm.solve.options import SolveOptions


@dataclass(frozen=True)
class Problem:
    """What an optimizer is asked."""

    graph: Graph
    profile: Profile
    links: Links
    limit: Limit
    options: SolveOptions

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.graph.movable]
        for name, tier in self.options.fixed.items():
            if name not in names:
                raise unknown_name("fixed tensor", name, names)
            if tier is Tier.PMEM and self.options.fast_operands_only:
                raise BadInputError(f"tensor '{name}' is fixed in slow memory, but kernels here need fast operands")

    @cached_property
    def limit_bytes(self) -> int:
        """The budget in bytes."""
        return self.limit.fast_bytes(self.graph.peak_live_bytes)

    @cached_property
    def base_us(self) -> float:
        """Step time with everything fast."""
        return sum(self.profile.base_us(kernel) for kernel in self.graph.kernels)
