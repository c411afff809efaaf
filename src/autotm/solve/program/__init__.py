"""The integer program and HiGHS, the only solver behind it."""

from autotm.solve.program.at_limit import set_limit
from autotm.solve.program.cuts import Cuts
from autotm.solve.program.formulation import Formulation, build, kept_copied
from autotm.solve.program.held import Held
from autotm.solve.program.highs import Outcome, Session, Solved, mps_of, require_solved
from autotm.solve.program.linear import Variable, linear, lookup
from autotm.solve.program.matrix import Matrix
from autotm.solve.program.solution import prices_of, residencies, start_from, used_bytes, variables_of, ways

__all__ = [
    "Cuts",
    "Formulation",
    "Held",
    "Matrix",
    "Outcome",
    "Session",
    "Solved",
    "Variable",
    "build",
    "kept_copied",
    "linear",
    "lookup",
    "mps_of",
    "prices_of",
    "require_solved",
    "residencies",
    "set_limit",
    "start_from",
    "used_bytes",
    "variables_of",
    "ways",
]
