"""One model for several limits: only bounds of its variables change from one to the next."""

from __future__ import annotations

from autotm.solve.problem import Choices
from autotm.solve.program.formulation import Formulation
from autotm.solve.program.linear import Variable
from autotm.solve.program.variables import keys_of


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
    touched += _set_windows(made, narrowed)
    return touched


def _set_windows(made: Formulation, narrowed: Choices) -> list[Variable]:
    touched = []
    for moves, is_write in ((made.async_moves.writes, True), (made.async_moves.reads, False)):
        for (index, k), choice in moves.items():
            flow = narrowed.flows[index]
            allowed = (flow.out if is_write else flow.back)[k]
            for variable, window in choice:
                variable.setub(1 if window in allowed else 0)
                touched.append(variable)
    return touched
