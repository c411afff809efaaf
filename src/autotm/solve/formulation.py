"""The compact formulation as a Pyomo model; names and numbers as in `docs/formulation.md` §3."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyomo.core as pyo
from pyomo.core.expr import LinearExpression

from autotm.solve.choices import Span, TensorChoices, Window
from autotm.solve.prices import EnginePrices, SpanPrices
from autotm.solve.problem import Floats, Ints, Table
from autotm.solve.reductions import Reduced
from autotm.solve.residencies import cost_us

# Which variables of the compact formulation a flow has; the others are always zero.

Key = tuple[int, int]
"""(index of the flow, gadget)."""


def keys_of(index: int, flow: TensorChoices) -> tuple[list[Key], list[Key], list[Key]]:
    """Keys of the variables `a`, `b` and `s` of a flow."""
    copied = copied_gadgets(flow)
    kept = [k for k in copied if k + 1 in copied and flow.may_read[k + 1] and flow.may_between[k]]
    born = range(_born_fast_gadgets(flow))
    return [(index, k) for k in born], [(index, k) for k in copied], [(index, k) for k in kept]


def _born_fast_gadgets(flow: TensorChoices) -> int:
    count = 0
    while count < len(flow) and flow.may[count] and (count == 0 or flow.may_between[count - 1]):
        count += 1
    return count


def copied_gadgets(flow: TensorChoices) -> set[int]:
    """Gadgets at which the tensor can be fast with a slow copy: read back there, or read back before and kept."""
    gadgets: set[int] = set()
    for k in range(1, len(flow)):
        if flow.may_read[k] or (k - 1 in gadgets and flow.may[k] and flow.may_between[k - 1]):
            gadgets.add(k)
    return gadgets


# Linear expressions for Pyomo without the cost of summing them one by one.

Variable: TypeAlias = Any
"""A Pyomo variable; Pyomo carries no types."""


class Terms:
    """A linear expression under construction; a variable may be added several times, None is always zero."""

    def __init__(self) -> None:
        self._coefficients: dict[int, float] = defaultdict(float)
        self._variables: dict[int, Variable] = {}

    def add(self, variable: Variable, coefficient: float) -> None:
        """Add a multiple of a variable."""
        if variable is not None and coefficient:
            self._coefficients[id(variable)] += coefficient
            self._variables[id(variable)] = variable

    def pairs(self) -> list[tuple[Variable, float]]:
        """Each variable once, with its coefficient."""
        return [(self._variables[key], value) for key, value in self._coefficients.items() if value]


def linear(pairs: list[tuple[Variable, float]], constant: float = 0.0) -> LinearExpression:
    """A Pyomo expression."""
    return LinearExpression(
        constant=constant,
        linear_coefs=[coefficient for _, coefficient in pairs],
        linear_vars=[variable for variable, _ in pairs],
    )


def lookup(variables: Variable, *index: Any) -> Variable:
    """The variable with that index; None where there is none, which means zero."""
    return variables[index] if index in variables else None  # noqa: SIM401 - no dict, has no get


# Asynchronous moves in the model: a variable per window.
#
# Per gap k of a flow and window j: `w[k, j]` the write uses it, `r[k, j]` the read. What the windows share stands in
# `Demand`. Numbers as in `docs/formulation.md` §9.

Gap = tuple[int, int]
"""(index of the flow, gap)."""

Choice = tuple[tuple[Variable, Window], ...]
"""Variables and windows of one move."""


@dataclass(frozen=True)
class AsyncMoves:
    """The asynchronous moves of the flows in a model.

    Attributes:
        model: the model.
        writes, reads: variables and windows by gap.
    """

    model: pyo.ConcreteModel
    writes: dict[Gap, Choice]
    reads: dict[Gap, Choice]

    @property
    def are_possible(self) -> bool:
        """Whether there are any."""
        return bool(self.writes or self.reads)

    @classmethod
    def of(cls, model: pyo.ConcreteModel, flows: Mapping[int, TensorChoices]) -> AsyncMoves:
        """Make the variables."""
        out = {(index, k): windows for index, flow in flows.items() for k, windows in enumerate(flow.out) if windows}
        back = {(index, k): windows for index, flow in flows.items() for k, windows in enumerate(flow.back) if windows}
        model.w = pyo.Var([(*gap, j) for gap, windows in out.items() for j in range(len(windows))], domain=pyo.Binary)
        model.r = pyo.Var([(*gap, j) for gap, windows in back.items() for j in range(len(windows))], domain=pyo.Binary)
        return cls(model, _paired(model.w, out), _paired(model.r, back))

    def prices_us(self, flows: Mapping[int, TensorChoices]) -> Iterator[tuple[Variable, float, float]]:
        """Each variable with the price of its move, and that of the blocking move which it replaces."""
        for (index, _), choice in self.writes.items():
            yield from ((variable, window.added_us, flows[index].write_us) for variable, window in choice)
        for (index, _), choice in self.reads.items():
            yield from ((variable, window.added_us, flows[index].read_us) for variable, window in choice)


def _paired(variables: Variable, moves: Mapping[Gap, tuple[Window, ...]]) -> dict[Gap, Choice]:
    return {
        gap: tuple((variables[(*gap, j)], window) for j, window in enumerate(windows)) for gap, windows in moves.items()
    }


def constrain(async_moves: AsyncMoves) -> None:
    """Add (A6) and (A7) to the model."""
    written_when_left(async_moves)
    read_when_back(async_moves)


def written_when_left(async_moves: AsyncMoves) -> None:
    """(A6) sum of w[k,j] <= a[k] - a[k+1]."""
    a = async_moves.model.a
    body = {
        (index, k): _at_most(choice, lookup(a, index, k), lookup(a, index, k + 1))
        for (index, k), choice in async_moves.writes.items()
    }
    async_moves.model.written_when_left = _not_above_zero(body)


def read_when_back(async_moves: AsyncMoves) -> None:
    """(A7) sum of r[k,j] <= b[k+1] - s[k]."""
    b, s = async_moves.model.b, async_moves.model.s
    body = {
        (index, k): _at_most(choice, lookup(b, index, k + 1), lookup(s, index, k))
        for (index, k), choice in async_moves.reads.items()
    }
    async_moves.model.read_when_back = _not_above_zero(body)


def _at_most(choice: Choice, more: Variable, less: Variable) -> LinearExpression:
    """Sum of the choice's variables - more + less."""
    terms = Terms()
    for variable, _ in choice:
        terms.add(variable, 1.0)
    terms.add(more, -1.0)
    terms.add(less, 1.0)
    return linear(terms.pairs())


def _not_above_zero(body: Mapping[Gap, LinearExpression]) -> pyo.Constraint:
    return pyo.Constraint(list(body), rule=lambda _, index, k: (None, body[index, k], 0.0))


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

    def __init__(self, async_moves: AsyncMoves, kernel_ns: Sequence[int]) -> None:
        until_ns: Ints = np.concatenate(([0], np.cumsum(np.array(kernel_ns, np.int64))))
        self._model = async_moves.model
        self._blocks = 0
        self.out = _EngineRows(async_moves.writes, until_ns)
        self.back = _EngineRows(async_moves.reads, until_ns)

    def add_broken(self) -> pyo.Block | None:
        """Give the model rows that its variables' values break; None where there is none."""
        found = [(rows, span) for rows in (self.out, self.back) for span in rows.broken()]
        if not found:
            return None
        block = pyo.Block(concrete=True)
        self._model.add_component(f"demand_{self._blocks}", block)
        self._blocks += 1
        bodies = [linear(rows.terms(span)) for rows, span in found]
        block.demand = pyo.Constraint(range(len(found)), rule=lambda _, n: (None, bodies[n], 1.0))
        for n, (rows, span) in enumerate(found):
            rows.constraints[span] = block.demand[n]
        return block

    def prices(self, duals: Duals, us_per_unit: float) -> EnginePrices:
        """What the last relaxation charges: minus the duals of the rows."""
        return EnginePrices(self.out.prices(duals, us_per_unit), self.back.prices(duals, us_per_unit))


class _EngineRows:
    """The demand rows of one engine; `constraints` by span."""

    def __init__(self, moves: Mapping[Gap, Choice], until_ns: Ints) -> None:
        flat = [pair for choice in moves.values() for pair in choice]
        self._variables = [variable for variable, _ in flat]
        self._starts = np.array([window.start for _, window in flat], np.int64)
        self._ends = np.array([window.end for _, window in flat], np.int64)
        self._work_ns = np.array([window.work_ns for _, window in flat], np.int64)
        self._until_ns = until_ns
        self.constraints: dict[Span, pyo.Constraint] = {}

    def broken(self) -> list[Span]:
        """Spans whose work exceeds them, of those that start with the same kernel the worst; none twice."""
        values = np.array([float(variable.value or 0.0) for variable in self._variables])
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
        return self._apart(starts, ends[worst], excess_ns[np.arange(len(starts)), worst])

    def _apart(self, starts: Ints, ends: Ints, excess_ns: Floats) -> list[Span]:
        """The spans that are unlike worse ones, the worst first."""
        found: list[Span] = []
        for n in np.argsort(-excess_ns, kind="stable").tolist():
            span = int(starts[n]), int(ends[n])
            if excess_ns[n] <= _LEAST_NS:
                break
            if span not in self.constraints and not any(_alike(span, other) for other in found):
                found.append(span)
        return found

    def terms(self, span: Span) -> list[tuple[pyo.Var, float]]:
        """Work within a span as parts of it."""
        within = ((self._starts >= span[0]) & (self._ends <= span[1])).nonzero()[0]
        shares = self._work_ns[within] / self._lasts_ns(span)
        return [(self._variables[n], share) for n, share in zip(within.tolist(), shares.tolist(), strict=True)]

    def prices(self, duals: Duals, us_per_unit: float) -> SpanPrices:
        """Minus the duals, per nanosecond."""
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


# The compact formulation as a Pyomo model; names and numbers as in `docs/formulation.md` §3.
#
# Per undecided flow with gadgets k = 0..m-1: `a[k]` in fast memory since birth, `b[k]` in fast memory with a slow copy,
# `s[k]` stays so over the gap after k; per capacity row j: `u[j]`, fast bytes in use; per open table: `c[e]`, entry e.
# Asynchronous moves: `AsyncMoves` above.

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
