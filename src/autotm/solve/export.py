"""The integer program that a solve would hand to HiGHS, as a file for other solvers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotm.model.errors import BadInputError
from autotm.model.graph import Graph
from autotm.model.limit import Limit
from autotm.model.link import Links
from autotm.model.profile import Profile
from autotm.solve.highs import write_program
from autotm.solve.matrix import Matrix
from autotm.solve.options import SolveOptions
from autotm.solve.problem import Problem
from autotm.solve.registry import optimizer_named


@dataclass(frozen=True)
class ProgramSize:
    """How large a program is; all zero where reductions leave nothing to solve."""

    columns: int
    rows: int
    nonzeros: int


def export(
    graph: Graph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limit: Limit,
    options: SolveOptions | None = None,
    path: Path | None = None,
) -> ProgramSize:
    """Write the program that `solve` would solve for these arguments, and tell its size; without `path`, only that.

    Rows and columns have the names of `docs/formulation.md`, with flows and gadgets counted from 0. The objective is
    scaled; its constant is in the file.

    Raises:
        as `solve`; BadInputError where there is no program to write.
    """
    problem = Problem(graph, profile, links, limit, options or SolveOptions())
    model = optimizer_named(optimizer).program(problem)
    if model is None:
        if path is not None:
            raise BadInputError(
                f"'{optimizer}' at limit {limit} needs no integer program: everything is decided without one; "
                "ask for a tighter limit, or an optimizer that searches (static, synchronous)"
            )
        return ProgramSize(0, 0, 0)
    matrix = Matrix(model)
    if path is not None:
        write_program(matrix, path)
    return ProgramSize(len(matrix.variables), len(matrix.constraints), len(matrix.lp.a_matrix_.value_))
