"""Conflicts as rows of the integer program."""

from __future__ import annotations

from collections.abc import Sequence

import pyomo.core as pyo

from autotm.solve.plans import Member, holds
from autotm.solve.problem import Residency
from autotm.solve.program import Formulation, Variable, kept_copied, linear, lookup


def not_all_fast(made: Formulation, members: Sequence[Member], decided: dict[int, Residency]) -> pyo.Block | None:
    """(F12) Of what a conflict's members hold, gadgets and gaps, at least one is given up.

    Flows without variables do what is `decided`. None where nothing is left to choose, or nothing forbids it.
    """
    terms: list[tuple[Variable, ...]] = []
    for member in members:
        if member[0] in made.flows:
            terms += _held(made, member)
        elif not holds(decided[member[0]], member):
            return None
    if not terms:
        return None
    block = pyo.Block(concrete=True)
    pairs = [(variable, 1.0) for term in terms for variable in term]
    block.not_all_fast = pyo.Constraint(expr=(None, linear(pairs), len(terms) - 1.0))
    name = f"conflict_{sum(1 for _ in made.model.component_objects(pyo.Block))}"
    made.model.add_component(name, block)
    return block


def _held(made: Formulation, member: Member) -> list[tuple[Variable, ...]]:
    """Per gap, the variables that sum up to staying fast over it; of a member at one gadget those of the gadget."""
    index, first, last = member
    model = made.model
    if first == last:
        found = [(lookup(model.a, index, first), lookup(model.b, index, first))]
    else:
        found = [(lookup(model.a, index, k + 1), kept_copied(made, index, k)) for k in range(first, last)]
    return [tuple(variable for variable in sums if variable is not None) for sums in found]
