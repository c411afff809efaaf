"""One model for several limits: only bounds of its variables change from one to the next."""

from __future__ import annotations

from typing import Any, TypeAlias

from autotm.solve.choices import Choices
from autotm.solve.formulation import Formulation, keys_of

Variable: TypeAlias = Any
"""A Pyomo variable; Pyomo carries no types."""


def set_limit(made: Formulation, narrowed: Choices, limit_bytes: int) -> list[Variable]:
    """Bound the model's variables for a limit between the least and the most that it was reduced for.

    (F6) u[j] gets the room that this limit leaves; what `narrowed` leaves out for it is fixed at zero. Returns the
    variables whose bounds may have changed.
    """
    model, reduced = made.model, made.reduced
    less = (reduced.limit_bytes - limit_bytes) / made.bytes_per_unit
    for row, room in enumerate(reduced.room):
        model.u[row].setub(room / made.bytes_per_unit - less)
    touched = list(model.u.values())
    for index in made.flows:
        flow, widest = narrowed.flows[index], reduced.choices.flows[index]
        allowed = keys_of(index, flow)
        for variables, possible, left in zip((model.a, model.b, model.s), keys_of(index, widest), allowed, strict=True):
            for key in possible:
                variables[key].setub(1 if key in left else 0)
                touched.append(variables[key])
    return touched
