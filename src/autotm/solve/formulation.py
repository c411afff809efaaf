"""The compact formulation as a Pyomo model; names and numbers as in `docs/formulation.md` §3 and §9."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyomo.core as pyo
from pyomo.core.expr import LinearExpression

from autotm.solve.choices import Span, TensorChoices, Window
from autotm.solve.prices import EnginePrices, SpanPrices
from autotm.solve.problem import Ints, Table
from autotm.solve.reductions import Reduced
from autotm.solve.residencies import cost_us

Key = tuple[int, int]
"""(index of the flow, gadget or the gap after it)."""


def keys_of(index: int, flow: TensorChoices) -> tuple[list[Key], list[Key], list[Key]]:
    """Return the keys of the variables `a`, `b` and `s` of a flow; the others are always zero."""
    # Fast with a slow copy: read back there, or read back before and kept.
    copied: set[int] = set()
    for k in range(1, len(flow)):
        if flow.may_read[k] or (k - 1 in copied and flow.may[k] and flow.may_between[k - 1]):
            copied.add(k)
    kept = [k for k in copied if k + 1 in copied and flow.may_read[k + 1] and flow.may_between[k]]
    born = 0
    while born < len(flow) and flow.may[born] and (born == 0 or flow.may_between[born - 1]):
        born += 1
    return [(index, k) for k in range(born)], [(index, k) for k in copied], [(index, k) for k in kept]


Variable: TypeAlias = Any
"""A Pyomo variable; Pyomo carries no types."""

Pairs: TypeAlias = list[tuple[Variable, float]]
"""Variables with their coefficients."""


class Terms:
    """A linear expression, without the cost of summing Pyomo's one by one; the variable None is always zero."""

    def __init__(self) -> None:
        self._coefficients: dict[int, float] = defaultdict(float)
        self._variables: dict[int, Variable] = {}

    def add(self, variable: Variable, coefficient: float) -> None:
        """Add a multiple of a variable, which may have been added before."""
        if variable is not None and coefficient:
            self._coefficients[id(variable)] += coefficient
            self._variables[id(variable)] = variable

    def pairs(self) -> Pairs:
        """Return each variable once, with its coefficient."""
        return [(self._variables[key], value) for key, value in self._coefficients.items() if value]


def linear(pairs: Pairs, constant: float = 0.0) -> LinearExpression:
    """Return the linear expression of these pairs for Pyomo."""
    return LinearExpression(
        constant=constant,
        linear_coefs=[coefficient for _, coefficient in pairs],
        linear_vars=[variable for variable, _ in pairs],
    )


def value_of(variable: Variable) -> float:
    """Return a variable's value; 0 where it has none, or where there is no variable."""
    return 0.0 if variable is None else float(variable.value or 0.0)


def lookup(variables: Variable, *index: Any) -> Variable:
    """Return the variable with that index; None where there is none, which means zero."""
    return variables[index] if index in variables else None  # noqa: SIM401 - no dict, has no get


def _add_rows(
    model: pyo.ConcreteModel,
    name: str,
    keys: Iterable[Any],
    pairs: Callable[..., Pairs],
    lower: float | None,
    upper: float,
) -> None:
    """Add constraints lower <= row <= upper under a name; `pairs` gives the row of a key."""
    setattr(model, name, pyo.Constraint(list(keys), rule=lambda _, *key: (lower, linear(pairs(*key)), upper)))


Choice = tuple[tuple[Variable, Window], ...]
"""Variables and windows of one asynchronous move."""

Moves = Mapping[Key, Choice]
"""The asynchronous moves of one direction."""


# Demand rows (A8): what windows within a span of kernels ask of their engine takes no longer than the span.
#
# Where this holds for every span, the moves can be made, the one that must be complete first being served first
# (Baruah, Rosier and Howell, 1990). There are as many spans as pairs of kernels; a model gets those that its values
# break.

_BROKEN, _LEAST_NS = 1e-7, 0.5
"""Part of a span, and time, by which work exceeds it if it does so by more than rounding."""
_ALIKE = 0.9
"""Spans that share so much of what they cover together get one row at a time."""

Duals = Callable[[Iterable[pyo.Constraint]], Sequence[float]]
"""The duals of constraints in the last relaxation."""


class Demand:
    """The demand rows of a model.

    Attributes:
        out, back: those of the engines towards slow and towards fast memory.
    """

    def __init__(self, model: pyo.ConcreteModel, writes: Moves, reads: Moves, kernel_ns: Sequence[int]) -> None:
        until_ns: Ints = np.concatenate(([0], np.cumsum(np.array(kernel_ns, np.int64))))
        self._model = model
        self._blocks = 0
        self.out = _EngineRows(writes, until_ns)
        self.back = _EngineRows(reads, until_ns)

    def add_broken(self) -> pyo.Block | None:
        """Add to the model the rows that its variables' values break; return None where there is none."""
        broken = [(rows, span) for rows in (self.out, self.back) for span in rows.broken()]
        if not broken:
            return None
        block = pyo.Block(concrete=True)
        self._model.add_component(f"demand_{self._blocks}", block)
        self._blocks += 1
        terms = [rows.terms(span) for rows, span in broken]
        _add_rows(block, "demand", range(len(broken)), terms.__getitem__, None, 1.0)
        for n, (rows, span) in enumerate(broken):
            rows.constraints[span] = block.demand[n]
        return block

    def prices(self, duals: Duals, us_per_unit: float) -> EnginePrices:
        """Return the prices of engine time in the last relaxation: minus the duals of the demand rows."""
        return EnginePrices(self.out.prices(duals, us_per_unit), self.back.prices(duals, us_per_unit))


class _EngineRows:
    """The demand rows of one engine; `constraints` by span."""

    def __init__(self, moves: Moves, until_ns: Ints) -> None:
        flat = [pair for choice in moves.values() for pair in choice]
        self._variables = [variable for variable, _ in flat]
        self._starts = np.array([window.start for _, window in flat], np.int64)
        self._ends = np.array([window.end for _, window in flat], np.int64)
        self._work_ns = np.array([window.work_ns for _, window in flat], np.int64)
        self._until_ns = until_ns
        self.constraints: dict[Span, pyo.Constraint] = {}

    def broken(self) -> list[Span]:
        """Return new spans with more work than time: the worst for each first kernel, and one of nearly equal ones."""
        values = np.array([value_of(variable) for variable in self._variables])
        used = values.nonzero()[0]
        starts, row = np.unique(self._starts[used], return_inverse=True)
        ends, column = np.unique(self._ends[used], return_inverse=True)
        if not len(used):
            return []
        work_ns = np.zeros((len(starts), len(ends)))
        np.add.at(work_ns, (row, column), values[used] * self._work_ns[used])
        work_ns = work_ns[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
        lasts_ns = self._until_ns[ends][None, :] - self._until_ns[starts][:, None]
        excess_ns = np.where(lasts_ns > 0, work_ns - lasts_ns * (1 + _BROKEN), 0.0)
        worst = excess_ns.argmax(axis=1)
        most_ns = excess_ns.max(axis=1)
        broken: list[Span] = []
        for n in np.argsort(-most_ns, kind="stable").tolist():
            span = int(starts[n]), int(ends[worst[n]])
            if most_ns[n] <= _LEAST_NS:
                break
            if span not in self.constraints and not any(_alike(span, other) for other in broken):
                broken.append(span)
        return broken

    def terms(self, span: Span) -> Pairs:
        """Return the terms of the work within a span, as shares of the span's time."""
        within = ((self._starts >= span[0]) & (self._ends <= span[1])).nonzero()[0]
        shares = self._work_ns[within] / self._lasts_ns(span)
        return [(self._variables[n], share) for n, share in zip(within.tolist(), shares.tolist(), strict=True)]

    def prices(self, duals: Duals, us_per_unit: float) -> SpanPrices:
        """Return the prices of the spans: minus the duals of their rows, per nanosecond."""
        values = duals(self.constraints.values()) if self.constraints else []
        paid = [(span, -dual * us_per_unit) for span, dual in zip(self.constraints, values, strict=True) if dual < 0]
        lasts_ns = np.array([self._lasts_ns(span) for span, _ in paid], np.int64)
        price_us = np.array([price for _, price in paid]) / lasts_ns if paid else np.zeros(0)
        starts, ends = np.array([span for span, _ in paid], np.int64).reshape(-1, 2).T
        return SpanPrices(starts, ends, lasts_ns, price_us)

    def _lasts_ns(self, span: Span) -> int:
        return int(self._until_ns[span[1]] - self._until_ns[span[0]])


def _alike(one: Span, other: Span) -> bool:
    shared = min(one[1], other[1]) - max(one[0], other[0])
    return shared > _ALIKE * (max(one[1], other[1]) - min(one[0], other[0]))


# The variables of the model. Per undecided flow with gadgets k = 0..m-1: `a[k]` in fast memory since birth, `b[k]` in
# fast memory with a slow copy, `s[k]` stays so over the gap after k; per gap k and window j, `w[k, j]` the write uses
# it, `r[k, j]` the read; per capacity row j: `u[j]`, fast bytes in use; per open table: `c[e]`, entry e.

_LARGEST = 1e3  # largest cost, and largest size, of the scaled program
_SMALLEST = 1e-3  # lesser ones are left out, so that coefficients span no more than six decades


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


@dataclass(frozen=True)
class Formulation:
    """A model with the units of its numbers.

    Attributes:
        model: the Pyomo model.
        reduced: what it was built from.
        bytes_per_unit, us_per_unit: what one unit of `u` and of the objective stands for.
        flows: indices of the flows that have variables; smaller ones weigh nothing in the scaled rows.
        tables: those with more than one entry left.
        writes, reads: the asynchronous moves of those flows.
        demand: the rows that these moves have got so far.
        constant_us: what the rest of the step costs.
    """

    model: pyo.ConcreteModel
    reduced: Reduced
    bytes_per_unit: float
    us_per_unit: float
    flows: tuple[int, ...]
    tables: tuple[OpenTable, ...]
    writes: Moves
    reads: Moves
    demand: Demand
    constant_us: float

    @property
    def is_open(self) -> bool:
        """Whether anything is left for a solver."""
        return bool(self.flows or self.tables)

    @property
    def has_async_moves(self) -> bool:
        """Whether any move may be asynchronous."""
        return bool(self.writes or self.reads)


def build(reduced: Reduced, base_us: float) -> Formulation:
    """Return the model of the undecided flows and tables; `base_us` is what kernels without a table cost."""
    all_flows, tables = reduced.choices.flows, reduced.choices.tables
    undecided = [index for index in range(len(all_flows)) if index not in reduced.decided]
    sizes = [all_flows[index].size_bytes for index in undecided] + [table.most_bytes for table in tables]
    bytes_per_unit = max(*sizes, 1, 1) / _LARGEST
    flows = tuple(index for index in undecided if all_flows[index].size_bytes >= _SMALLEST * bytes_per_unit)
    with_variables, with_row = set(flows), set(reduced.rows)
    left = [_open(reduced, with_variables, with_row, number) for number in range(len(tables))]
    open_tables = tuple(item for item in left if len(item.table) > 1)
    constant_us = base_us + sum(cost_us(all_flows[index], residency) for index, residency in reduced.decided.items())
    constant_us += sum(float(item.table.time_us.min()) for item in left)
    costs = [max(flow.read_us, flow.write_us, *flow.slow_us) for flow in (all_flows[index] for index in flows)]
    costs += [float(item.table.time_us.max() - item.table.time_us.min()) for item in open_tables]
    us_per_unit = max(*costs, 1e-9, constant_us * 1e-6) / _LARGEST
    model = pyo.ConcreteModel(name="compact placement")
    model.us_per_unit = pyo.Param(initialize=us_per_unit)
    writes = _moves(model, "w", {(i, k): windows for i in flows for k, windows in enumerate(all_flows[i].out)})
    reads = _moves(model, "r", {(i, k): windows for i in flows for k, windows in enumerate(all_flows[i].back)})
    demand = Demand(model, writes, reads, reduced.choices.kernel_ns)
    ilp = Formulation(
        model, reduced, bytes_per_unit, us_per_unit, flows, open_tables, writes, reads, demand, constant_us
    )
    _variables(ilp)
    rows_of_flows(ilp)
    capacity_chain(ilp)
    rows_of_tables(ilp)
    windows_replace_blocking_moves(ilp)
    step_time(ilp)
    return ilp


def _open(reduced: Reduced, flows: set[int], rows: set[int], number: int) -> OpenTable:
    keys = reduced.choices.operands[number]
    columns = [operand for operand, (index, _) in enumerate(keys) if index in flows]
    table = reduced.undecided_entries(number)
    left = table.projected(columns, free_bytes=table.kernel not in rows)
    return OpenTable(number, left, tuple(keys[operand] for operand in columns))


def _moves(model: pyo.ConcreteModel, name: str, windows: Mapping[Key, tuple[Window, ...]]) -> Moves:
    """Make the variables of one direction."""
    keys = [(*gap, j) for gap, choice in windows.items() for j in range(len(choice))]
    variables = pyo.Var(keys, domain=pyo.Binary)
    setattr(model, name, variables)
    return {
        gap: tuple((variables[(*gap, j)], window) for j, window in enumerate(choice))
        for gap, choice in windows.items()
        if choice
    }


def _variables(ilp: Formulation) -> None:
    model, flows = ilp.model, ilp.reduced.choices.flows
    keys = [keys_of(index, flows[index]) for index in ilp.flows]
    model.a, model.b, model.s = (
        pyo.Var([key for of_flow in keys for key in of_flow[kind]], domain=pyo.Binary) for kind in range(3)
    )
    capacities = [residual_bytes / ilp.bytes_per_unit for residual_bytes in ilp.reduced.residual_bytes]
    model.u = pyo.Var(range(len(capacities)), bounds=lambda _, row: (0.0, capacities[row]))
    # Where one placement has several entries, operands alone do not decide the entry.
    menus = {item.number for item in ilp.tables if len(item.table) > len(item.table.groups)}
    entries = [(item.number, entry) for item in ilp.tables for entry in range(len(item.table))]
    model.c = pyo.Var(entries, domain=lambda _, number, __: pyo.Binary if number in menus else pyo.UnitInterval)


def rows_of_flows(ilp: Formulation) -> None:
    """Add the rows that make a flow's variables a residency.

    (F1) a[k+1] <= a[k]; (F2) a[k] + b[k] <= 1, where b[k] can begin with a read; (F3) s[k] <= b[k], (F4) s[k] <=
    b[k+1]; where no read can begin, b[k+1] itself is the stay: b[k+1] <= b[k]; (F5) a[k] + b[k] = 1 where the gadget
    has to be fast.
    """
    model, flows = ilp.model, ilp.reduced.choices.flows
    a, b, s = model.a, model.b, model.s
    born, kept = (key for key in a if key[1]), (key for key in b if not flows[key[0]].may_read[key[1]])
    both = (key for key in b if key in a and flows[key[0]].may_read[key[1]])
    must = ((index, k) for index in ilp.flows for k, is_must in enumerate(flows[index].must) if is_must)
    add = partial(_add_rows, model)
    add("born_fast_once_left_never_returns", born, lambda i, k: [(a[i, k], 1.0), (a[i, k - 1], -1.0)], None, 0.0)
    add("one_fast_state", both, lambda i, k: [(a[i, k], 1.0), (b[i, k], 1.0)], None, 1.0)
    add("stay_starts_copied", s, lambda i, k: [(s[i, k], 1.0), (b[i, k], -1.0)], None, 0.0)
    add("stay_ends_copied", s, lambda i, k: [(s[i, k], 1.0), (b[i, k + 1], -1.0)], None, 0.0)
    add("kept_copied", kept, lambda i, k: [(b[i, k], 1.0), (b[i, k - 1], -1.0)], None, 0.0)
    add("required_fast", must, lambda i, k: _fast_at((i, k), ilp, 1.0), 1.0, 1.0)


def _fast_at(key: Key, ilp: Formulation, coefficient: float) -> Pairs:
    """Return the variables, of a and b, whose sum is whether a flow is fast at a gadget."""
    return [(variables[key], coefficient) for variables in (ilp.model.a, ilp.model.b) if key in variables]


def capacity_chain(ilp: Formulation) -> None:
    """Add the rows (F6): u[j] = u[j-1] + bytes entering - bytes leaving since row j-1; u[j] <= residual_bytes[j]."""
    u, rows = ilp.model.u, ilp.reduced.rows
    changes = [Terms() for _ in rows]
    for (start, end), variable, size_bytes, _ in holdings(ilp):
        enter, leave = bisect_left(rows, start), bisect_left(rows, end)
        if enter < leave:
            changes[enter].add(variable, size_bytes / ilp.bytes_per_unit)
            if leave < len(rows):
                changes[leave].add(variable, -size_bytes / ilp.bytes_per_unit)
    ilp.model.flow_into = [change.pairs() for change in changes]

    def chain(row: int) -> Pairs:
        into: Pairs = ilp.model.flow_into[row]
        return into + [(u[row], -1.0)] + ([(u[row - 1], 1.0)] if row else [])

    _add_rows(ilp.model, "capacity_chain", range(len(rows)), chain, 0.0, 0.0)


def rows_of_tables(ilp: Formulation) -> None:
    """Add the rows that choose one entry of each table.

    (F8) sum of c[e] over the entries of a table = 1; (F9) sum of c[e] over the entries in which operand o is fast =
    a[k] + b[k] of its tensor there.
    """
    c, operands = ilp.model.c, {}
    for item in ilp.tables:
        slow = item.table.slow.tolist()
        for operand, key in enumerate(item.keys):
            fast = [(c[item.number, entry], 1.0) for entry, bits in enumerate(slow) if not bits >> operand & 1]
            operands[item.number, operand] = fast + _fast_at(key, ilp, -1.0)
    entries = {item.number: [(c[item.number, entry], 1.0) for entry in range(len(item.table))] for item in ilp.tables}
    _add_rows(ilp.model, "one_entry", entries, entries.__getitem__, 1.0, 1.0)
    _add_rows(ilp.model, "entry_follows_operands", operands, lambda *key: operands[key], 0.0, 0.0)


def windows_replace_blocking_moves(ilp: Formulation) -> None:
    """Add the rows (A6): sum of w[k,j] <= a[k] - a[k+1]; (A7): sum of r[k,j] <= b[k+1] - s[k]."""
    a, b, s = ilp.model.a, ilp.model.b, ilp.model.s
    for name, moves, more, after, less, later in (
        ("written_when_left", ilp.writes, a, 0, a, 1),
        ("read_when_back", ilp.reads, b, 1, s, 0),
    ):
        rows = {}
        for (index, k), choice in moves.items():
            terms = Terms()
            for variable, _ in choice:
                terms.add(variable, 1.0)
            terms.add(lookup(more, index, k + after), -1.0)
            terms.add(lookup(less, index, k + later), 1.0)
            rows[index, k] = terms.pairs()
        _add_rows(ilp.model, name, rows, lambda *key, rows=rows: rows[key], None, 0.0)


def step_time(ilp: Formulation) -> None:
    """Minimise (F7): base + slow operands + writes (a[0] - a[m-1]) + reads (b[k] - s[k-1]) + entries + (A5)."""
    model, scale, flows = ilp.model, ilp.us_per_unit, ilp.reduced.choices.flows
    terms, constant = Terms(), ilp.constant_us / scale
    for index in ilp.flows:
        flow = flows[index]
        write, read, *slow = (_scaled(cost, scale) for cost in (flow.write_us, flow.read_us, *flow.slow_us))
        constant += sum(slow)
        terms.add(lookup(model.a, index, 0), write)
        terms.add(lookup(model.a, index, len(flow) - 1), -write)
        for k, cost in enumerate(slow):
            terms.add(lookup(model.a, index, k), -cost)
            terms.add(lookup(model.b, index, k), (read if flow.may_read[k] else 0.0) - cost)
            terms.add(lookup(model.s, index, k), -read)
    for item in ilp.tables:
        above_us = item.table.time_us - item.table.time_us.min()
        for entry, cost in enumerate(above_us.tolist()):
            terms.add(model.c[item.number, entry], _scaled(cost, scale))
    for moves in (ilp.writes, ilp.reads):
        for (index, _), choice in moves.items():
            blocking_us = flows[index].write_us if moves is ilp.writes else flows[index].read_us
            for variable, window in choice:
                terms.add(variable, _scaled(window.added_us, scale) - _scaled(blocking_us, scale))
    model.step_time = pyo.Objective(expr=linear(terms.pairs(), constant), sense=pyo.minimize)


def _scaled(cost_us: float, scale: float) -> float:
    """Round costs too small for the solver down, which only relaxes; the exact price is computed afterwards."""
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


def holdings(ilp: Formulation) -> Iterator[Holding]:
    """Yield every span that the model's variables hold; what a flow holds during a kernel adds up to at most 1."""
    model, flows = ilp.model, ilp.reduced.choices.flows
    for (index, k), variable in model.a.items():
        flow = flows[index]
        yield Holding((flow.stops[k - 1] if k else flow.starts[0], flow.stops[k]), variable, flow.size_bytes, index)
    for (index, k), variable in model.b.items():
        flow = flows[index]
        start = flow.starts[k] if flow.may_read[k] else flow.stops[k - 1]
        yield Holding((start, flow.stops[k]), variable, flow.size_bytes, index)
    for (index, k), variable in model.s.items():
        yield Holding(flows[index].gap(k), variable, flows[index].size_bytes, index)
    for (index, _), windows in [*ilp.writes.items(), *ilp.reads.items()]:
        for variable, window in windows:
            yield Holding((window.start, window.end), variable, flows[index].size_bytes, index)
    for item in ilp.tables:
        during = (item.table.kernel, item.table.kernel + 1)
        for entry, size_bytes in enumerate(item.table.fast_bytes.tolist()):
            if size_bytes >= _SMALLEST * ilp.bytes_per_unit:
                yield Holding(during, model.c[item.number, entry], size_bytes, None)


def kept_copied(ilp: Formulation, index: int, k: int) -> Variable:
    """Return the variable that says the tensor stays fast over gap k beside a slow copy; None where it cannot."""
    if ilp.reduced.choices.flows[index].may_read[k + 1]:
        return lookup(ilp.model.s, index, k)
    return lookup(ilp.model.b, index, k + 1)
