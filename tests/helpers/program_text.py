"""Programs with control flow as text, to be compared with golden files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm import ir, relax

from autotm.control.program import Block, Branch, Check, Loop, Operator, Program, Recursion, SelfCall, Statement, Value


def program_text(program: Program) -> str:
    """Return a line for each statement, inner ones indented; values have numbers in the order of the text."""
    writer = _Writer(program)
    lines = [f"main({writer.named(program.parameters)})", *writer.block(program.body, "result")]
    return "\n".join(lines) + "\n"


class _Writer:
    def __init__(self, program: Program) -> None:
        self.constants = program.constants
        self.numbers: dict[Value, str] = {}

    def name(self, value: Value) -> str:
        if value in self.constants and not value.shape:
            return str(self.constants[value].item())
        return self.numbers.setdefault(value, f"%{len(self.numbers)}")

    def named(self, values: Sequence[Value]) -> str:
        return ", ".join(map(self.name, values))

    def block(self, block: Block, last: str) -> Iterator[str]:
        for statement in block.statements:
            yield from (f"    {line}" for line in self.statement(statement))
        if block.results:
            yield f"    {last} {self.named(block.results)}"

    def statement(self, statement: Statement) -> Iterator[str]:
        match statement:
            case Operator():
                names = dict(zip(statement.holes, map(self.name, statement.operands), strict=True))
                flat = [
                    item
                    for argument in statement.call.args
                    for item in (argument.fields if isinstance(argument, relax.Tuple) else [argument])
                ]
                arguments = [
                    names[item] if item in names else str(item.value.numpy().item())
                    for item in flat
                    if item in names or (isinstance(item, ir.Constant) and hasattr(item.value, "numpy"))
                ]
                operator = statement.name.removeprefix("relax.")
                yield f"{self.named(statement.results)} = {operator}({', '.join(arguments)})"
            case Branch():
                yield f"if {self.name(statement.condition)}:"
                yield from self.block(statement.then, "result")
                yield "else:"
                yield from self.block(statement.otherwise, "result")
                yield f"-> {self.named(statement.results)}"
            case Loop():
                initial = ", ".join(
                    f"{self.name(state)} = {self.name(value)}"
                    for state, value in zip(statement.states, statement.initial, strict=True)
                )
                times = "while" if statement.condition is not None else f"{statement.steps} times"
                yield f"loop {times}, {initial}:"
                if statement.condition is not None:
                    yield from self.block(Block(statement.head, ()), "")
                    yield f"    leave unless {self.name(statement.condition)}"
                yield from self.block(statement.body, "next")
            case Recursion():
                yield f"function {statement.name}({self.named(statement.parameters)}):"
                yield from self.block(statement.body, "result")
                yield f"{self.named(statement.results)} = {statement.name}({self.named(statement.arguments)})"
            case SelfCall():
                yield f"{self.named(statement.results)} = self({self.named(statement.arguments)})"
            case Check():
                yield f"check {self.name(statement.flag)}"
