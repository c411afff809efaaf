"""Counted loops split into several, so that a matrix is multiplied with the rows of all steps at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from tvm import ir, relax

from autotm.control.packing import LEAST_STEPS
from autotm.control.program import (
    Array,
    Block,
    Check,
    Loop,
    Operator,
    Program,
    SelfCall,
    Statement,
    Statements,
    Value,
    all_reads,
    any_statement,
    defined,
    multiplies_rows,
    read,
    rewritten,
    without_dead,
)

_MOST_BYTES = 1 << 28
"""Memory for the rows of all steps that the parts of one loop hand on."""
_CACHED_BYTES = 6 << 20
"""Matrices of a loop that a core finds in its caches in every step. Several rows are multiplied with those of 4 MiB in
the same time or less if the loop is not split, with those of 8 MiB in 0.6 to 0.8 of the time if it is (measured with 8,
16 and 64 rows on an AMD EPYC of family 25); single rows are faster with either, as they use each number once."""


def split_loops(program: Program, least_bytes: int) -> Program:
    """Multiply the rows of all steps with a matrix at once, before the loop or between two parts of it.

        repeat n: x = f(x, row(xs, i) w)                   -->   ps = xs w
                                                                 repeat n: x = f(x, row(ps, i))

        repeat n: new = f(x, i); x, y = new, g(y, new w)   -->   repeat n: x = f(x, i); xs[i] = x
                                                                 ps = xs w
                                                                 repeat n: y = g(y, row(ps, i))

    The matrix is then read once, and not in each step. A loop stays as it is if the product needs its own result of
    an earlier step, if a step may end the program, and where the copies of rows would cost more than is saved.

    Args:
        program: what does not change in a loop is computed before it.
        least_bytes: of a matrix that a loop is split for.
    """
    constants = dict(program.constants)

    def split(statement: Statement) -> list[Statement]:
        is_counted = isinstance(statement, Loop) and statement.condition is None
        if not is_counted or statement.steps < LEAST_STEPS:
            return [statement]
        if any_statement(statement.body.statements, lambda item: isinstance(item, Check | SelfCall)):
            return [statement]
        split = _Split(_with_counter(statement, constants), constants, least_bytes)
        return split.statements() if split.saves_time() else [statement]

    body = without_dead(rewritten(program.body, split))
    needed = {*all_reads(body)}
    return replace(program, body=body, constants={value: constants[value] for value in constants if value in needed})


def _with_counter(loop: Loop, constants: dict[Value, Array]) -> Loop:
    """Return a loop with a further state, the number of the step."""
    body, counter, start = Statements(), Value("counter", (), "int64"), Value("start", (), "int64")
    constants[start] = np.array(0, "int64")
    following = body.plus(counter, 1)
    block = Block((*loop.body.statements, *body.found), (*loop.body.results, following))
    return replace(loop, states=(*loop.states, counter), initial=(*loop.initial, start), body=block)


class _Split:
    """The parts of a loop, each of which becomes a loop.

    What a step is made of has numbers: first the statements of the body, in order, then the states.

    Attributes:
        values: that each number defines.
        makers: the number that each value of the loop comes from.
        needs: numbers that each number reads from.
        products: numbers that are computed for all steps at once.
        scalars: numbers of counters, and of what is computed from these alone; every part computes its own.
        parts: of each number; a product is computed after its part.
        tables: for a value that is a row of some tensor in each step, in order, that tensor.
        counter: a state that is the number of the step.
    """

    def __init__(self, loop: Loop, constants: dict[Value, Array], least_bytes: int) -> None:
        self.loop, self.constants = loop, constants
        body = loop.body.statements
        self.values = [*map(defined, body), *((state,) for state in loop.states)]
        self.makers = {value: number for number, values in enumerate(self.values) for value in values}
        self.reads = [*map(read, body), *({value} for value in loop.body.results)]
        self.needs = [{self.makers[value] for value in values if value in self.makers} for values in self.reads]
        self.products = {
            number
            for number, item in enumerate(body)
            if multiplies_rows(item, self.makers)
            and item.operands[0].elements > 1
            and item.operands[1].size_bytes >= least_bytes
            and number not in self._needed([number])
        }
        others = {number for number, item in enumerate(body) if not isinstance(item, Operator)}
        others |= {number for number, values in enumerate(self.values) if any(value.elements > 1 for value in values)}
        readers: list[set[int]] = [set() for _ in self.needs]
        for number, needed in enumerate(self.needs):
            for other in needed:
                readers[other].add(number)
        self.scalars = {*range(len(self.needs))} - _closure(others, readers)
        self.parts = self._parts()
        self.counter = next(state for state in loop.states if self._counts(state))
        self.tables = {item.results[0]: item.operands[0] for item in body if self._takes_each_row(item)}

    def _needed(self, numbers: Iterable[int]) -> set[int]:
        """Return all numbers that some need, in the same step or from an earlier one."""
        return _closure((needed for number in numbers for needed in self.needs[number]), self.needs)

    def _parts(self) -> list[int]:
        """Return the first part that each number can go to: what is made of a product goes to a later one."""
        parts = [0] * len(self.needs)
        while True:
            # No product needs itself, so this ends.
            new = [
                max((parts[other] + (other in self.products) for other in needed), default=0) for needed in self.needs
            ]
            if new == parts:
                return parts
            parts = new

    def _counts(self, state: Value) -> bool:
        """Whether a state is the number of the step, from 0."""
        if state.shape or state.dtype not in ("int32", "int64"):
            return False
        index, body = self.loop.states.index(state), self.loop.body
        start, maker = self.constants.get(self.loop.initial[index]), self.makers.get(body.results[index])
        if start is None or start.any() or maker is None or maker >= len(body.statements):
            return False
        step = body.statements[maker]
        if not isinstance(step, Operator) or step.name != "relax.add" or step.operands != (state,):
            return False
        return any(isinstance(term, ir.Constant) and term.value.numpy().item() == 1 for term in step.call.args)

    def _takes_each_row(self, item: Statement) -> bool:
        """Whether a statement takes row i of a tensor in step i, from the first row to the last."""
        if not isinstance(item, Operator) or item.name != "relax.take" or item.call.attrs.axis != 0:
            return False
        table, place = item.operands
        has_rows = table not in self.makers and table.shape[0] == self.loop.steps
        return has_rows and place in self.loop.states and self._counts(place)

    @cached_property
    def handed(self) -> list[Value]:
        """Values that a product or a later part reads, apart from those in `tables` and results of products."""
        return [value for value in self.makers if self._is_handed(value)]

    def _is_handed(self, value: Value) -> bool:
        maker = self.makers[value]
        if value in self.tables or maker in self.products or maker in self.scalars:
            return False
        readers = [number for number, values in enumerate(self.reads) if value in values]
        return any(self.parts[reader] > self.parts[maker] or reader in self.products for reader in readers)

    def saves_time(self) -> bool:
        """Whether matrices are read so slowly that copies of rows cost less."""
        if not self.products:
            return False
        rows = [*self.handed, *(self._product(number).results[0] for number in self.products)]
        size_bytes = sum(value.size_bytes for value in rows)
        if 2 * size_bytes >= sum(self._product(number).operands[1].size_bytes for number in self.products):
            return False
        has_single_rows = all(self._product(number).operands[0].shape[0] == 1 for number in self.products)
        matrices = {item.operands[1] for item in self.loop.body.statements if multiplies_rows(item, self.makers)}
        is_cached = sum(value.size_bytes for value in matrices) <= _CACHED_BYTES
        return (has_single_rows or not is_cached) and size_bytes * self.loop.steps <= _MOST_BYTES

    def _product(self, number: int) -> Operator:
        item = self.loop.body.statements[number]
        assert isinstance(item, Operator)
        return item

    def statements(self) -> list[Statement]:
        """Return the loops, with the products of all steps between them."""
        code = Statements()
        for part in range(max(self.parts) + 1):
            handed = [value for value in self.handed if self.parts[self.makers[value]] == part]
            tables = {value: Value(value.name, (self.loop.steps, *value.shape), value.dtype) for value in handed}
            code.found.append(self._loop(part, tables, code))
            self.tables.update(tables)
            for number in sorted(self.products):
                if self.parts[number] == part:
                    self._multiply(self._product(number), code)
        return code.found

    def _loop(self, part: int, tables: Mapping[Value, Value], before: Statements) -> Loop:
        """Return the loop of one part, which writes the values of each step to tables."""
        loop, body = self.loop, Statements()
        own = {number for number, other in enumerate(self.parts) if other == part} - self.products - self.scalars
        own_scalars = self.scalars & self._needed([*own, self.makers[self.counter]]) if part else self.scalars
        states = [state for state in loop.states if self.makers[state] in own | own_scalars]
        if part:
            body.now.update((state, state.fresh()) for state in states if self.makers[state] in own_scalars)
        index = body.now.get(self.counter, self.counter)
        taken = set().union(*(self.reads[number] for number in own))
        for value, maker in self.makers.items():
            if value in taken and value in self.tables and maker not in own:
                body.now[value] = body.row(self.tables[value], index)
        kept = [item for number, item in enumerate(loop.body.statements) if number in own | own_scalars]
        initial, following = (
            dict(zip(loop.states, values, strict=True)) for values in (loop.initial, loop.body.results)
        )
        results = body.copy(Block(tuple(kept), tuple(following[state] for state in states)))
        written = [body.put(table, index, body.now.get(value, value)) for value, table in tables.items()]
        return Loop(
            loop.name,
            (*(body.now.get(state, state) for state in states), *tables.values()),
            (*(initial[state] for state in states), *map(before.unset, tables.values())),
            (),
            None,
            body.block([*results, *written]),
            loop.steps,
        )

    def _multiply(self, product: Operator, code: Statements) -> None:
        """Append the product of the rows of all steps with a matrix."""
        x, weights = product.operands
        (rows, columns), steps = product.results[0].shape, self.loop.steps
        flat = code.emit(lambda x: relax.op.reshape(x, (steps * rows, weights.shape[0])), self.tables[x])
        result = code.emit(relax.op.matmul, flat, weights)
        self.tables[product.results[0]] = code.emit(lambda y: relax.op.reshape(y, (steps, rows, columns)), result)


def _closure(numbers: Iterable[int], following: Sequence[Iterable[int]]) -> set[int]:
    """Return numbers, with all that follow them, directly or not."""
    found: set[int] = set()
    waiting = [*numbers]
    while waiting:
        if (number := waiting.pop()) not in found:
            found.add(number)
            waiting += following[number]
    return found
