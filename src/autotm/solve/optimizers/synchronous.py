"""Tensors may move between kernels, and the step waits for every move."""

from __future__ import annotations

from typing import ClassVar

from autotm.solve.bases import IntegerProgram
from autotm.solve.problem import Choices, Problem, flows_by_use


class Synchronous(IntegerProgram):
    """Chooses a tier per tensor and kernel, with blocking moves: one write to slow memory at most, reads at will."""

    name: ClassVar[str] = "synchronous"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per kernel that uses the tensor."""
        return Choices(flows_by_use(problem), problem.tabulation.tables)
