"""The compact formulation as a Pyomo model; names and numbers as in `docs/formulation.md` §3.

Per undecided flow with gadgets k = 0..m-1: `a[k]` in fast memory since birth, `b[k]` in fast memory with a slow copy,
`s[k]` stays so over the gap after k; per capacity row j: `u[j]`, fast bytes in use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyomo.environ as pyo
from pyomo.core.expr import LinearExpression

from autotm.solve.flow import Flow
from autotm.solve.journey import Journey
from autotm.solve.prune import Reduced

Variable: TypeAlias = Any
"""A Pyomo variable, an indexed one, or None for one that is always zero; Pyomo carries no types."""

Key = tuple[int, int]
"""(index of the flow, gadget)."""

_LARGEST = 1e3
_SMALLEST = 1e-3
_INTEGRAL = 1e-6


@dataclass(frozen=True)
class Formulation:
    """A model with the units of its numbers.

    Attributes:
        model: the Pyomo model.
        reduced: what it was built from.
        bytes_per_unit, us_per_unit: what one unit of `u` and of the objective stands for.
        flows: indices of the flows that have variables; smaller ones weigh nothing in the scaled rows.
    """

    model: pyo.ConcreteModel
    reduced: Reduced
    bytes_per_unit: float
    us_per_unit: float
    flows: tuple[int, ...]

    def journeys(self) -> dict[int, Journey]:
        """The flows whose values are integral, as journeys, from the values in the model."""
        found = {}
        for index in self.flows:
            journey = self._journey(index)
            if journey is not None:
                found[index] = journey
        return found

    def start_from(self, journeys: Mapping[int, Journey]) -> None:
        """Put journeys into the model's values, as a start for the search."""
        for variables in (self.model.a, self.model.b, self.model.s):
            for variable in variables.values():
                variable.set_value(0, skip_validation=True)
        for index in self.flows:
            journey = journeys[index]
            for k in range(len(journey.fast)):
                kind = self.model.a if k < journey.first_leave else self.model.b
                if journey.fast[k] and (index, k) in kind:
                    kind[index, k].set_value(1, skip_validation=True)
                if k and journey.between[k - 1] and k >= journey.first_leave and (index, k - 1) in self.model.s:
                    self.model.s[index, k - 1].set_value(1, skip_validation=True)
        for row in self.model.u:
            change = sum(coefficient * variable.value for variable, coefficient in self.model.flow_into[row])
            before = self.model.u[row - 1].value if row else 0.0
            self.model.u[row].set_value(before + change, skip_validation=True)

    def _journey(self, index: int) -> Journey | None:
        flow = self.reduced.flows[index]
        fast = [self._value(self.model.a, index, k) + self._value(self.model.b, index, k) for k in range(len(flow))]
        between = [self._between(index, k) for k in range(len(flow) - 1)]
        if any(abs(value - round(value)) > _INTEGRAL for value in fast + between):
            return None
        return Journey(tuple(round(value) > 0 for value in fast), tuple(round(value) > 0 for value in between))

    def _between(self, index: int, k: int) -> float:
        kept = kept_copied(self, index, k)
        return self._value(self.model.a, index, k + 1) + (0.0 if kept is None else float(kept.value or 0.0))

    @staticmethod
    def _value(variables: Variable, index: int, k: int) -> float:
        return float(variables[index, k].value or 0.0) if (index, k) in variables else 0.0


class _Terms:
    """A linear expression under construction."""

    def __init__(self) -> None:
        self.coefficients: dict[int, float] = defaultdict(float)
        self.variables: dict[int, Variable] = {}

    def add(self, variable: Variable, coefficient: float) -> None:
        if variable is not None and coefficient:
            self.coefficients[id(variable)] += coefficient
            self.variables[id(variable)] = variable

    def pairs(self) -> list[tuple[Variable, float]]:
        return [(self.variables[key], value) for key, value in self.coefficients.items() if value]


def linear(pairs: list[tuple[Variable, float]], constant: float = 0.0) -> LinearExpression:
    """A Pyomo expression without the cost of summing one by one."""
    return LinearExpression(
        constant=constant,
        linear_coefs=[coefficient for _, coefficient in pairs],
        linear_vars=[variable for variable, _ in pairs],
    )


def build(reduced: Reduced, constant_us: float) -> Formulation:
    """The model of the undecided flows; `constant_us` is what the rest of the step costs."""
    undecided = [index for index in range(len(reduced.flows)) if index not in reduced.decided]
    largest = max(reduced.flows[index].size_bytes for index in undecided)
    bytes_per_unit = largest / _LARGEST
    flows = tuple(index for index in undecided if reduced.flows[index].size_bytes >= _SMALLEST * bytes_per_unit)
    costs = [max(flow.read_us, flow.write_us, *flow.slow_us) for flow in (reduced.flows[index] for index in flows)]
    us_per_unit = max(*costs, 1e-9, constant_us * 1e-6) / _LARGEST
    model = pyo.ConcreteModel(name="compact placement")
    made = Formulation(model, reduced, bytes_per_unit, us_per_unit, flows)
    _variables(model, reduced, flows, bytes_per_unit)
    born_fast_once_left_never_returns(made)
    one_fast_state(made)
    stay_needs_both_ends(made)
    required_fast(made)
    capacity_chain(made)
    step_time(made, constant_us)
    return made


def _variables(model: pyo.ConcreteModel, reduced: Reduced, flows: tuple[int, ...], bytes_per_unit: float) -> None:
    a, b, s = [], [], []
    for index in flows:
        flow = reduced.flows[index]
        a += [(index, k) for k in range(_born_fast_gadgets(flow))]
        copied = copied_gadgets(flow)
        b += [(index, k) for k in copied]
        s += [(index, k) for k in copied if k + 1 in copied and flow.may_read[k + 1] and flow.may_between[k]]
    model.a = pyo.Var(a, domain=pyo.Binary)
    model.b = pyo.Var(b, domain=pyo.Binary)
    model.s = pyo.Var(s, domain=pyo.Binary)
    rooms = {row: room / bytes_per_unit for row, room in enumerate(reduced.room)}
    model.u = pyo.Var(range(len(rooms)), bounds=lambda _, row: (0.0, rooms[row]))


def _born_fast_gadgets(flow: Flow) -> int:
    count = 0
    while count < len(flow) and flow.may[count] and (count == 0 or flow.may_between[count - 1]):
        count += 1
    return count


def copied_gadgets(flow: Flow) -> set[int]:
    """Gadgets at which the tensor can be fast with a slow copy: read back there, or read back before and kept."""
    gadgets: set[int] = set()
    for k in range(1, len(flow)):
        if flow.may_read[k] or (k - 1 in gadgets and flow.may[k] and flow.may_between[k - 1]):
            gadgets.add(k)
    return gadgets


def born_fast_once_left_never_returns(made: Formulation) -> None:
    """(F1) a[k+1] <= a[k]."""
    a = made.model.a
    keys = [(index, k) for index, k in a if k]
    _less_equal(made, "born_fast_once_left_never_returns", keys, lambda index, k: (a[index, k], a[index, k - 1]))


def one_fast_state(made: Formulation) -> None:
    """(F2) a[k] + b[k] <= 1, where b[k] can begin with a read."""
    model, flows = made.model, made.reduced.flows
    keys = [(index, k) for index, k in model.b if (index, k) in model.a and flows[index].may_read[k]]
    body = {key: linear([(model.a[key], 1.0), (model.b[key], 1.0)]) for key in keys}
    model.one_fast_state = pyo.Constraint(keys, rule=lambda _, index, k: (None, body[index, k], 1.0))


def stay_needs_both_ends(made: Formulation) -> None:
    """(F3) s[k] <= b[k], (F4) s[k] <= b[k+1]; where no read can begin, b[k+1] itself is the stay: b[k+1] <= b[k]."""
    b, s, flows = made.model.b, made.model.s, made.reduced.flows
    _less_equal(made, "stay_starts_copied", list(s), lambda index, k: (s[index, k], b[index, k]))
    _less_equal(made, "stay_ends_copied", list(s), lambda index, k: (s[index, k], b[index, k + 1]))
    kept = [(index, k) for index, k in b if not flows[index].may_read[k]]
    _less_equal(made, "kept_copied", kept, lambda index, k: (b[index, k], b[index, k - 1]))


def required_fast(made: Formulation) -> None:
    """(F5) a[k] + b[k] = 1 where the gadget has to be fast."""
    model = made.model
    keys = [(index, k) for index in made.flows for k, must in enumerate(made.reduced.flows[index].must) if must]
    body = {
        key: linear([(variables[key], 1.0) for variables in (model.a, model.b) if key in variables]) for key in keys
    }
    model.required_fast = pyo.Constraint(keys, rule=lambda _, index, k: (1.0, body[index, k], 1.0))


def capacity_chain(made: Formulation) -> None:
    """(F6) u[j] = u[j-1] + bytes entering - bytes leaving between rows j-1 and j, 0 <= u[j] <= room[j]."""
    model, rows = made.model, made.reduced.rows
    changes = [_Terms() for _ in rows]
    for index in made.flows:
        flow = made.reduced.flows[index]
        size = flow.size_bytes / made.bytes_per_unit
        for (start, end), variables in _holdings(made, index):
            enter, leave = bisect_left(rows, start), bisect_left(rows, end)
            for variable in variables if enter < leave else ():
                changes[enter].add(variable, size)
                if leave < len(rows):
                    changes[leave].add(variable, -size)
    model.flow_into = [change.pairs() for change in changes]

    def rule(model: pyo.ConcreteModel, row: int) -> tuple[float, LinearExpression, float]:
        chain = [(model.u[row], -1.0)] + ([(model.u[row - 1], 1.0)] if row else [])
        return 0.0, linear(model.flow_into[row] + chain), 0.0

    model.capacity_chain = pyo.Constraint(range(len(rows)), rule=rule)


def step_time(made: Formulation, constant_us: float) -> None:
    """(F7) minimise base + slow operands + writes (a[0] - a[m-1]) + reads (b[k] - s[k-1])."""
    model, scale = made.model, made.us_per_unit
    terms, constant = _Terms(), constant_us / scale
    for index in made.flows:
        flow = made.reduced.flows[index]
        write, read, *slow = (_scaled(cost, scale) for cost in (flow.write_us, flow.read_us, *flow.slow_us))
        constant += sum(slow)
        terms.add(_get(model.a, index, 0), write)
        terms.add(_get(model.a, index, len(flow) - 1), -write)
        for k, cost in enumerate(slow):
            terms.add(_get(model.a, index, k), -cost)
            terms.add(_get(model.b, index, k), (read if flow.may_read[k] else 0.0) - cost)
            terms.add(_get(model.s, index, k), -read)
    model.step_time = pyo.Objective(expr=linear(terms.pairs(), constant), sense=pyo.minimize)


def _scaled(cost_us: float, scale: float) -> float:
    """Costs too small for the solver count as nothing, which only relaxes; the exact price is computed afterwards."""
    return cost_us / scale if cost_us >= _SMALLEST * scale else 0.0


def _holdings(made: Formulation, index: int) -> list[tuple[tuple[int, int], list[Variable]]]:
    """Kernel spans of the flow, each with the variables that say it is fast there."""
    model, flow = made.model, made.reduced.flows[index]
    found = []
    for k in range(len(flow)):
        found.append(((flow.starts[k], flow.stops[k]), [_get(model.a, index, k), _get(model.b, index, k)]))
        if k + 1 < len(flow):
            found.append((flow.gap(k), [_get(model.a, index, k + 1), kept_copied(made, index, k)]))
    return found


def kept_copied(made: Formulation, index: int, k: int) -> Variable:
    """The variable that says the tensor stays fast over gap k beside a slow copy; None where it cannot."""
    if made.reduced.flows[index].may_read[k + 1]:
        return _get(made.model.s, index, k)
    return _get(made.model.b, index, k + 1)


def _get(variables: Variable, index: int, k: int) -> Variable:
    return variables[index, k] if (index, k) in variables else None  # noqa: SIM401 - no dict, has no get


def _less_equal(
    made: Formulation, name: str, keys: list[Key], pair: Callable[[int, int], tuple[Variable, Variable]]
) -> None:
    def rule(_: pyo.ConcreteModel, index: int, k: int) -> tuple[None, LinearExpression, float]:
        small, large = pair(index, k)
        return None, linear([(small, 1.0), (large, -1.0)]), 0.0

    setattr(made.model, name, pyo.Constraint(keys, rule=rule))
