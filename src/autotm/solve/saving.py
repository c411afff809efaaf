"""Which tensors to keep for a backward pass in so much memory: the rest is computed again, with what that needs.

Without that this is a knapsack: each tensor has a size and a time. Here a tensor that is computed again needs others,
which are kept or computed again once for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyomo.core as pyo

from autotm.model.errors import AutotmError
from autotm.solve.highs import Session

_GAP = 1e-3
"""Relative gap of the program; times are less exact."""
_LIMIT_S = 30.0
_SMALLEST = 1e-6
"""Costs and sizes below this share of the largest would be lost in HiGHS's tolerances."""


def kept(
    costs_us: Sequence[float],
    inputs: Sequence[Collection[int]],
    needed: Collection[int],
    sizes: Mapping[int, float],
    limit: float,
) -> set[int]:
    """Return the operators whose results to keep so that the time of those that run again is least.

    Args:
        costs_us: time of each operator of the forward pass.
        inputs: of each, the operators whose results it reads.
        needed: operators whose results the backward pass reads.
        sizes: of the results that may be kept, by operator, in any unit.
        limit: of the sizes of what is kept.

    Raises:
        AutotmError: HiGHS found no solution in its time.
    """
    if not sizes:
        return set()
    largest_us, largest = max([1e-9, *costs_us]), max([1e-9, *sizes.values()])
    model = pyo.ConcreteModel()
    model.keeps = pyo.Var(sorted(sizes), domain=pyo.Binary)
    model.runs = pyo.Var(range(len(costs_us)), bounds=(0, 1))
    model.needs = pyo.ConstraintList()
    readers = [*((model.runs[reader], read) for reader, reads in enumerate(inputs) for read in reads)]
    for share, read in (*readers, *((1, read) for read in needed)):
        model.needs.add(model.runs[read] >= share - (model.keeps[read] if read in sizes else 0))
    shares = ((model.keeps[number], size / largest) for number, size in sizes.items())
    model.room = pyo.Constraint(
        expr=sum((size * keeps for keeps, size in shares if size > _SMALLEST), 0.0 * model.keeps[min(sizes)])
        <= limit / largest
    )
    times = ((model.runs[number], cost_us / largest_us) for number, cost_us in enumerate(costs_us))
    model.time = pyo.Objective(expr=sum(cost * runs for runs, cost in times if cost > _SMALLEST))
    if not Session(model, 0).search(_LIMIT_S, _GAP, warm=False).has_solution:
        raise AutotmError(f"HiGHS found in {_LIMIT_S:g} s nothing to keep for the backward pass; please report it")
    return {number for number in sizes if round(model.keeps[number].value)}
