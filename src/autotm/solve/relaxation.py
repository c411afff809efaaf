"""One model for many relaxations: bounds for a limit, values as residencies and prices, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotm.solve.choices import Choices, Window
from autotm.solve.cuts import Cuts
from autotm.solve.formulation import Choice, Formulation, Variable, holdings, kept_copied, keys_of, lookup, value_of
from autotm.solve.highs import Session
from autotm.solve.prices import Cut, EnginePrices, Prices, SlowPrices
from autotm.solve.problem import Floats
from autotm.solve.residencies import Residency

# One model for several limits: only bounds of its variables change from one to the next.


def set_limit(ilp: Formulation, narrowed: Choices, limit_bytes: int) -> list[Variable]:
    """Bound the model's variables for a limit between the least and the most that it was reduced for.

    (F6) u[j] is bounded by this limit's residual capacity; choices that `narrowed` lacks are fixed at zero. Returns the
    variables whose bounds may have changed.
    """
    model, reduced = ilp.model, ilp.reduced
    less = (reduced.limit_bytes - limit_bytes) / ilp.bytes_per_unit
    for row, residual_bytes in enumerate(reduced.residual_bytes):
        model.u[row].setub(residual_bytes / ilp.bytes_per_unit - less)
    touched = list(model.u.values())
    for index in ilp.flows:
        flow, widest = narrowed.flows[index], reduced.choices.flows[index]
        allowed = keys_of(index, flow)
        for variables, possible, left in zip((model.a, model.b, model.s), keys_of(index, widest), allowed, strict=True):
            for key in possible:
                variables[key].setub(1 if key in left else 0)
                touched.append(variables[key])
    for moves, is_write in ((ilp.writes, True), (ilp.reads, False)):
        for (index, k), choice in moves.items():
            flow = narrowed.flows[index]
            windows = (flow.out if is_write else flow.back)[k]
            for variable, window in choice:
                variable.setub(1 if window in windows else 0)
                touched.append(variable)
    return touched


# Values of the model's variables as residencies, variants and prices, and back.

_INTEGRAL = 1e-6  # HiGHS's tolerance of whole numbers


def integral(ilp: Formulation) -> tuple[dict[int, Residency], dict[int, int]]:
    """Return the choices whose variables are integral: residencies by flow, variants by number of the table."""
    residencies = ((index, _residency(ilp, index)) for index in ilp.flows)
    tables = {item.number: item.table for item in ilp.tables}
    variants = {
        number: int(tables[number].variant[entry])
        for (number, entry), variable in ilp.model.c.items()
        if value_of(variable) > 1 - _INTEGRAL
    }
    return {index: residency for index, residency in residencies if residency is not None}, variants


def variables_of(ilp: Formulation, flows: Collection[int]) -> list[Variable]:
    """Return the variables of these flows."""
    kinds = (ilp.model.a, ilp.model.b, ilp.model.s)
    return [variable for kind in kinds for key, variable in kind.items() if key[0] in flows]


def start_from(ilp: Formulation, residencies: Mapping[int, Residency], fast_bytes: Sequence[int]) -> None:
    """Put residencies, and entries of so many bytes per table, into the values, as a start for the search."""
    model = ilp.model
    for variables in (model.a, model.b, model.s, model.c, model.w, model.r):
        for variable in variables.values():
            variable.set_value(0, skip_validation=True)
    for index in ilp.flows:
        _start_flow(ilp, index, residencies[index])
    for item in ilp.tables:
        slow = sum(1 << bit for bit, (index, k) in enumerate(item.keys) if not residencies[index].fast[k])
        entry = item.table.best(slow, fast_bytes[item.number])
        model.c[item.number, entry].set_value(1, skip_validation=True)
    held = 0.0
    for row in model.u:
        held += sum(coefficient * variable.value for variable, coefficient in model.flow_into[row])
        model.u[row].set_value(held, skip_validation=True)


def _start_flow(ilp: Formulation, index: int, residency: Residency) -> None:
    model = ilp.model
    for k in range(len(residency.fast)):
        kind = model.a if k < residency.first_leave else model.b
        if residency.fast[k] and (index, k) in kind:
            kind[index, k].set_value(1, skip_validation=True)
        if k and residency.between[k - 1] and k >= residency.first_leave and (index, k - 1) in model.s:
            model.s[index, k - 1].set_value(1, skip_validation=True)
    for k, window in residency.back:
        for variable, known in ilp.reads.get((index, k - 1), ()):
            variable.set_value(int(known == window), skip_validation=True)
    for variable, known in ilp.writes.get((index, residency.first_leave - 1), ()):
        variable.set_value(int(known == residency.out), skip_validation=True)


def prices_of(session: Session | None, ilp: Formulation, cuts: Cuts | None, kernels: int) -> Prices:
    """Return the duals of a converged relaxation as prices; without a `session`, memory and engines are free."""
    byte_us, engines = np.zeros(kernels), EnginePrices.none()
    cut_us: Mapping[Cut, Floats] = {}
    if session is not None:
        # The price of a byte at a row: minus the reduced cost of `u` at its upper bound.
        costs = np.array(session.reduced_costs([ilp.model.u[row] for row in range(len(ilp.reduced.rows))]))
        byte_us[list(ilp.reduced.rows)] = np.maximum(0.0, -costs) * (ilp.us_per_unit / ilp.bytes_per_unit)
        engines = ilp.demand.prices(session.duals, ilp.us_per_unit)
        cut_us = cuts.prices_us(session) if cuts else {}
    return Prices(byte_us, _slow_prices(session, ilp), engines, cut_us)


def _slow_prices(session: Session | None, ilp: Formulation) -> SlowPrices:
    """Return, for each operand of each table, the price of being slow: minus the dual of its marginal row (F9).

    An operand without a row was decided by itself: its price is one at which its tensor and its table agree on that.
    """
    prices = [_by_itself(ilp, number) for number in range(len(ilp.reduced.choices.tables))]
    rows = ilp.model.entry_follows_operands
    duals = session.duals([rows[key] for key in rows]) if session is not None else []
    keys_of = {item.number: item.keys for item in ilp.tables}
    for (number, bit), dual in zip(rows, duals, strict=True):
        columns = ilp.reduced.choices.operands[number]
        prices[number][columns.index(keys_of[number][bit])] = -dual * ilp.us_per_unit
    return tuple(map(tuple, prices))


def used_bytes(ilp: Formulation, kernels: int) -> Floats:
    """Return the fast bytes that the variables' values take during each kernel (kernels,)."""
    held = [(*span, size * value_of(variable)) for span, variable, size, _ in holdings(ilp)]
    change = np.zeros(kernels + 1)
    if held:
        starts, ends, sizes = (np.array(column) for column in zip(*held, strict=True))
        change += np.bincount(starts, sizes, kernels + 1) - np.bincount(ends, sizes, kernels + 1)
    return np.cumsum(change)[:-1]


def _by_itself(ilp: Formulation, number: int) -> list[float]:
    choices, table = ilp.reduced.choices, ilp.reduced.choices.tables[number]
    prices = []
    for operand, (index, gadget) in enumerate(choices.operands[number]):
        decided = ilp.reduced.decided.get(index)
        is_slow = decided is not None and not decided.fast[gadget]
        prices.append(table.most_us[operand] if is_slow else table.least_us[operand])
    return prices


def _residency(ilp: Formulation, index: int) -> Residency | None:
    flow, a, b = ilp.reduced.choices.flows[index], ilp.model.a, ilp.model.b
    fast = [value_of(lookup(a, index, k)) + value_of(lookup(b, index, k)) for k in range(len(flow))]
    between = [value_of(lookup(a, index, k + 1)) + value_of(kept_copied(ilp, index, k)) for k in range(len(flow) - 1)]
    writes, reads = ilp.writes, ilp.reads
    flying = [
        value_of(variable)
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
    return next((window for variable, window in windows if value_of(variable) > 1 - _INTEGRAL), None)
