"""The compact formulation as a Pyomo model; names and numbers as in `docs/formulation.md` §3.

Per undecided flow with gadgets k = 0..m-1: `a[k]` in fast memory since birth, `b[k]` in fast memory with a slow copy,
`s[k]` stays so over the gap after k; per capacity row j: `u[j]`, fast bytes in use; per open table: `c[e]`, entry e.
Asynchronous moves: `async_moves.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyomo.core as pyo
from pyomo.core.expr import LinearExpression

from autotm.solve.bounds import Reduced
from autotm.solve.problem import Table, cost_us
from autotm.solve.program.async_moves import AsyncMoves, constrain
from autotm.solve.program.demand import Demand
from autotm.solve.program.linear import Terms, Variable, linear, lookup
from autotm.solve.program.variables import Key, keys_of

_LARGEST = 1e3
_SMALLEST = 1e-3


@dataclass(frozen=True)
class OpenTable:
    """A table as the model sees it.

    Attributes:
        number: which one it is.
        table: its undecided entries, over the operands that have variables.
        keys: those operands' flows and gadgets.
    """

    number: int
    table: Table
    keys: tuple[Key, ...]

    @property
    def has_menu(self) -> bool:
        """Whether one placement has several entries: then operands alone do not decide the entry."""
        return len(self.table) > len(self.table.groups)


@dataclass(frozen=True)
class Formulation:
    """A model with the units of its numbers.

    Attributes:
        model: the Pyomo model.
        reduced: what it was built from.
        bytes_per_unit, us_per_unit: what one unit of `u` and of the objective stands for.
        flows: indices of the flows that have variables; smaller ones weigh nothing in the scaled rows.
        tables: those with more than one entry left.
        async_moves: the asynchronous moves of those flows.
        demand: the rows that these moves have got so far.
        constant_us: what the rest of the step costs.
    """

    model: pyo.ConcreteModel
    reduced: Reduced
    bytes_per_unit: float
    us_per_unit: float
    flows: tuple[int, ...]
    tables: tuple[OpenTable, ...]
    async_moves: AsyncMoves
    demand: Demand
    constant_us: float

    @property
    def is_open(self) -> bool:
        """Whether anything is left for a solver."""
        return bool(self.flows or self.tables)


def build(reduced: Reduced, base_us: float) -> Formulation:
    """The model of the undecided flows and tables; `base_us` is what kernels without a table cost."""
    all_flows, tables = reduced.choices.flows, reduced.choices.tables
    undecided = [index for index in range(len(all_flows)) if index not in reduced.decided]
    sizes = [all_flows[index].size_bytes for index in undecided] + [table.most_bytes for table in tables]
    bytes_per_unit = max(*sizes, 1, 1) / _LARGEST
    flows = tuple(index for index in undecided if all_flows[index].size_bytes >= _SMALLEST * bytes_per_unit)
    with_variables, with_row = set(flows), set(reduced.rows)
    left = [_open(reduced, with_variables, with_row, number) for number in range(len(tables))]
    found = tuple(item for item in left if len(item.table) > 1)
    constant_us = base_us + sum(cost_us(all_flows[index], way) for index, way in reduced.decided.items())
    constant_us += sum(float(item.table.time_us.min()) for item in left)
    costs = [max(flow.read_us, flow.write_us, *flow.slow_us) for flow in (all_flows[index] for index in flows)]
    costs += [float(item.table.time_us.max() - item.table.time_us.min()) for item in found]
    us_per_unit = max(*costs, 1e-9, constant_us * 1e-6) / _LARGEST
    model = pyo.ConcreteModel(name="compact placement")
    model.us_per_unit = pyo.Param(initialize=us_per_unit)
    async_moves = AsyncMoves.of(model, {index: all_flows[index] for index in flows})
    demand = Demand(async_moves, reduced.choices.kernel_ns)
    made = Formulation(model, reduced, bytes_per_unit, us_per_unit, flows, found, async_moves, demand, constant_us)
    _variables(made)
    born_fast_once_left_never_returns(made)
    one_fast_state(made)
    stay_needs_both_ends(made)
    required_fast(made)
    capacity_chain(made)
    one_entry(made)
    entry_follows_operands(made)
    constrain(async_moves)
    step_time(made)
    return made


def _open(reduced: Reduced, flows: set[int], rows: set[int], number: int) -> OpenTable:
    keys = reduced.choices.operands[number]
    columns = [operand for operand, (index, _) in enumerate(keys) if index in flows]
    table = reduced.undecided_entries(number)
    left = table.projected(columns, free_bytes=table.kernel not in rows)
    return OpenTable(number, left, tuple(keys[operand] for operand in columns))


def _variables(made: Formulation) -> None:
    model, flows = made.model, made.reduced.choices.flows
    keys = [keys_of(index, flows[index]) for index in made.flows]
    model.a, model.b, model.s = (
        pyo.Var([key for of_flow in keys for key in of_flow[kind]], domain=pyo.Binary) for kind in range(3)
    )
    rooms = [room / made.bytes_per_unit for room in made.reduced.room]
    model.u = pyo.Var(range(len(rooms)), bounds=lambda _, row: (0.0, rooms[row]))
    menus = {item.number for item in made.tables if item.has_menu}
    entries = [(item.number, entry) for item in made.tables for entry in range(len(item.table))]
    model.c = pyo.Var(entries, domain=lambda _, number, __: pyo.Binary if number in menus else pyo.UnitInterval)


def born_fast_once_left_never_returns(made: Formulation) -> None:
    """(F1) a[k+1] <= a[k]."""
    a = made.model.a
    keys = [(index, k) for index, k in a if k]
    _less_equal(made, "born_fast_once_left_never_returns", keys, lambda index, k: (a[index, k], a[index, k - 1]))


def one_fast_state(made: Formulation) -> None:
    """(F2) a[k] + b[k] <= 1, where b[k] can begin with a read."""
    model, flows = made.model, made.reduced.choices.flows
    keys = [(index, k) for index, k in model.b if (index, k) in model.a and flows[index].may_read[k]]
    body = {key: linear([(model.a[key], 1.0), (model.b[key], 1.0)]) for key in keys}
    model.one_fast_state = pyo.Constraint(keys, rule=lambda _, index, k: (None, body[index, k], 1.0))


def stay_needs_both_ends(made: Formulation) -> None:
    """(F3) s[k] <= b[k], (F4) s[k] <= b[k+1]; where no read can begin, b[k+1] itself is the stay: b[k+1] <= b[k]."""
    b, s, flows = made.model.b, made.model.s, made.reduced.choices.flows
    _less_equal(made, "stay_starts_copied", list(s), lambda index, k: (s[index, k], b[index, k]))
    _less_equal(made, "stay_ends_copied", list(s), lambda index, k: (s[index, k], b[index, k + 1]))
    kept = [(index, k) for index, k in b if not flows[index].may_read[k]]
    _less_equal(made, "kept_copied", kept, lambda index, k: (b[index, k], b[index, k - 1]))


def required_fast(made: Formulation) -> None:
    """(F5) a[k] + b[k] = 1 where the gadget has to be fast."""
    model = made.model
    keys = [(index, k) for index in made.flows for k, must in enumerate(made.reduced.choices.flows[index].must) if must]
    body = {
        key: linear([(variables[key], 1.0) for variables in (model.a, model.b) if key in variables]) for key in keys
    }
    model.required_fast = pyo.Constraint(keys, rule=lambda _, index, k: (1.0, body[index, k], 1.0))


def capacity_chain(made: Formulation) -> None:
    """(F6) u[j] = u[j-1] + bytes entering - bytes leaving between rows j-1 and j, 0 <= u[j] <= room[j]."""
    model, rows = made.model, made.reduced.rows
    changes = [Terms() for _ in rows]
    for (start, end), variable, size_bytes, _ in holdings(made):
        enter, leave = bisect_left(rows, start), bisect_left(rows, end)
        if enter < leave:
            changes[enter].add(variable, size_bytes / made.bytes_per_unit)
            if leave < len(rows):
                changes[leave].add(variable, -size_bytes / made.bytes_per_unit)
    model.flow_into = [change.pairs() for change in changes]

    def rule(model: pyo.ConcreteModel, row: int) -> tuple[float, LinearExpression, float]:
        chain = [(model.u[row], -1.0)] + ([(model.u[row - 1], 1.0)] if row else [])
        return 0.0, linear(model.flow_into[row] + chain), 0.0

    model.capacity_chain = pyo.Constraint(range(len(rows)), rule=rule)


def one_entry(made: Formulation) -> None:
    """(F8) sum of c[e] over the entries of a table = 1."""
    c = made.model.c
    body = {
        item.number: linear([(c[item.number, entry], 1.0) for entry in range(len(item.table))]) for item in made.tables
    }
    made.model.one_entry = pyo.Constraint(list(body), rule=lambda _, number: (1.0, body[number], 1.0))


def entry_follows_operands(made: Formulation) -> None:
    """(F9) sum of c[e] over the entries in which operand o is fast = a[k] + b[k] of its tensor there."""
    model, body = made.model, {}
    for item in made.tables:
        slow = item.table.slow.tolist()
        for operand, key in enumerate(item.keys):
            fast = [(model.c[item.number, entry], 1.0) for entry, bits in enumerate(slow) if not bits >> operand & 1]
            at = [(variables[key], -1.0) for variables in (model.a, model.b) if key in variables]
            body[item.number, operand] = linear(fast + at)
    model.entry_follows_operands = pyo.Constraint(
        list(body), rule=lambda _, number, operand: (0.0, body[number, operand], 0.0)
    )


def step_time(made: Formulation) -> None:
    """(F7) minimise base + slow operands + writes (a[0] - a[m-1]) + reads (b[k] - s[k-1]) + entries + (A5)."""
    model, scale = made.model, made.us_per_unit
    terms, constant = Terms(), made.constant_us / scale
    for index in made.flows:
        flow = made.reduced.choices.flows[index]
        write, read, *slow = (_scaled(cost, scale) for cost in (flow.write_us, flow.read_us, *flow.slow_us))
        constant += sum(slow)
        terms.add(lookup(model.a, index, 0), write)
        terms.add(lookup(model.a, index, len(flow) - 1), -write)
        for k, cost in enumerate(slow):
            terms.add(lookup(model.a, index, k), -cost)
            terms.add(lookup(model.b, index, k), (read if flow.may_read[k] else 0.0) - cost)
            terms.add(lookup(model.s, index, k), -read)
    for item in made.tables:
        above_us = item.table.time_us - item.table.time_us.min()
        for entry, cost in enumerate(above_us.tolist()):
            terms.add(model.c[item.number, entry], _scaled(cost, scale))
    for variable, flying_us, blocking_us in made.async_moves.prices_us(
        {i: made.reduced.choices.flows[i] for i in made.flows}
    ):
        terms.add(variable, _scaled(flying_us, scale) - _scaled(blocking_us, scale))
    model.step_time = pyo.Objective(expr=linear(terms.pairs(), constant), sense=pyo.minimize)


def _scaled(cost_us: float, scale: float) -> float:
    """Costs too small for the solver are rounded down, which only relaxes; the exact price is computed afterwards."""
    if abs(cost_us) >= _SMALLEST * scale:
        return cost_us / scale
    return 0.0 if cost_us >= 0 else -_SMALLEST


class Holding(NamedTuple):
    """Fast memory that is held during kernels [start, end) if a variable is 1.

    Attributes:
        span: those kernels.
        variable: which.
        size_bytes: how much.
        flow: whose; None for the workspaces of a table's entry.
    """

    span: tuple[int, int]
    variable: Variable
    size_bytes: int
    flow: int | None


def holdings(made: Formulation) -> Iterator[Holding]:
    """All that the model's variables hold; what a flow holds during a kernel adds up to at most 1."""
    model, flows = made.model, made.reduced.choices.flows
    for (index, k), variable in model.a.items():
        flow = flows[index]
        yield Holding((flow.stops[k - 1] if k else flow.starts[0], flow.stops[k]), variable, flow.size_bytes, index)
    for (index, k), variable in model.b.items():
        flow = flows[index]
        start = flow.starts[k] if flow.may_read[k] else flow.stops[k - 1]
        yield Holding((start, flow.stops[k]), variable, flow.size_bytes, index)
    for (index, k), variable in model.s.items():
        yield Holding(flows[index].gap(k), variable, flows[index].size_bytes, index)
    for (index, _), windows in [*made.async_moves.writes.items(), *made.async_moves.reads.items()]:
        for variable, window in windows:
            yield Holding((window.start, window.end), variable, flows[index].size_bytes, index)
    for item in made.tables:
        during = (item.table.kernel, item.table.kernel + 1)
        for entry, size_bytes in enumerate(item.table.fast_bytes.tolist()):
            if size_bytes >= _SMALLEST * made.bytes_per_unit:
                yield Holding(during, model.c[item.number, entry], size_bytes, None)


def kept_copied(made: Formulation, index: int, k: int) -> Variable:
    """The variable that says the tensor stays fast over gap k beside a slow copy; None where it cannot."""
    if made.reduced.choices.flows[index].may_read[k + 1]:
        return lookup(made.model.s, index, k)
    return lookup(made.model.b, index, k + 1)


def _less_equal(
    made: Formulation, name: str, keys: list[Key], pair: Callable[[int, int], tuple[Variable, Variable]]
) -> None:
    def rule(_: pyo.ConcreteModel, index: int, k: int) -> tuple[None, LinearExpression, float]:
        small, large = pair(index, k)
        return None, linear([(small, 1.0), (large, -1.0)]), 0.0

    setattr(made.model, name, pyo.Constraint(keys, rule=rule))
