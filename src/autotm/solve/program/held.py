"""The relaxation of a case: its rows and variables held to what the case says, changed back for the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Self

import pyomo.core as pyo

from autotm.solve.bounds import AsyncMove, Decision, Fixed, Place, Spaces
from autotm.solve.program.formulation import Formulation, kept_copied
from autotm.solve.program.highs import Session
from autotm.solve.program.linear import Variable, linear, lookup
from autotm.solve.program.variables import keys_of


class Held:
    """A model whose decisions can be held; as it was when the context ends."""

    def __init__(self, made: Formulation, session: Session) -> None:
        self._made = made
        self._session = session
        self._places = {place: self._at_place(place) for index in made.flows for place in _places(made, index)}
        self._async_moves = dict(_async_moves(made))
        self._tables = {item.number: item for item in made.tables}
        self._rows: dict[Decision, pyo.Block] = {}
        self._held: set[Decision] = set()
        self._closed: list[Variable] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the rows out of the model; the session keeps them, and they say nothing."""
        if not self._session.is_lost:
            self._let_go(self._held)
            self._session.take_bounds(self._closed)
        for block in self._rows.values():
            self._made.model.del_component(block)

    def hold(self, fixed: Fixed) -> None:
        """Hold the model to decisions: (F11) rows for what is fast, kept or used, and 0 for what is left out.

        What has no variables is left as it is, which only relaxes the case.
        """
        decided = ((place, fast) for own in fixed.places.values() for place, fast in own.items())
        places = {place: fast for place, fast in decided if place in self._places}
        used = {async_move for own in fixed.async_moves.values() for async_move, is_used in own.items() if is_used}
        self._let_go(self._held - set(places) - used)
        for place, fast in places.items():
            self._session.bound_row(self._row(place), float(fast), float(fast))
        for async_move in used:
            self._session.bound_row(self._row(async_move), -1.0, 0.0)
        self._held = {*places, *used}
        self._session.take_bounds(self._closed)
        closed = [variable for index in fixed.touched for variable in self._without_room(fixed, index)]
        self._closed = closed + [variable for number in fixed.spaces for variable in self._entries(fixed, number)]
        self._session.close(self._closed)

    def fractions(self) -> Iterator[tuple[Decision, float]]:
        """Decisions that the relaxation's solution leaves open, and how far it is from either side."""
        for place, variables in self._places.items():
            yield place, _share(variables)
        for async_move, (variable, _) in self._async_moves.items():
            yield async_move, _share([variable])
        for number, item in self._tables.items():
            if item.has_menu:
                sizes = item.table.fast_bytes
                for size in sorted(set(sizes.tolist()))[:-1]:
                    small = (sizes <= size).nonzero()[0].tolist()
                    yield Spaces(number, size), _share([self._made.model.c[number, entry] for entry in small])

    def _let_go(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self._session.bound_row(self._row(decision), -1.0, 1.0)

    def _at_place(self, place: Place) -> list[Variable]:
        model, (index, k, is_gap) = self._made.model, place
        if is_gap:
            found = [lookup(model.a, index, k + 1), kept_copied(self._made, index, k)]
        else:
            found = [lookup(model.a, index, k), lookup(model.b, index, k)]
        return [variable for variable in found if variable is not None]

    def _row(self, decision: Decision) -> pyo.Constraint:
        """Fast there; or copied, but not in this window."""
        if decision not in self._rows:
            if isinstance(decision, Place):
                terms = [(variable, 1.0) for variable in self._places[decision]]
            else:
                assert isinstance(decision, AsyncMove)
                variable, (more, less) = self._async_moves[decision]
                terms = [(variable, -1.0)] + [(one, 1.0) for one in (more,) if one is not None]
                terms += [(one, -1.0) for one in (less,) if one is not None]
            block = pyo.Block(concrete=True)
            self._made.model.add_component(f"held_{len(self._rows)}", block)
            block.row = pyo.Constraint(expr=(-1.0, linear(terms), 1.0))
            self._session.extend(block)
            self._rows[decision] = block
        return self._rows[decision].row

    def _without_room(self, fixed: Fixed, index: int) -> list[Variable]:
        model, async_moves = self._made.model, self._made.async_moves
        if index not in self._of_model:
            return []
        widest = self._made.reduced.choices.flows[index]
        left = fixed.within_room(index, widest)
        found = []
        pairs = zip((model.a, model.b, model.s), keys_of(index, widest), keys_of(index, left), strict=True)
        for variables, had, has in pairs:
            found += [variables[key] for key in sorted(set(had) - set(has))]
        for moves, windows in ((async_moves.writes, left.out), (async_moves.reads, left.back)):
            for k in range(len(left) - 1):
                choice = moves.get((index, k), ())
                found += [variable for variable, window in choice if window not in windows[k]]
        return found

    def _entries(self, fixed: Fixed, number: int) -> list[Variable]:
        """Entries of a table whose fast bytes are left out."""
        item = self._tables.get(number)
        if item is None or not item.has_menu:
            return []
        more, most = fixed.bytes_of(number, item.table.kernel)
        sizes = enumerate(item.table.fast_bytes.tolist())
        return [self._made.model.c[number, entry] for entry, size in sizes if not more < size <= most]

    @cached_property
    def _of_model(self) -> set[int]:
        return set(self._made.flows)


def _share(variables: Iterable[Variable]) -> float:
    """How far a sum of variables is from 0 and from 1."""
    share = sum(float(variable.value or 0.0) for variable in variables)
    return min(share, 1 - share)


def _places(made: Formulation, index: int) -> list[Place]:
    flow = made.reduced.choices.flows[index]
    gadgets = [Place(index, k, False) for k in range(len(flow))]
    gaps = [Place(index, k, True) for k in range(len(flow) - 1)]
    return gadgets + [place for place in gaps if flow.gap(place.gadget)[0] < flow.gap(place.gadget)[1]]


def _async_moves(made: Formulation) -> Iterator[tuple[AsyncMove, tuple[Variable, tuple[Variable, Variable]]]]:
    """Windows with their variable, and the two whose difference says that there is a copy."""
    model = made.model
    for (index, k), choice in made.async_moves.writes.items():
        copied = lookup(model.a, index, k), lookup(model.a, index, k + 1)
        yield from ((AsyncMove(index, k, True, window), (variable, copied)) for variable, window in choice)
    for (index, k), choice in made.async_moves.reads.items():
        copied = lookup(model.b, index, k + 1), lookup(model.s, index, k)
        yield from ((AsyncMove(index, k, False, window), (variable, copied)) for variable, window in choice)
