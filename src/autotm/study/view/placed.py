"""A plan with addresses, and all that pictures of it are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotm.check import kernel_times_us
from autotm.model.measurement import BesideKernels, Links, Profile, Record
from autotm.model.plan import Plan, Program
from autotm.model.step import Graph
from autotm.study.tables import stay_offsets


@dataclass(frozen=True)
class Placed:
    """A plan with addresses, what it was made from and, where it ran, what that measured.

    Attributes:
        graph: the step as limits see it, with all implementations.
        profile: times of its kernels.
        links: copy times.
        plan: of that step.
        program: made from the plan.
        source: provenance of the plan: machine, threads, versions, seed.
        record: of a run of the program.
    """

    graph: Graph
    profile: Profile
    links: Links
    plan: Plan
    program: Program
    source: Mapping[str, Any]
    record: Record | None = None

    @cached_property
    def step(self) -> Graph:
        """The step with the plan's implementations, as it is called."""
        return self.plan.step_of(self.graph)

    @cached_property
    def offsets(self) -> list[int]:
        """Of each stay, bytes from the start of its tier's pool.

        Raises:
            BadInputError: the program was made from another plan.
        """
        return stay_offsets(self.step, self.plan, self.program)

    @cached_property
    def kernels_us(self) -> list[float]:
        """Predicted microseconds of each kernel."""
        return list(kernel_times_us(self.graph, self.profile, self.plan, self.links))

    @cached_property
    def moves_us(self) -> list[float]:
        """Predicted microseconds that each move adds to the step."""
        sizes = self.step.by_name
        beside = BesideKernels(self.graph, self.profile, self.links)
        return [beside.move_us(move, sizes[move.tensor].size_bytes) for move in self.plan.moves]

    @cached_property
    def all_fast_us(self) -> float:
        """Predicted microseconds of the step with everything in fast memory."""
        return sum(map(self.profile.base_us, self.graph.computed_by(()).kernels))

    @property
    def tier_reality(self) -> str:
        """Whether slow memory was `real`, `emulated`, `modelled` or a `stand-in` where kernels were timed."""
        return str(self.profile.provenance.get("tier_reality", self.source.get("tier_reality")))
