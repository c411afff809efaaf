"""Every tensor in one tier for life."""

from __future__ import annotations

from typing import ClassVar

from autotm.solve.flow import Flow, flows_for_life
from autotm.solve.integer_program import IntegerProgram
from autotm.solve.problem import Problem


class Static(IntegerProgram):
    """Chooses a tier per tensor; no moves."""

    name: ClassVar[str] = "static"

    def flows(self, problem: Problem) -> tuple[Flow, ...]:
        """One gadget per tensor."""
        return flows_for_life(problem)
