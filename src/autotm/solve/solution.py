"""Values of the model's variables as journeys, ways and prices, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from autotm.solve.certificate import SlowPrices
from autotm.solve.formulation import Formulation, kept_copied
from autotm.solve.highs import Session
from autotm.solve.journey import Journey
from autotm.solve.table import Floats

_INTEGRAL = 1e-6

Variable: TypeAlias = Any
"""A Pyomo variable; Pyomo carries no types."""


def journeys(made: Formulation) -> dict[int, Journey]:
    """The flows whose values are integral, as journeys."""
    found = {}
    for index in made.flows:
        journey = _journey(made, index)
        if journey is not None:
            found[index] = journey
    return found


def variables_of(made: Formulation, flows: Collection[int]) -> list[Variable]:
    """The variables of some flows."""
    kinds = (made.model.a, made.model.b, made.model.s)
    return [variable for kind in kinds for (index, _), variable in kind.items() if index in flows]


def ways(made: Formulation) -> dict[int, int]:
    """The ways of the tables whose entry is chosen without doubt, by number of the table."""
    by_number = {item.number: item.table for item in made.tables}
    return {
        number: int(by_number[number].way[entry])
        for (number, entry), variable in made.model.c.items()
        if float(variable.value or 0.0) > 1 - _INTEGRAL
    }


def start_from(made: Formulation, found: Mapping[int, Journey], fast_bytes: Sequence[int]) -> None:
    """Put journeys, and entries of so many bytes per table, into the values, as a start for the search."""
    model = made.model
    for variables in (model.a, model.b, model.s, model.c):
        for variable in variables.values():
            variable.set_value(0, skip_validation=True)
    for index in made.flows:
        journey = found[index]
        for k in range(len(journey.fast)):
            kind = model.a if k < journey.first_leave else model.b
            if journey.fast[k] and (index, k) in kind:
                kind[index, k].set_value(1, skip_validation=True)
            if k and journey.between[k - 1] and k >= journey.first_leave and (index, k - 1) in model.s:
                model.s[index, k - 1].set_value(1, skip_validation=True)
    for item in made.tables:
        slow = sum(1 << bit for bit, (index, k) in enumerate(item.keys) if not found[index].fast[k])
        entry = item.table.best(slow, fast_bytes[item.number])
        model.c[item.number, entry].set_value(1, skip_validation=True)
    for row in model.u:
        change = sum(coefficient * variable.value for variable, coefficient in model.flow_into[row])
        before = model.u[row - 1].value if row else 0.0
        model.u[row].set_value(before + change, skip_validation=True)


def byte_prices(session: Session, made: Formulation) -> Floats:
    """Price of a byte at each row: minus the reduced cost of `u` at its upper bound."""
    costs = np.array(session.reduced_costs([made.model.u[row] for row in range(len(made.reduced.rows))]))
    prices: Floats = np.maximum(0.0, -costs) * (made.us_per_unit / made.bytes_per_unit)
    return prices


def slow_prices(session: Session | None, made: Formulation) -> SlowPrices:
    """What each operand of each table pays for being slow: minus the dual of its marginal row (F9).

    An operand without a row was decided by itself: its price is one at which its tensor and its table agree on that.
    """
    found = [list(_by_itself(made, number)) for number in range(len(made.reduced.choices.tables))]
    rows = made.model.entry_follows_operands
    duals = session.duals([rows[key] for key in rows]) if session is not None else []
    keys_of = {item.number: item.keys for item in made.tables}
    for (number, bit), dual in zip(rows, duals, strict=True):
        columns = made.reduced.choices.operands[number]
        found[number][columns.index(keys_of[number][bit])] = -dual * made.us_per_unit
    return tuple(map(tuple, found))


def _by_itself(made: Formulation, number: int) -> list[float]:
    choices, table = made.reduced.choices, made.reduced.choices.tables[number]
    prices = []
    for operand, (index, gadget) in enumerate(choices.operands[number]):
        decided = made.reduced.decided.get(index)
        is_slow = decided is not None and not decided.fast[gadget]
        prices.append(table.most_us[operand] if is_slow else table.least_us[operand])
    return prices


def _journey(made: Formulation, index: int) -> Journey | None:
    flow, model = made.reduced.choices.flows[index], made.model
    fast = [_value(model.a, index, k) + _value(model.b, index, k) for k in range(len(flow))]
    between = [_between(made, index, k) for k in range(len(flow) - 1)]
    if any(abs(value - round(value)) > _INTEGRAL for value in fast + between):
        return None
    return Journey(tuple(round(value) > 0 for value in fast), tuple(round(value) > 0 for value in between))


def _between(made: Formulation, index: int, k: int) -> float:
    kept = kept_copied(made, index, k)
    return _value(made.model.a, index, k + 1) + (0.0 if kept is None else float(kept.value or 0.0))


def _value(variables: Variable, index: int, k: int) -> float:
    return float(variables[index, k].value or 0.0) if (index, k) in variables else 0.0
