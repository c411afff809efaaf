"""One model for many relaxations: bounds for a limit, values as residencies and prices, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autotm.solve.choices import Choices, Window
from autotm.solve.cuts import Cuts
from autotm.solve.formulation import Choice, Formulation, Variable, holdings, kept_copied, keys_of
from autotm.solve.highs import Session
from autotm.solve.prices import Cut, EnginePrices, Prices, SlowPrices
from autotm.solve.problem import Floats
from autotm.solve.residencies import Residency

# One model for several limits: only bounds of its variables change from one to the next.


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


# Values of the model's variables as residencies, variants and prices, and back.

_INTEGRAL = 1e-6


def residencies(made: Formulation) -> dict[int, Residency]:
    """The flows whose values are integral, as residencies."""
    found = {}
    for index in made.flows:
        residency = _residency(made, index)
        if residency is not None:
            found[index] = residency
    return found


def variables_of(made: Formulation, flows: Collection[int]) -> list[Variable]:
    """The variables of some flows."""
    kinds = (made.model.a, made.model.b, made.model.s)
    return [variable for kind in kinds for key, variable in kind.items() if key[0] in flows]


def variants(made: Formulation) -> dict[int, int]:
    """The variants of the tables whose entry is chosen without doubt, by number of the table."""
    by_number = {item.number: item.table for item in made.tables}
    return {
        number: int(by_number[number].variant[entry])
        for (number, entry), variable in made.model.c.items()
        if float(variable.value or 0.0) > 1 - _INTEGRAL
    }


def start_from(made: Formulation, found: Mapping[int, Residency], fast_bytes: Sequence[int]) -> None:
    """Put residencies, and entries of so many bytes per table, into the values, as a start for the search."""
    model = made.model
    for variables in (model.a, model.b, model.s, model.c, model.w, model.r):
        for variable in variables.values():
            variable.set_value(0, skip_validation=True)
    for index in made.flows:
        _start_flow(made, index, found[index])
    for item in made.tables:
        slow = sum(1 << bit for bit, (index, k) in enumerate(item.keys) if not found[index].fast[k])
        entry = item.table.best(slow, fast_bytes[item.number])
        model.c[item.number, entry].set_value(1, skip_validation=True)
    _start_chain(model.u, model.flow_into)


def _start_flow(made: Formulation, index: int, residency: Residency) -> None:
    model, async_moves = made.model, made.async_moves
    for k in range(len(residency.fast)):
        kind = model.a if k < residency.first_leave else model.b
        if residency.fast[k] and (index, k) in kind:
            kind[index, k].set_value(1, skip_validation=True)
        if k and residency.between[k - 1] and k >= residency.first_leave and (index, k - 1) in model.s:
            model.s[index, k - 1].set_value(1, skip_validation=True)
    for k, window in residency.back:
        for variable, known in async_moves.reads.get((index, k - 1), ()):
            variable.set_value(int(known == window), skip_validation=True)
    for variable, known in async_moves.writes.get((index, residency.first_leave - 1), ()):
        variable.set_value(int(known == residency.out), skip_validation=True)


def _start_chain(chain: Variable, changes: Any) -> None:
    """Sum up an inventory from the values of the variables that enter and leave it."""
    held = 0.0
    for row in chain:
        held += sum(coefficient * variable.value for variable, coefficient in changes[row])
        chain[row].set_value(held, skip_validation=True)


def prices_of(session: Session | None, made: Formulation, cuts: Cuts | None, kernels: int) -> Prices:
    """The duals of a relaxation that converged; without one, prices at which nothing that is shared costs anything."""
    byte_us, engines = np.zeros(kernels), EnginePrices.none()
    cut_us: Mapping[Cut, Floats] = {}
    if session is not None:
        byte_us[list(made.reduced.rows)] = byte_prices(session, made)
        engines = made.demand.prices(session.duals, made.us_per_unit)
        cut_us = cuts.prices_us(session) if cuts else {}
    return Prices(byte_us, slow_prices(session, made), engines, cut_us)


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


def used_bytes(made: Formulation, kernels: int) -> Floats:
    """(kernels,) Fast bytes that the variables' values take during each kernel."""
    held = [(*span, size * float(variable.value or 0.0)) for span, variable, size, _ in holdings(made)]
    change = np.zeros(kernels + 1)
    if held:
        starts, ends, sizes = (np.array(column) for column in zip(*held, strict=True))
        change += np.bincount(starts, sizes, kernels + 1) - np.bincount(ends, sizes, kernels + 1)
    return np.cumsum(change)[:-1]


def _by_itself(made: Formulation, number: int) -> list[float]:
    choices, table = made.reduced.choices, made.reduced.choices.tables[number]
    prices = []
    for operand, (index, gadget) in enumerate(choices.operands[number]):
        decided = made.reduced.decided.get(index)
        is_slow = decided is not None and not decided.fast[gadget]
        prices.append(table.most_us[operand] if is_slow else table.least_us[operand])
    return prices


def _residency(made: Formulation, index: int) -> Residency | None:
    flow, model = made.reduced.choices.flows[index], made.model
    fast = [_value(model.a, index, k) + _value(model.b, index, k) for k in range(len(flow))]
    between = [_between(made, index, k) for k in range(len(flow) - 1)]
    writes, reads = made.async_moves.writes, made.async_moves.reads
    flying = [
        float(variable.value or 0.0)
        for moves in (writes, reads)
        for k in range(len(flow) - 1)
        for variable, _ in moves.get((index, k), ())
    ]
    if any(abs(value - round(value)) > _INTEGRAL for value in fast + between + flying):
        return None
    residency = Residency(tuple(round(value) > 0 for value in fast), tuple(round(value) > 0 for value in between))
    out = _chosen(writes.get((index, residency.first_leave - 1), ()))
    back = ((k, _chosen(reads.get((index, k - 1), ()))) for k in residency.reads())
    return replace(residency, out=out, back=tuple((k, window) for k, window in back if window is not None))


def _chosen(windows: Choice) -> Window | None:
    return next((window for variable, window in windows if float(variable.value or 0.0) > 1 - _INTEGRAL), None)


def _between(made: Formulation, index: int, k: int) -> float:
    kept = kept_copied(made, index, k)
    return _value(made.model.a, index, k + 1) + (0.0 if kept is None else float(kept.value or 0.0))


def _value(variables: Variable, index: int, k: int) -> float:
    return float(variables[index, k].value or 0.0) if (index, k) in variables else 0.0
