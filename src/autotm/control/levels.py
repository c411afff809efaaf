"""Recursion by levels: all calls are listed, then computed from the deepest level up, several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from autotm.control.program import (
    Array,
    Block,
    Branch,
    Loop,
    Operator,
    Program,
    Recursion,
    SelfCall,
    Statement,
    Statements,
    Value,
    copied,
    filled,
    rewritten,
    without_dead,
)
from autotm.zoo.functions import integer

AT_ONCE = 4
"""Calls of a level that are computed together: so many rows are multiplied with a matrix while it is read once. Two or
eight take longer for trees of 32 joined calls (measured)."""
_MOST_CALLS, _MOST_BYTES = 4096, 1 << 26
"""Calls, and bytes of their arguments and results, for which memory is set aside; a stack does for what has more."""


def by_levels(program: Program, least_bytes: int) -> Program:
    """Compute the calls of a recursion level by level, where none needs the result of another to know its arguments.

        f(n) = base(n) if ends(n) else join(f(left(n)), f(right(n)))   -->

        list the calls, each with its arguments and the number of its first call; results[n] = base(n)
        for blocks of at most 4 calls of one level that do not end, the deepest first:
            results[block] = join(results[first of block], results[first of block + 1])

    Only where calls are joined by a product with a matrix that does not change, of so many bytes at least: it is then
    read once for a block. Calls that are more than there is room for, or deeper than the limit, are left to the
    recursion as it was.
    """
    constants = dict(program.constants)

    def level(statement: Statement) -> list[Statement]:
        tree = _tree(statement, least_bytes) if isinstance(statement, Recursion) else None
        if tree is None:
            return [statement]
        own: dict[Value, Array] = {}
        try:
            statements = _Levels(tree, own).statements()
        except _NotByRowsError:
            return [statement]
        constants.update(own)
        return statements

    return replace(program, body=without_dead(rewritten(program.body, level)), constants=constants)


@dataclass(frozen=True)
class _Tree:
    """A recursion `f(parameters) = base if ends else join(f(...), f(...))`.

    Attributes:
        before: operators that decide whether a call ends.
        branch: of the two sides.
        ends_if: value of its condition for which a call ends.
        calls: of the side that does not end.
        operators: of that side.
    """

    recursion: Recursion
    before: tuple[Operator, ...]
    branch: Branch
    ends_if: bool
    calls: tuple[SelfCall, ...]
    operators: tuple[Operator, ...]

    @property
    def room(self) -> int:
        """Calls for which memory is set aside."""
        recursion = self.recursion
        size_bytes = sum(value.size_bytes for value in (*recursion.parameters, *recursion.results))
        return min(_MOST_CALLS, _MOST_BYTES // max(size_bytes, 1))

    @property
    def base(self) -> Block:
        """The side that ends."""
        return self.branch.then if self.ends_if else self.branch.otherwise

    @property
    def leading(self) -> Block:
        """The arguments of all calls."""
        arguments = tuple(value for call in self.calls for value in call.arguments)
        return without_dead(Block(self.operators, arguments))

    @property
    def joined(self) -> Block:
        """The results of a call from its arguments and the results of its calls."""
        inner = self.branch.otherwise if self.ends_if else self.branch.then
        return without_dead(Block((*self.before, *self.operators), inner.results))


def _tree(recursion: Recursion, least_bytes: int) -> _Tree | None:
    """Return the parts of a recursion that is a tree of calls; None if it is none that is better taken by levels."""
    *before, branch = recursion.body.statements or (None,)
    if not isinstance(branch, Branch) or branch.results != recursion.body.results:
        return None
    ends_if = not any(isinstance(item, SelfCall) for item in branch.then.statements)
    base, inner = (branch.then, branch.otherwise) if ends_if else (branch.otherwise, branch.then)
    calls = tuple(item for item in inner.statements if isinstance(item, SelfCall))
    operators = tuple(item for item in inner.statements if isinstance(item, Operator))
    simple = [*before, *base.statements]
    has_others = len(calls) + len(operators) < len(inner.statements)
    if has_others or len(calls) < 2 or not all(isinstance(item, Operator) for item in simple):  # noqa: PLR2004
        return None
    late = _depending(operators, [value for call in calls for value in call.results])
    if any(argument in late for call in calls for argument in call.arguments):
        return None
    varying = late | _depending((*before, *operators), recursion.parameters)
    products = [item for item in operators if item.name == "relax.matmul" and item.operands[0] in late]
    matrices = [item.operands[1] for item in products if item.operands[1] not in varying]
    tree = _Tree(recursion, tuple(before), branch, ends_if, calls, operators)
    return tree if tree.room and any(value.size_bytes >= least_bytes for value in matrices) else None


def _depending(operators: Sequence[Operator], values: Sequence[Value]) -> set[Value]:
    """Return some values, and those that operators compute from them."""
    found = set(values)
    for item in operators:
        if not found.isdisjoint(item.operands):
            found.update(item.results)
    return found


class _Levels:
    """The statements that a tree of calls becomes.

    Calls have numbers in the order in which they are listed: the first has 0, and those of one call follow each other.
    Tables have a row for each:

        first, levels: number of its first call, and its level.
        arguments, results: one table for each; the arguments of call 0 are in none.
        inner, starts: of the n-th call that does not end, its number, and which of these is the first of its level.
    """

    def __init__(self, tree: _Tree, constants: dict[Value, Array]) -> None:
        self.tree = tree
        self.zero, self.one, self.places = _count("zero"), _count("one"), Value("places", (AT_ONCE,), "int64")
        constants[self.zero], constants[self.one] = np.array(0, "int64"), np.array(1, "int64")
        constants[self.places] = np.arange(AT_ONCE)
        self.next, self.count, self.inner_count, self.level, self.start = map(
            _count, ("next", "count", "inner_count", "level", "start")
        )
        self.first, self.levels, self.inner, self.starts = (
            Value(name, (tree.room,), "int64") for name in ("first", "levels", "inner", "starts")
        )
        self.arguments, self.results = (
            [Value(value.name, (tree.room, *value.shape), value.dtype) for value in values]
            for values in (tree.recursion.parameters, tree.recursion.results)
        )

    def statements(self) -> list[Statement]:
        """Return what computes the results of the recursion."""
        code, done, recursion = Statements(), Statements(), self.tree.recursion
        code.found.append(self._listing(code))
        is_left = code.emit(relax.op.less, self.next, self.count)
        joining = self._joining(code.emit(relax.op.where, is_left, self.zero, self.inner_count))
        code.found.append(joining)
        rows = tuple(done.row(table, self.zero) for table in joining.states[1:])
        renamed: dict[Value, Value] = {}
        whole = copied((recursion,), renamed)
        left = Block(whole, tuple(renamed[value] for value in recursion.results))
        return [*code.found, Branch(is_left, left, done.block(rows), recursion.results)]

    def _listing(self, before: Statements) -> Loop:
        """Return the loop that lists all calls, and computes the results of those that end."""
        tree, head, body = self.tree, Statements(), Statements()
        each = len(tree.calls)
        is_root = head.emit(relax.op.equal, self.next, self.zero)
        level = head.emit(relax.op.where, is_root, self.zero, head.row(self.levels, self.next))
        is_listed = head.emit(relax.op.less, self.next, self.count)
        # One row is never used, so that `next` is a row even after the last call.
        has_room = head.emit(lambda n: relax.op.less(n, integer(tree.room - each)), self.count)
        is_allowed = head.emit(lambda n: relax.op.less(n, integer(tree.recursion.depth)), level)
        goes_on = head.emit(relax.op.logical_and, is_listed, head.emit(relax.op.logical_and, has_room, is_allowed))

        parameters = tree.recursion.parameters
        for value, given, table in zip(parameters, tree.recursion.arguments, self.arguments, strict=True):
            body.now[value] = body.emit(relax.op.where, is_root, given, body.row(table, self.next))
        (condition,) = body.copy(Block(tree.before, (tree.branch.condition,)))
        of_base, of_inner = Statements(dict(body.now)), Statements(dict(body.now))
        base, arguments = of_base.copy(tree.base), of_inner.copy(tree.leading)
        base_side, inner_side = (*base, *map(of_base.unset, arguments)), (*map(of_inner.unset, base), *arguments)
        sides = [of_base.block(base_side), of_inner.block(inner_side)]
        found = tuple(value.fresh() for value in sides[0].results)
        body.found.append(Branch(condition, *(sides if tree.ends_if else sides[::-1]), found))
        results, arguments = found[: len(base)], found[len(base) :]

        is_inner = body.emit(relax.op.logical_not, condition) if tree.ends_if else condition
        inner = body.emit(lambda flag: relax.op.astype(flag, "int64"), is_inner)
        levels, tables = self.levels, list(self.arguments)
        below = body.plus(level, 1)
        for call in range(each):
            at = body.plus(self.count, call)
            levels = body.put(levels, at, below)
            for index, table in enumerate(tables):
                tables[index] = body.put(table, at, arguments[call * len(tables) + index])
        is_same = body.emit(relax.op.equal, level, self.level)
        start = body.emit(relax.op.where, is_same, self.start, self.inner_count)
        following = {
            self.next: body.plus(self.next, 1),
            self.count: body.emit(
                relax.op.add, self.count, body.emit(lambda n: relax.op.multiply(n, integer(each)), inner)
            ),
            self.inner_count: body.emit(relax.op.add, self.inner_count, inner),
            self.level: body.emit(relax.op.where, is_inner, level, self.level),
            self.start: body.emit(relax.op.where, is_inner, start, self.start),
            self.first: body.put(self.first, self.next, self.count),
            self.levels: levels,
            # Where the call ends, the next one that does not takes its place.
            self.inner: body.put(self.inner, self.inner_count, self.next),
            self.starts: body.put(self.starts, self.inner_count, start),
            **dict(zip(self.arguments, tables, strict=True)),
        }
        for table, row in zip(self.results, results, strict=True):
            following[table] = body.put(table, self.next, row)
        counts = {self.next: self.zero, self.count: self.one}
        initial = tuple(before.unset(state) if state.shape else counts.get(state, self.zero) for state in following)
        block = body.block([*following.values()])
        return Loop(f"{tree.recursion.name}: list", tuple(following), initial, tuple(head.found), goes_on, block, None)

    def _joining(self, inner_count: Value) -> Loop:
        """Return the loop over blocks of calls that do not end; its states are a number, and the results."""
        tree, head, body, single, block = self.tree, *(Statements() for _ in range(4))
        end, results = _count("end"), [table.fresh() for table in self.results]
        goes_on = head.emit(relax.op.less, self.zero, end)
        last = body.plus(end, -1)
        start = body.emit(relax.op.maximum, body.row(self.starts, last), body.plus(end, -AT_ONCE))
        # The last call of a short block is there several times.
        places = body.emit(relax.op.minimum, body.emit(relax.op.add, self.places, start), last)
        calls = body.row(self.inner, places)

        self._given(single, single.row(self.inner, last), results)
        each = single.copy(tree.joined)
        repeated = tuple(_broadcast(single, value) for value in each)
        self._given(block, calls, results)
        rows = _by_rows(block, tree.joined)
        is_single = body.emit(relax.op.equal, start, last)
        found = tuple(value.fresh() for value in rows)
        sides = single.block(repeated), block.block(rows)
        body.found.append(Branch(is_single, *sides, found))
        written = [body.put(table, calls, value) for table, value in zip(results, found, strict=True)]
        return Loop(
            f"{tree.recursion.name}: join",
            (end, *results),
            (inner_count, *self.results),
            tuple(head.found),
            goes_on,
            body.block([start, *written]),
            None,
        )

    def _given(self, code: Statements, calls: Value, results: Sequence[Value]) -> None:
        """Append what takes the arguments of a call, or of several, and the results of theirs."""
        recursion = self.tree.recursion
        is_root = code.emit(relax.op.equal, calls, self.zero)
        for value, given, table in zip(recursion.parameters, recursion.arguments, self.arguments, strict=True):
            shape = (*calls.shape, *(1 for _ in value.shape))
            flag = code.emit(lambda f, shape=shape: relax.op.reshape(f, shape), is_root) if value.shape else is_root
            code.now[value] = code.emit(relax.op.where, flag, given, code.row(table, calls))
        first = code.row(self.first, calls)
        for index, call in enumerate(self.tree.calls):
            at = code.plus(first, index)
            code.now.update(zip(call.results, (code.row(table, at) for table in results), strict=True))


def _count(name: str) -> Value:
    return Value(name, (), "int64")


def _broadcast(code: Statements, value: Value) -> Value:
    """Append what repeats a value for each call of a block."""
    return code.emit(lambda x: relax.op.broadcast_to(x, (AT_ONCE, *value.shape)), value)


# Operators on the values of several calls at once: these have one axis more, before the others.


class _NotByRowsError(Exception):
    """An operator has no rule here."""


def _by_rows(code: Statements, block: Block) -> tuple[Value, ...]:
    """Append the operators of a block for several calls; `code.now` has the values of all that differ."""
    rows = code.now
    for item in block.statements:
        if not isinstance(item, Operator):
            raise _NotByRowsError
        if rows.keys().isdisjoint(item.operands):
            code.found.append(item)
            continue
        rule = _elementwise if item.name in _ELEMENTWISE else _RULES.get(item.name)
        if rule is None:
            raise _NotByRowsError
        rows[item.results[0]] = rule(code, item)
    return tuple(rows[value] if value in rows else _broadcast(code, value) for value in block.results)


def _elementwise(code: Statements, item: Operator) -> Value:
    rank = len(item.results[0].shape)

    def aligned(value: Value) -> Value:
        if value not in code.now or len(value.shape) == rank:
            return code.now.get(value, value)
        shape = (AT_ONCE, *(1 for _ in range(rank - len(value.shape))), *value.shape)
        return code.emit(lambda x: relax.op.reshape(x, shape), code.now[value])

    operands = list(map(aligned, item.operands))
    return code.emit(lambda *own: filled(item.call, dict(zip(item.holes, own, strict=True))), *operands)


def _matmul(code: Statements, item: Operator) -> Value:
    x, weights = item.operands
    if x not in code.now or weights in code.now or len(weights.shape) != 2:  # noqa: PLR2004  (a matrix)
        raise _NotByRowsError
    # Rows of all calls are rows of one product.
    flat = AT_ONCE * x.elements // x.shape[-1], x.shape[-1]
    product = code.emit(relax.op.matmul, code.emit(lambda v: relax.op.reshape(v, flat), code.now[x]), weights)
    return code.emit(lambda v: relax.op.reshape(v, (AT_ONCE, *item.results[0].shape)), product)


def _concat(code: Statements, item: Operator) -> Value:
    axis = int(item.call.attrs.axis) % len(item.results[0].shape) + 1
    operands = [code.now[value] if value in code.now else _broadcast(code, value) for value in item.operands]
    return code.emit(lambda *parts: relax.op.concat(parts, axis), *operands)


def _same_numbers(code: Statements, item: Operator) -> Value:
    shape = (AT_ONCE, *item.results[0].shape)
    return code.emit(lambda x: relax.op.reshape(x, shape), code.now[item.operands[0]])


def _permute_dims(code: Statements, item: Operator) -> Value:
    rank, axes = len(item.results[0].shape), item.call.attrs.axes
    order = [int(axis) % rank for axis in axes] if axes is not None else [*range(rank)][::-1]
    return code.emit(lambda x: relax.op.permute_dims(x, [0, *(axis + 1 for axis in order)]), code.now[item.operands[0]])


def _take(code: Statements, item: Operator) -> Value:
    table, index = item.operands
    axis = item.call.attrs.axis
    if table in code.now or (axis is None and len(table.shape) > 1) or (axis is not None and int(axis) != 0):
        raise _NotByRowsError
    return code.row(table, code.now[index])


def _strided_slice(code: Statements, item: Operator) -> Value:
    bounds = [[int(item) for item in argument.fields] for argument in item.call.args[1:4]]
    rank = len(item.operands[0].shape)
    axes, begin, end = [axis % rank + 1 for axis in bounds[0]], *bounds[1:]
    if len(item.call.args) > 4:  # noqa: PLR2004  (with strides)
        raise _NotByRowsError
    return code.emit(lambda x: relax.op.strided_slice(x, axes, begin, end), code.now[item.operands[0]])


_ELEMENTWISE = {
    *(f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "where")),
    *(f"relax.{name}" for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")),
    *(f"relax.{name}" for name in ("logical_and", "logical_or", "logical_not", "astype", "abs", "negative", "clip")),
    *(f"relax.{name}" for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "square", "erf")),
    *(f"relax.nn.{name}" for name in ("relu", "leakyrelu", "gelu", "silu", "softplus")),
}
_RULES: Mapping[str, Callable[[Statements, Operator], Value]] = {
    "relax.matmul": _matmul,
    "relax.concat": _concat,
    "relax.reshape": _same_numbers,
    "relax.expand_dims": _same_numbers,
    "relax.squeeze": _same_numbers,
    "relax.permute_dims": _permute_dims,
    "relax.take": _take,
    "relax.strided_slice": _strided_slice,
}
