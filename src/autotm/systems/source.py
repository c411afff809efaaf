"""A program as Python source: of operators, or with its runs of operators as calls of pieces that others compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import ir, relax, runtime

from autotm.control.program import (
    Array,
    Block,
    Branch,
    Check,
    Loop,
    Operator,
    Program,
    Recursion,
    SelfCall,
    Statement,
    Value,
    all_reads,
    rewritten,
    without_dead,
)
from autotm.model.errors import BadInputError

Expression = Callable[..., str]
"""From the names of an operator's arguments, and its attributes and types, to an expression."""
Table = dict[str, Expression]


@dataclass(frozen=True)
class Piece:
    """A run of operators between which there is no control flow.

    Attributes:
        inputs: what it reads.
        outputs: what others read of what it computes.
    """

    name: str
    operators: tuple[Operator, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


Results = tuple[Array, ...]


@dataclass(frozen=True)
class Prepared:
    """A program that can be called in one system, on arguments that it has already.

    Attributes:
        call: computes the results, in the system's own types.
        kernel_ms: milliseconds of a call within kernels, from a run of its own; None if the system does not tell.
    """

    call: Callable[[], Any]
    kernel_ms: Callable[[], float] | None = None

    def results(self) -> Results:
        """Compute the results, as arrays."""
        results = self.call()
        several = isinstance(results, tuple | list) or type(results).__name__ == "Array"
        return tuple(as_array(each) for each in (results if several else (results,)))


Ready = Callable[[Sequence[Array]], Prepared]
"""A program that one system has compiled, or what it does instead: takes the arguments."""


def as_array(value: Any) -> Array:
    """Return a tensor of some system, or a number, as an array."""
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def without_checks(program: Program) -> Program:
    """Return a program that compares NaN, and reads outside of tensors, without a word, as the systems compared do."""
    body = rewritten(program.body, lambda item: [] if isinstance(item, Check) else [item])
    return replace(program, body=without_dead(body))


def python_source(program: Program, table: Table | None) -> tuple[str, list[Piece]]:
    """Return the source of `main(*parameters, *constants)`, and the pieces that it calls by their names.

    Args:
        program: to be written.
        table: of operators as expressions. Whole numbers that are known are numbers of Python then, and steps of a
            counted loop those of `range`. Without one, runs of operators are calls of pieces; all values are tensors
            then, and `holds` says whether one is true.
    """
    writer = _PythonSource(program, table)
    return writer.source(), writer.pieces


def operator_source(operators: Sequence[Operator], names: Callable[[Value], str], table: Table) -> list[str]:
    """Return a line for each operator."""
    lines = []
    for operator in operators:
        if operator.name not in table:
            raise BadInputError(f"{operator.name} is not known here; add it to the table of operators")
        filled = dict(zip(operator.holes, map(names, operator.operands), strict=True))
        arguments = [argument_source(argument, filled) for argument in operator.call.args]
        expression = table[operator.name](*arguments, attrs=operator.call.attrs, operator=operator)
        lines.append(f"{', '.join(map(names, operator.results))} = {expression}")
    return lines


def argument_source(argument: relax.Expr, names: dict[relax.Var, str]) -> str:
    """Return an argument of an operator as source."""
    match argument:
        case relax.Var():
            return names[argument]
        case relax.Tuple():
            return f"[{', '.join(argument_source(item, names) for item in argument.fields)}]"
        case ir.Constant():
            value = argument.value
            return repr(value.numpy().item() if isinstance(value, runtime.Tensor) else value)
        case relax.ShapeExpr():
            return repr([int(extent) for extent in argument])
    return str(argument)


def piece_source(piece: Piece, table: Table) -> str:
    """Return a piece as a function."""
    names: dict[object, str] = {}
    name = lambda value: names.setdefault(value, f"v{len(names)}")  # noqa: E731
    head = f"def {piece.name}({', '.join(map(name, piece.inputs))}):"
    body = operator_source(piece.operators, name, table)
    return "\n    ".join([head, *body, f"return {', '.join(map(name, piece.outputs))}"]) + "\n"


def numbers(values: Any) -> list[int]:
    """Return an attribute as whole numbers."""
    return [int(value) for value in values]


class _PythonSource:
    def __init__(self, program: Program, table: Table | None) -> None:
        self.program = program
        self.table = table
        self.pieces: list[Piece] = []
        self.reads = Counter(all_reads(program.body))
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.functions: list[str] = []
        if table is not None:
            for value, array in program.constants.items():
                if not value.shape and array.dtype.kind == "i":
                    self.names[value] = repr(array.item())

    def source(self) -> str:
        names = map(self.name, (*self.program.parameters, *self.program.constants))
        parameters = [name if name.isidentifier() else f"number{index}" for index, name in enumerate(names)]
        self.block(self.program.body)
        self.line(f"return {self.listed(self.program.body.results)}")
        return f"def main({', '.join(parameters)}):\n" + "\n".join(self.lines) + "\n"

    def name(self, value: Value) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")

    def listed(self, values: Iterable[Value]) -> str:
        return ", ".join(map(self.name, values))

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def block(self, block: Block) -> None:
        run: list[Operator] = []
        for statement in block.statements:
            if isinstance(statement, Operator):
                run.append(statement)
                continue
            self.operators(run)
            run = []
            self.statement(statement)
        self.operators(run)

    def operators(self, run: list[Operator]) -> None:
        if not run:
            return
        if self.table is not None:
            for line in operator_source(run, self.name, self.table):
                self.line(line)
            return
        piece = piece_of(run, self.reads, f"piece{len(self.pieces)}")
        self.pieces.append(piece)
        self.line(f"{self.listed(piece.outputs)} = {piece.name}({self.listed(piece.inputs)})")

    def condition(self, value: Value) -> str:
        return f"holds({self.name(value)})" if self.table is None else self.name(value)

    def assign(self, targets: Sequence[Value], values: Sequence[Value]) -> None:
        if targets:
            self.line(f"{self.listed(targets)} = {self.listed(values)}")

    def indented(self, block: Block, targets: Sequence[Value]) -> None:
        self.indent += 1
        self.block(block)
        if targets:
            self.assign(targets, block.results)
        else:
            self.line("pass")
        self.indent -= 1

    def statement(self, statement: Statement) -> None:
        match statement:
            case Branch():
                self.line(f"if {self.condition(statement.condition)}:")
                self.indented(statement.then, statement.results)
                self.line("else:")
                self.indented(statement.otherwise, statement.results)
            case Loop():
                self.loop(statement)
            case Recursion():
                self.recursion(statement)
            case Check():
                self.line(f"check({self.name(statement.flag)}, {statement.message!r})")
            case SelfCall():
                self.line(
                    f"{self.listed(statement.results)} = {self.functions[-1]}({self.listed(statement.arguments)})"
                )

    def loop(self, loop: Loop) -> None:
        if loop.condition is None:
            counter = None if self.table is None else counter_of(loop, self.program)
            kept = [index for index, state in enumerate(loop.states) if counter is None or state is not counter[0]]
            states, initial, results = (
                [values[index] for index in kept] for values in (loop.states, loop.initial, loop.body.results)
            )
            self.assign(states, initial)
            if counter is None:
                self.line(f"for _ in range({loop.steps}):")
            else:
                self.line(f"for {self.name(counter[0])} in range({counter[1]}, {counter[1] + (loop.steps or 0)}):")
            self.indented(Block(loop.body.statements, tuple(results)), states)
            if counter is not None:
                self.line(f"{self.name(counter[0])} = {counter[1] + (loop.steps or 0)}")
            return
        self.assign(loop.states, loop.initial)
        self.line("while True:")
        self.indent += 1
        self.block(Block(loop.head, ()))
        self.line(f"if not {self.condition(loop.condition)}:")
        self.line("    break")
        self.indent -= 1
        self.indented(loop.body, loop.states)

    def recursion(self, recursion: Recursion) -> None:
        name = f"recursion{len(self.functions)}"
        self.line(f"def {name}({self.listed(recursion.parameters)}):")
        self.functions.append(name)
        self.indent += 1
        self.block(recursion.body)
        self.line(f"return {self.listed(recursion.body.results)}")
        self.indent -= 1
        self.functions.pop()
        self.line(f"{self.listed(recursion.results)} = {name}({self.listed(recursion.arguments)})")


def piece_of(operators: Sequence[Operator], reads: Counter[Value], name: str) -> Piece:
    """Return operators as a piece of a program all of whose values are read as often as `reads` says."""
    inner = Counter(value for item in operators for value in item.operands)
    made = dict.fromkeys(value for item in operators for value in item.results)
    inputs = tuple(value for value in inner if value not in made)
    return Piece(name, tuple(operators), inputs, tuple(value for value in made if reads[value] > inner[value]))


def counter_of(loop: Loop, program: Program) -> tuple[Value, int] | None:
    """Return the state that counts the steps of a counted loop, and where it begins; None if it has none."""
    steps = {
        item.results[0]: item.operands[0]
        for item in loop.body.statements
        if isinstance(item, Operator) and item.name == "relax.add" and _is_one(item.call.args[1])
    }
    for state, initial, result in zip(loop.states, loop.initial, loop.body.results, strict=True):
        if steps.get(result) is state and initial in program.constants:
            return state, int(program.constants[initial])
    return None


def _is_one(argument: relax.Expr) -> bool:
    return isinstance(argument, ir.Constant) and argument.value.numpy().item() == 1


# Expressions that PyTorch and JAX share.


def called(function: str) -> Expression:
    """Return the expression that calls a function of this name with all arguments."""
    return lambda *arguments, **_: f"{function}({', '.join(arguments)})"


def slice_bounds(operator: Operator) -> list[tuple[int, int, int]]:
    """Return axis, begin and end of each axis that an operator slices."""
    bounds = (numbers(item.fields if isinstance(item, relax.Tuple) else item) for item in operator.call.args[1:4])
    return list(zip(*bounds, strict=True))


def _infix(sign: str) -> Expression:
    return lambda a, b, **_: f"{a} {sign} {b}"


def _sliced(x: str, *_: str, operator: Operator, **__: Any) -> str:
    parts = [":"] * len(operator.operands[0].shape)
    for axis, begin, end in slice_bounds(operator):
        parts[axis] = f"{begin}:{end}"
    return f"{x}[{', '.join(parts)}]"


class _EveryOperator(dict[str, Expression]):
    """Every operator by its name and attributes, so that programs can be compared."""

    def __contains__(self, _name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Expression:
        return lambda *arguments, attrs, **_: f"{name}({', '.join(arguments)}, {attrs})"


EVERY_OPERATOR = _EveryOperator()
SHARED: Table = {
    "relax.add": _infix("+"),
    "relax.multiply": _infix("*"),
    "relax.equal": _infix("=="),
    "relax.not_equal": _infix("!="),
    "relax.less": _infix("<"),
    "relax.greater": _infix(">"),
    "relax.logical_and": _infix("&"),
    "relax.matmul": _infix("@"),
    "relax.reshape": lambda x, *_, operator, **__: f"{x}.reshape({list(operator.results[0].shape)})",
    "relax.strided_slice": _sliced,
}
"""Operators of Relax that are the same expressions in both."""
