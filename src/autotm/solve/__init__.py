"""Placement: which tensor lives in which tier when, decided by integer programming and proven by prices."""

from __future__ import annotations

import sys

from autotm.model.errors import BadInputError

if sys.flags.optimize > 1:  # Pyomo edits docstrings while it is imported.
    raise BadInputError(
        "Python runs without docstrings (-OO or PYTHONOPTIMIZE=2), and Pyomo cannot be imported without them. "
        "Use -O, or unset PYTHONOPTIMIZE"
    )
