"""Tensors may move between kernels, and the step waits for every move."""

from __future__ import annotations

from typing import ClassVar

from autotm.solve.flow import Flow, flows_by_use
from autotm.solve.integer_program import IntegerProgram
from autotm.solve.problem import Problem


class Synchronous(IntegerProgram):
    """Chooses a tier per tensor and kernel, with blocking moves: one write to slow memory at most, reads at will."""

    name: ClassVar[str] = "synchronous"

    def flows(self, problem: Problem) -> tuple[Flow, ...]:
        """One gadget per kernel that uses the tensor."""
        return flows_by_use(problem)
