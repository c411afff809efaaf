"""A program as Python source: for PyTorch, or with its runs of operators as calls of pieces that others compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, relax, runtime

from autotm.control.program import (
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


def without_checks(program: Program) -> Program:
    """Return a program that compares NaN, and reads outside of tensors, without a word, as the systems compared do."""
    body = rewritten(program.body, lambda item: [] if isinstance(item, Check) else [item])
    return replace(program, body=without_dead(body))


def python_source(program: Program, *, in_pieces: bool) -> tuple[str, list[Piece]]:
    """Return the source of `main(*parameters, *constants)`, and the pieces that it calls by their names.

    With `in_pieces`, all values are tensors, and `holds` says whether one is true; else whole numbers that are known are numbers of Python, and steps of a
    counted loop are those of `range`.
    """
    writer = _PythonSource(program, in_pieces=in_pieces)
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


def numbers(values: Any) -> list[int]:
    """Return an attribute as whole numbers."""
    return [int(value) for value in values]


class _PythonSource:
    def __init__(self, program: Program, *, in_pieces: bool) -> None:
        self.program = program
        self.in_pieces = in_pieces
        self.pieces: list[Piece] = []
        self.reads = Counter(all_reads(program.body))
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.functions: list[str] = []
        if not in_pieces:
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
        if not self.in_pieces:
            for line in operator_source(run, self.name, TORCH):
                self.line(line)
            return
        piece = piece_of(run, self.reads, f"piece{len(self.pieces)}")
        self.pieces.append(piece)
        self.line(f"{self.listed(piece.outputs)} = {piece.name}({self.listed(piece.inputs)})")

    def condition(self, value: Value) -> str:
        return f"holds({self.name(value)})" if self.in_pieces else self.name(value)

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
            case SelfCall():
                self.line(f"{self.listed(statement.results)} = {self.functions[-1]}({self.listed(statement.arguments)})")

    def loop(self, loop: Loop) -> None:
        if loop.condition is None:
            counter = None if self.in_pieces else counter_of(loop, self.program)
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
    made = [value for item in operators for value in item.results]
    inputs = tuple(value for value in inner if value not in {*made})
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


def _binary(sign: str) -> Expression:
    return lambda a, b, **_: f"{a} {sign} {b}"


def _called(function: str) -> Expression:
    return lambda *arguments, **_: f"{function}({', '.join(arguments)})"


def _reduced(method: str) -> Expression:
    def write(x: str, *, attrs: Any, **_: Any) -> str:
        axes = [] if attrs.axis is None else numbers(attrs.axis)
        return f"{x}.{method}({axes}, {bool(attrs.keepdims)})"

    return write


def _shaped(x: str, *_: str, operator: Operator, **__: Any) -> str:
    return f"{x}.reshape({list(operator.results[0].shape)})"


def _taken(x: str, index: str, *, attrs: Any, **_: Any) -> str:
    if int(attrs.axis) != 0:
        raise BadInputError("take along another axis than the first is not known here")
    return f"{x}[{index}]"


def _sliced(x: str, *_: str, operator: Operator, **__: Any) -> str:
    axes, begins, ends = (numbers(item.fields if isinstance(item, relax.Tuple) else item)
                          for item in operator.call.args[1:4])  # fmt: skip
    parts = [":"] * len(operator.operands[0].shape)
    for axis, begin, end in zip(axes, begins, ends, strict=True):
        parts[axis] = f"{begin}:{end}"
    return f"{x}[{', '.join(parts)}]"


def _padded(x: str, *_: str, attrs: Any, **__: Any) -> str:
    widths = numbers(attrs.pad_width)
    pairs = [widths[index : index + 2] for index in range(0, len(widths), 2)]
    return f"functional.pad({x}, {[width for pair in reversed(pairs) for width in pair]})"


def _convolved(x: str, weights: str, *, attrs: Any, **_: Any) -> str:
    sizes = f"None, {numbers(attrs.strides)}, {numbers(attrs.padding)[:2]}"
    if attrs.data_layout == "NHWC":
        first = f"{x}.permute(0, 3, 1, 2), {weights}.permute(3, 2, 0, 1)"
        return f"torch.conv2d({first}, {sizes}).permute(0, 2, 3, 1)"
    return f"torch.conv2d({x}, {weights}, {sizes})"


def _pooled(kind: str) -> Expression:
    def write(x: str, *, attrs: Any, **_: Any) -> str:
        sizes = (numbers(attrs.pool_size), numbers(attrs.strides), numbers(attrs.padding)[:2])
        text = ", ".join(map(str, sizes))
        if attrs.layout == "NHWC":
            return f"functional.{kind}({x}.permute(0, 3, 1, 2), {text}).permute(0, 2, 3, 1)"
        return f"functional.{kind}({x}, {text})"

    return write


TORCH: Table = {
    "relax.add": _binary("+"),
    "relax.multiply": _binary("*"),
    "relax.equal": _binary("=="),
    "relax.not_equal": _binary("!="),
    "relax.less": _binary("<"),
    "relax.greater": _binary(">"),
    "relax.logical_and": _binary("&"),
    "relax.matmul": _binary("@"),
    "relax.sigmoid": _called("torch.sigmoid"),
    "relax.tanh": _called("torch.tanh"),
    "relax.nn.relu": _called("torch.relu"),
    "relax.where": _called("torch.where"),
    "relax.nn.softmax": lambda x, *, attrs, **_: f"torch.softmax({x}, {int(attrs.axis)})",
    "relax.argmax": lambda x, *, attrs, **_: f"{x}.argmax({int(attrs.axis)})",
    "relax.astype": lambda x, *, attrs, **_: f"{x}.to(torch.{attrs.dtype})",
    "relax.concat": lambda items, *, attrs, **_: f"torch.cat({items}, {int(attrs.axis)})",
    "relax.split": lambda x, *_, attrs, operator, **__: f"{x}.chunk({len(operator.results)}, {int(attrs.axis)})",
    "relax.permute_dims": lambda x, *, attrs, **_: f"{x}.permute({numbers(attrs.axes)})",
    "relax.reshape": _shaped,
    "relax.sum": _reduced("sum"),
    "relax.mean": _reduced("mean"),
    "relax.max": _reduced("amax"),
    "relax.take": _taken,
    "relax.strided_slice": _sliced,
    "relax.nn.pad": _padded,
    "relax.nn.conv2d": _convolved,
    "relax.nn.avg_pool2d": _pooled("avg_pool2d"),
    "relax.nn.max_pool2d": _pooled("max_pool2d"),
}
"""Operators of Relax as expressions of PyTorch."""
