"""Tensors may move between kernels, and the step waits for every move."""

from __future__ import annotations

from typing import ClassVar

from autotm.solve.choices import Choices
from autotm.solve.flow import flows_by_use
from autotm.solve.integer_program import IntegerProgram
from autotm.solve.problem import Problem


class Synchronous(IntegerProgram):
    """Chooses a tier per tensor and kernel, with blocking moves: one write to slow memory at most, reads at will."""

    name: ClassVar[str] = "synchronous"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per kernel that uses the tensor."""
        return Choices(flows_by_use(problem), problem.tabulation.tables)
