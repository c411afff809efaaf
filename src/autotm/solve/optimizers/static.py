"""Every tensor in one tier for life."""

from __future__ import annotations

from typing import ClassVar

from autotm.solve.bases import IntegerProgram
from autotm.solve.problem import Choices, Problem, flows_for_life


class Static(IntegerProgram):
    """Chooses a tier per tensor; no moves."""

    name: ClassVar[str] = "static"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per tensor."""
        return Choices(flows_for_life(problem), problem.tabulation.tables)
