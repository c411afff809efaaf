"""Tensors may move between kernels, and also beside them."""

from __future__ import annotations

from typing import ClassVar

from autotm.solve.bases import IntegerProgram
from autotm.solve.problem import Choices, Clock, Problem, flows_beside_kernels


class Asynchronous(IntegerProgram):
    """As `synchronous`, with moves that one engine per direction makes while kernels run (docs/formulation.md §9)."""

    name: ClassVar[str] = "asynchronous"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per kernel that uses the tensor, and windows for moves in the gaps between.

        Raises:
            BadInputError: asynchronous copies were not measured.
        """
        clock = Clock(problem.beside)
        return Choices(flows_beside_kernels(problem, clock), problem.tabulation.tables, clock.kernel_ns)
