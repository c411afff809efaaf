"""A program as data: operators of Relax under loops, branches and recursion, and how such programs are copied.

Values are tensors of static shape. Each is defined once in the text of a program: by the statement that has it as a
result, state or parameter. Every operator is pure, so statements may be moved wherever their operands are defined.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from tvm import ir, relax, tirx

from autotm.zoo.functions import integer

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor; two values are the same only if they are one object.

    Attributes:
        name: for messages; several values may share it.
        shape: static.
        dtype: by NumPy's name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def fresh(self) -> Value:
        """Return another value of the same name, shape and type."""
        return Value(self.name, self.shape, self.dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor, dense."""
        return self.elements * np.dtype(self.dtype).itemsize

    @property
    def elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def kind(self) -> str:
        """Shape and type as a person reads them."""
        return f"{self.shape} {self.dtype}"


@dataclass(frozen=True)
class Operator:
    """`results = call(operands)`: a call of one operator of Relax.

    Attributes:
        call: the call; its operands are the variables `holes`, so that a copy of the statement can share it.
        holes: variables of `call`, one for each operand.
        operands: what it reads.
        results: one, or one for each field of the tuple that the call returns.
    """

    call: relax.Call
    holes: tuple[relax.Var, ...]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]

    @property
    def name(self) -> str:
        """Name of the operator, such as `relax.add`."""
        return str(self.call.op.name)


@dataclass(frozen=True)
class Block:
    """Statements one after the other, and the values that stand for the block afterwards."""

    statements: tuple[Statement, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True)
class Branch:
    """`results = then if condition else otherwise`; only the chosen side is computed."""

    condition: Value
    then: Block
    otherwise: Block
    results: tuple[Value, ...]


@dataclass(frozen=True)
class Loop:
    """A counted loop, or a while loop.

    Counted, `condition` is None and `head` empty:

        states = initial
        repeat `steps` times: states = body

    While:

        states = initial
        forever: head; if not condition: leave; states = body

    Afterwards the states, and what the last run of `head` computed, can be read.

    Attributes:
        name: of the function that it was in Relax.
        states, initial: one for one.
        head: statements before the condition; the body reads their results too.
        condition: a boolean without axes.
        body: its results are the next states.
        steps: how often a counted loop runs; of a while loop, after how many steps an error ends it, if after any.
    """

    name: str
    states: tuple[Value, ...]
    initial: tuple[Value, ...]
    head: tuple[Statement, ...]
    condition: Value | None
    body: Block
    steps: int | None


@dataclass(frozen=True)
class Recursion:
    """`results = f(arguments)`, where `f(parameters)` is `body`, in which `SelfCall` calls f again.

    Attributes:
        name: of f.
        parameters, arguments: one for one. What all calls pass on unchanged is no parameter; `body` reads it directly.
        body: statements and results of f.
        results: one for each of the body's.
        depth: how many calls of f may be active at once.
    """

    name: str
    parameters: tuple[Value, ...]
    arguments: tuple[Value, ...]
    body: Block
    results: tuple[Value, ...]
    depth: int


@dataclass(frozen=True)
class SelfCall:
    """`results = f(arguments)` within the body of f, the innermost `Recursion` around."""

    arguments: tuple[Value, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True)
class Check:
    """End the program with an error if `flag`, an int32 without axes, is not 0."""

    flag: Value
    message: str


Statement = Operator | Branch | Loop | Recursion | SelfCall | Check


@dataclass(frozen=True)
class Program:
    """A function with control flow.

    Attributes:
        parameters: what it is called with.
        body: its statements and results.
        constants: values that are known, with one axis or more.
        functions: of loops over tensors, which operators may call.
        is_tuple: whether it returns a tuple, even of one tensor.
    """

    parameters: tuple[Value, ...]
    body: Block
    constants: Mapping[Value, Array] = field(default_factory=dict)
    functions: Mapping[ir.GlobalVar, tirx.PrimFunc] = field(default_factory=dict)
    is_tuple: bool = True


# Operators made.


def operator(function: Callable[..., relax.Expr], *operands: Value, name: str = "value") -> Operator:
    """Return `result = function(operands)`, where the function takes variables; the result is a new value."""
    holes = tuple(relax.Var(value.name, relax.TensorType(value.shape, value.dtype)) for value in operands)
    call = relax.BlockBuilder().normalize(function(*holes))
    dtype = call.ty.dtype
    result = Value(name, tuple(map(int, call.ty.shape)), str(getattr(dtype, "dtype", dtype)))
    return Operator(call, holes, operands, (result,))


def filled(expression: relax.Expr, variables: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """Return a call of an operator with other variables."""
    match expression:
        case relax.Call():
            arguments = [filled(item, variables) for item in expression.args]
            return relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
        case relax.Tuple():
            return relax.Tuple([filled(item, variables) for item in expression.fields])
        case relax.Var():
            return variables[expression]
    return expression


_UNSET = "relax.builtin.alloc_tensor"


def unset(shape: Sequence[int], dtype: str) -> Operator:
    """Return what makes a tensor of any contents, which is written before it is read."""
    return operator(lambda: relax.op.builtin.alloc_tensor(relax.ShapeExpr(shape), dtype, 0))


def is_unset(statement: Statement) -> bool:
    """Whether a statement makes a tensor of any contents."""
    return isinstance(statement, Operator) and statement.name == _UNSET


# What statements define and read.


def defined(statement: Statement) -> tuple[Value, ...]:
    """Return the values that can be read after a statement and not before it."""
    match statement:
        case Loop():
            return (*statement.states, *(value for item in statement.head for value in defined(item)))
        case Check():
            return ()
    return statement.results


def read(statement: Statement) -> set[Value]:
    """Return the values from outside that a statement reads, with all that is nested in it."""
    match statement:
        case Operator():
            return set(statement.operands)
        case Branch():
            return {statement.condition} | free(statement.then) | free(statement.otherwise)
        case Loop():
            tested = () if statement.condition is None else (statement.condition,)
            inner = free(Block((*statement.head, *statement.body.statements), (*tested, *statement.body.results)))
            return {*statement.initial, *(inner - {*statement.states})}
        case Recursion():
            return {*statement.arguments, *(free(statement.body) - {*statement.parameters})}
        case SelfCall():
            return set(statement.arguments)
        case Check():
            return {statement.flag}


def free(block: Block) -> set[Value]:
    """Return the values that a block reads and does not define."""
    found: set[Value] = set()
    known: set[Value] = set()
    for statement in block.statements:
        found |= read(statement) - known
        known.update(defined(statement))
    return found | ({*block.results} - known)


def inner_blocks(statement: Statement) -> tuple[Block, ...]:
    """Return the blocks that are nested directly in a statement; a loop's head is one without results."""
    match statement:
        case Branch():
            return statement.then, statement.otherwise
        case Loop():
            return Block(statement.head, ()), statement.body
        case Recursion():
            return (statement.body,)
    return ()


def all_reads(block: Block) -> list[Value]:
    """Return every value that a block reads, as often as it does so, with all that is nested in it."""
    found = [*block.results]
    for statement in statements_of(block):
        found += [value for inner in inner_blocks(statement) for value in inner.results]
        match statement:
            case Operator():
                found += statement.operands
            case Branch():
                found.append(statement.condition)
            case Loop():
                found += [*statement.initial, *([statement.condition] if statement.condition is not None else [])]
            case Recursion() | SelfCall():
                found += statement.arguments
            case Check():
                found.append(statement.flag)
    return found


def statements_of(block: Block) -> Iterator[Statement]:
    """Yield the statements of a block, with all that is nested in it."""
    for statement in block.statements:
        yield statement
        for inner in inner_blocks(statement):
            yield from statements_of(inner)


def all_defined(block: Block) -> list[Value]:
    """Return the values that a block defines, with all that is nested in it."""
    found: list[Value] = []
    for statement in statements_of(block):
        found += [*defined(statement), *(statement.parameters if isinstance(statement, Recursion) else ())]
    return found


def any_statement(statements: Iterable[Statement], holds: Callable[[Statement], bool]) -> bool:
    """Whether something holds for one of the statements, or for one nested in them."""
    return any(map(holds, statements_of(Block(tuple(statements), ()))))


def multiplies_rows(item: Statement, changing: Container[Value]) -> TypeGuard[Operator]:
    """Whether a statement is a product of rows with a matrix that is not among the changing values, in float32."""
    if not isinstance(item, Operator) or item.name != "relax.matmul":
        return False
    x, weights = item.operands
    are_matrices = len(x.shape) == len(weights.shape) == 2  # noqa: PLR2004  (rows and columns)
    return are_matrices and {x.dtype, weights.dtype} == {"float32"} and weights not in changing


# Copies of statements.


def copied(statements: Iterable[Statement], new: dict[Value, Value]) -> tuple[Statement, ...]:
    """Copy statements, so that each value they define becomes a fresh one.

    `new` says which values are to be read in place of others; the values that the statements define are added to it.
    """

    def read_now(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(new.get(value, value) for value in values)

    def defined_now(values: Sequence[Value]) -> tuple[Value, ...]:
        new.update((value, value.fresh()) for value in values)
        return read_now(values)

    def copy(statement: Statement) -> Statement:
        match statement:
            case Operator():
                operands = read_now(statement.operands)
                return replace(statement, operands=operands, results=defined_now(statement.results))
            case Branch():
                (condition,) = read_now((statement.condition,))
                sides = _copied_block(statement.then, new), _copied_block(statement.otherwise, new)
                return Branch(condition, *sides, defined_now(statement.results))
            case Loop():
                initial, states = read_now(statement.initial), defined_now(statement.states)
                head = copied(statement.head, new)
                condition = statement.condition and new.get(statement.condition, statement.condition)
                body = _copied_block(statement.body, new)
                return Loop(statement.name, states, initial, head, condition, body, statement.steps)
            case Recursion():
                arguments, parameters = read_now(statement.arguments), defined_now(statement.parameters)
                body = _copied_block(statement.body, new)
                results = defined_now(statement.results)
                return Recursion(statement.name, parameters, arguments, body, results, statement.depth)
            case SelfCall():
                arguments = read_now(statement.arguments)
                return SelfCall(arguments, defined_now(statement.results))
            case Check():
                return Check(*read_now((statement.flag,)), statement.message)

    return tuple(map(copy, statements))


def _copied_block(block: Block, new: dict[Value, Value]) -> Block:
    return Block(copied(block.statements, new), tuple(new.get(value, value) for value in block.results))


def rewritten(block: Block, rewrite: Callable[[Statement], Iterable[Statement]]) -> Block:
    """Replace every statement of a block by what `rewrite` returns for it, the innermost first."""

    def inner(statement: Statement) -> Statement:
        match statement:
            case Branch():
                then, otherwise = rewritten(statement.then, rewrite), rewritten(statement.otherwise, rewrite)
                return replace(statement, then=then, otherwise=otherwise)
            case Loop():
                head = rewritten(Block(statement.head, ()), rewrite).statements
                return replace(statement, head=head, body=rewritten(statement.body, rewrite))
            case Recursion():
                return replace(statement, body=rewritten(statement.body, rewrite))
        return statement

    statements = tuple(new for statement in block.statements for new in rewrite(inner(statement)))
    return Block(statements, block.results)


# Statements written.


@dataclass
class Statements:
    """Statements that are written one after the other.

    Attributes:
        found: so far.
        now: values in place of others, which copies read.
    """

    now: dict[Value, Value] = field(default_factory=dict)
    found: list[Statement] = field(default_factory=list)

    def emit(self, function: Callable[..., relax.Expr], *operands: Value) -> Value:
        """Append an operator, and return its result."""
        self.found.append(made := operator(function, *operands))
        return made.results[0]

    def copy(self, block: Block) -> tuple[Value, ...]:
        """Append a copy of statements, and return what stands for their results."""
        self.found += copied(block.statements, self.now)
        return tuple(self.now.get(value, value) for value in block.results)

    def block(self, results: Sequence[Value]) -> Block:
        """Return the statements as a block."""
        return Block(tuple(self.found), tuple(results))

    def plus(self, value: Value, added: int) -> Value:
        """Append a sum with a number."""
        return self.emit(lambda n: relax.op.add(n, integer(added)), value) if added else value

    def row(self, table: Value, at: Value) -> Value:
        """Append what takes a row of a table, or several."""
        return self.emit(partial(relax.op.take, axis=0), table, at)

    def put(self, table: Value, at: Value, rows: Value) -> Value:
        """Append what writes a row of a table, or several."""
        count = at.elements
        places = self.emit(lambda n: relax.op.reshape(n, (count, 1)), at)
        rows = self.emit(lambda r: relax.op.reshape(r, (count, *table.shape[1:])), rows)
        return self.emit(relax.op.scatter_nd, table, places, rows)

    def unset(self, value: Value) -> Value:
        """Append what makes a tensor of any contents, of the shape and type of a value."""
        self.found.append(made := unset(value.shape, value.dtype))
        return made.results[0]


# Statements that nothing needs.


def without_dead(block: Block) -> Block:
    """Drop the statements, results of branches, and states of loops that neither the results nor a check need."""
    return Block(_needed(block.statements, {*block.results}), block.results)


def _needed(statements: Sequence[Statement], live: set[Value]) -> tuple[Statement, ...]:
    kept, live = list[Statement](), {*live}
    for statement in reversed(statements):
        is_live = any(value in live for value in defined(statement))
        must_stay = any_statement((statement,), lambda item: isinstance(item, Check | SelfCall | Recursion))
        if not is_live and not must_stay:
            continue
        smaller: Statement = statement
        match statement:
            case Branch():
                used = [index for index, value in enumerate(statement.results) if value in live]
                sides = [
                    without_dead(Block(side.statements, tuple(side.results[index] for index in used)))
                    for side in (statement.then, statement.otherwise)
                ]
                smaller = Branch(statement.condition, *sides, tuple(statement.results[index] for index in used))
            case Loop():
                smaller = _needed_of_loop(statement, live)
            case Recursion():
                smaller = replace(statement, body=without_dead(statement.body))
        live |= read(smaller)
        kept.append(smaller)
    return tuple(reversed(kept))


def _needed_of_loop(loop: Loop, live: set[Value]) -> Loop:
    """Keep the states that are read afterwards, or that one of the states kept, the condition or a check needs."""
    kept = {state for state in loop.states if state in live}
    while True:
        used = [index for index, state in enumerate(loop.states) if state in kept]
        body = without_dead(Block(loop.body.statements, tuple(loop.body.results[index] for index in used)))
        tested = set() if loop.condition is None else {loop.condition}
        head = _needed(loop.head, live | tested | free(body))
        states = tuple(loop.states[index] for index in used)
        smaller = replace(
            loop, states=states, initial=tuple(loop.initial[index] for index in used), head=head, body=body
        )
        missing = {*loop.states} & read(smaller)
        if not missing:
            return smaller
        kept |= missing
