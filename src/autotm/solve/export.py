"""The integer program that a solve would hand to HiGHS, as a file for other solvers."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import pyomo.core as pyo

from autotm.model.files import BadInputError, write_atomically
from autotm.model.measurement import Links, Profile
from autotm.model.step import Graph, Limit
from autotm.solve.problem import Problem, SolveOptions
from autotm.solve.program import Matrix, mps_of
from autotm.solve.registry import optimizer_named


@dataclass(frozen=True)
class ProgramSize:
    """How large a program is, and the microseconds of one unit of its objective; zeros where nothing is to solve."""

    columns: int
    rows: int
    nonzeros: int
    us_per_unit: float


def export(
    graph: Graph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limit: Limit,
    options: SolveOptions | None = None,
    path: Path | None = None,
) -> ProgramSize:
    """Write the program that `solve` would solve for these arguments as MPS, gzipped where `path` ends in `.gz`.

    Returns its size; without `path`, only that.

    Rows and columns have the names of `docs/formulation.md`, with flows and gadgets counted from 0. The objective,
    constant included, is in units of `us_per_unit`.

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
        return ProgramSize(0, 0, 0, 0.0)
    matrix = Matrix(model)
    lp = matrix.program()
    if path is not None:
        text = mps_of(matrix, lp)
        content = gzip.compress(text, mtime=0) if path.suffix == ".gz" else text
        write_atomically(path, lambda temporary: temporary.write_bytes(content))
    nonzeros = len(lp.a_matrix_.value_)
    return ProgramSize(len(matrix.variables), len(matrix.constraints), nonzeros, pyo.value(model.us_per_unit))
