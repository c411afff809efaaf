"""The relaxation of a case: its rows and variables held to what the case says, changed back for the next one."""

from __future__ import annotations

from typing import Self

import pyomo.environ as pyo

from autotm.solve.fixed import Fixed, Place
from autotm.solve.formulation import Formulation, kept_copied, keys_of
from autotm.solve.highs import Session
from autotm.solve.linear import Variable, linear, lookup

_INTEGRAL = 1e-6


class Held:
    """A model whose places can be held fast or not; as it was when the context ends."""

    def __init__(self, made: Formulation, session: Session) -> None:
        self._made = made
        self._session = session
        self._places = {place: self._variables(place) for index in made.flows for place in _places(made, index)}
        self._rows: dict[Place, pyo.Block] = {}
        self._held: set[Place] = set()
        self._closed: list[Variable] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the rows out of the model; the session keeps them, and they say nothing."""
        self.release()
        for block in self._rows.values():
            self._made.model.del_component(block)

    def hold(self, fixed: Fixed) -> None:
        """Hold the model to a case: (F11) a place's variables sum up to 1 or 0, and what has no room is 0."""
        wanted = {place: fast for own in fixed.places.values() for place, fast in own.items()}
        for place in self._held - set(wanted):
            self._session.bound_row(self._row(place), 0.0, 1.0)
        for place, fast in wanted.items():
            self._session.bound_row(self._row(place), float(fast), float(fast))
        self._held = set(wanted)
        self._session.take_bounds(self._closed)
        self._closed = [variable for index in fixed.touched for variable in self._without_room(fixed, index)]
        self._session.close(self._closed)

    def release(self) -> None:
        """Hold nothing."""
        if self._session.is_lost:
            return
        for place in self._held:
            self._session.bound_row(self._row(place), 0.0, 1.0)
        self._session.take_bounds(self._closed)
        self._held, self._closed = set(), []

    def fractions(self) -> list[tuple[Place, float]]:
        """Places at which the relaxation's solution is neither fast nor not, and how far from either."""
        found = []
        for place, variables in self._places.items():
            share = sum(variable.value or 0.0 for variable in variables)
            if _INTEGRAL < share < 1 - _INTEGRAL:
                found.append((place, min(share, 1 - share)))
        return found

    def _variables(self, place: Place) -> list[Variable]:
        model, (index, k, is_gap) = self._made.model, place
        if is_gap:
            found = [lookup(model.a, index, k + 1), kept_copied(self._made, index, k)]
        else:
            found = [lookup(model.a, index, k), lookup(model.b, index, k)]
        return [variable for variable in found if variable is not None]

    def _row(self, place: Place) -> pyo.Constraint:
        if place not in self._rows:
            block = pyo.Block(concrete=True)
            self._made.model.add_component(f"held_{place.flow}_{place.gadget}_{int(place.is_gap)}", block)
            block.row = pyo.Constraint(expr=(0.0, linear([(v, 1.0) for v in self._places[place]]), 1.0))
            self._session.extend(block)
            self._rows[place] = block
        return self._rows[place].row

    def _without_room(self, fixed: Fixed, index: int) -> list[Variable]:
        model, flights = self._made.model, self._made.flights
        widest = self._made.reduced.choices.flows[index]
        left = fixed.within_room(index, widest)
        found = []
        for variables, had, has in zip(
            (model.a, model.b, model.s), keys_of(index, widest), keys_of(index, left), strict=True
        ):
            found += [variables[key] for key in set(had) - set(has) if key in variables]
        for moves, windows in ((flights.writes, left.out), (flights.reads, left.back)):
            for k in range(len(left) - 1):
                choice = moves.get((index, k), ())
                found += [variable for variable, window in choice if window not in windows[k]]
        return found


def _places(made: Formulation, index: int) -> list[Place]:
    flow = made.reduced.choices.flows[index]
    gadgets = [Place(index, k, False) for k in range(len(flow))]
    gaps = [Place(index, k, True) for k in range(len(flow) - 1)]
    return gadgets + [place for place in gaps if flow.gap(place.gadget)[0] < flow.gap(place.gadget)[1]]
