"""A program in JAX: its loops and branches are those of `jax.lax`; a recursion is Python's, of compiled pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autotm.control.program import Array, Block, Branch, Loop, Operator, Program, Statement, Value
from autotm.model.errors import BadInputError
from autotm.systems.source import (
    SHARED,
    Expression,
    Prepared,
    Ready,
    Table,
    called,
    numbers,
    operator_source,
    piece_source,
    python_source,
)


def jax_source(program: Program) -> str:
    """Return the source of `main(*parameters, *constants)`.

    Raises:
        BadInputError: it recurses, for which JAX has nothing, or an operator is not known.
    """
    return _JaxSource(program).source()


class _JaxSource:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self.indent = 1

    def source(self) -> str:
        parameters = self.listed((*self.program.parameters, *self.program.constants))
        self.block(self.program.body.statements)
        self.line(f"return {self.listed(self.program.body.results)}")
        return f"def main({parameters}):\n" + "\n".join(self.lines) + "\n"

    def name(self, value: Value) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")

    def listed(self, values: Iterable[Value]) -> str:
        return ", ".join(map(self.name, values))

    def tuple_of(self, values: Iterable[Value]) -> str:
        return f"({''.join(f'{self.name(value)}, ' for value in values)})"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def block(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            match statement:
                case Operator():
                    self.line(*operator_source([statement], self.name, JAX))
                case Branch():
                    self.branch(statement)
                case Loop():
                    self.loop(statement)
                case _:
                    raise BadInputError("a function that JAX compiles cannot call itself")

    def function(self, name: str, states: Sequence[Value], write: Callable[[], None]) -> None:
        """Write a function of a tuple of values."""
        self.line(f"def {name}(states):")
        self.indent += 1
        if states:
            self.line(f"{self.tuple_of(states)} = states")
        write()
        self.indent -= 1

    def returning(self, block: Block) -> Callable[[], None]:
        """Return what writes a block and returns its results."""

        def write() -> None:
            self.block(block.statements)
            self.line(f"return {self.tuple_of(block.results)}")

        return write

    def branch(self, branch: Branch) -> None:
        number = len(self.lines)
        self.function(f"then{number}", (), self.returning(branch.then))
        self.function(f"otherwise{number}", (), self.returning(branch.otherwise))
        chosen = f"lax.cond({self.name(branch.condition)}, then{number}, otherwise{number}, None)"
        self.line(f"{self.tuple_of(branch.results)} = {chosen}")

    def loop(self, loop: Loop) -> None:
        number, states, initial = len(self.lines), self.tuple_of(loop.states), self.tuple_of(loop.initial)
        whole = Block((*loop.head, *loop.body.statements), loop.body.results)
        self.function(f"body{number}", loop.states, self.returning(whole))
        if loop.condition is None:
            counted = f"lax.fori_loop(0, {loop.steps}, lambda _, states: body{number}(states), {initial})"
            self.line(f"{states} = {counted}")
            return

        def test() -> None:
            self.block(loop.head)
            self.line(f"return {self.name(loop.condition)}")

        self.function(f"test{number}", loop.states, test)
        self.line(f"{states} = lax.while_loop(test{number}, body{number}, {initial})")
        self.block(loop.head)  # What its last run computed can be read afterwards.


def _reduced(function: str) -> Expression:
    def write(x: str, *, attrs: Any, **_: Any) -> str:
        axes = None if attrs.axis is None else tuple(numbers(attrs.axis))
        return f"jnp.{function}({x}, axis={axes}, keepdims={bool(attrs.keepdims)})"

    return write


def _taken(x: str, index: str, *, attrs: Any, operator: Operator, **_: Any) -> str:
    if len(operator.operands) > 1 and not operator.operands[1].shape:
        return f"lax.dynamic_index_in_dim({x}, {index}, {int(attrs.axis)}, keepdims=False)"
    return f"jnp.take({x}, {index}, axis={int(attrs.axis)}, mode='clip')"


def _paired(values: Any) -> list[tuple[int, int]]:
    widths = numbers(values)
    return list(zip(widths[::2], widths[1::2], strict=True))


def _convolved(x: str, weights: str, *, attrs: Any, **_: Any) -> str:
    padding = [(width, width) for width in numbers(attrs.padding)[:2]]
    return f"lax.conv_general_dilated({x}, {weights}, {numbers(attrs.strides)}, {padding})"


def _pooled(start: str, combine: str, after: Callable[[list[int]], str]) -> Expression:
    def write(x: str, *, attrs: Any, **_: Any) -> str:
        window, strides = [1, 1, *numbers(attrs.pool_size)], [1, 1, *numbers(attrs.strides)]
        padding = [(0, 0), (0, 0), *((width, width) for width in numbers(attrs.padding)[:2])]
        pooled = f"lax.reduce_window({x}, {start}, lax.{combine}, {window}, {strides}, {padding})"
        return pooled + after(window)

    return write


JAX: Table = {
    **SHARED,
    "relax.sigmoid": called("jax.nn.sigmoid"),
    "relax.tanh": called("jnp.tanh"),
    "relax.nn.relu": called("jax.nn.relu"),
    "relax.where": called("jnp.where"),
    "relax.nn.softmax": lambda x, *, attrs, **_: f"jax.nn.softmax({x}, axis={int(attrs.axis)})",
    "relax.argmax": lambda x, *, attrs, **_: f"jnp.argmax({x}, axis={int(attrs.axis)})",
    "relax.astype": lambda x, *, attrs, **_: f"{x}.astype('{attrs.dtype}')",
    "relax.concat": lambda items, *, attrs, **_: f"jnp.concatenate({items}, axis={int(attrs.axis)})",
    "relax.split": lambda x, *_, attrs, operator, **__: (
        f"jnp.split({x}, {len(operator.results)}, axis={int(attrs.axis)})"
    ),
    "relax.permute_dims": lambda x, *, attrs, **_: f"{x}.transpose({numbers(attrs.axes)})",
    "relax.sum": _reduced("sum"),
    "relax.mean": _reduced("mean"),
    "relax.max": _reduced("max"),
    "relax.take": _taken,
    "relax.nn.pad": lambda x, *_, attrs, **__: f"jnp.pad({x}, {_paired(attrs.pad_width)})",
    "relax.nn.conv2d": _convolved,
    "relax.nn.avg_pool2d": _pooled("0.0", "add", lambda window: f" / {window[2] * window[3]}"),
    "relax.nn.max_pool2d": _pooled("-jnp.inf", "max", lambda _: ""),
}
"""Operators of Relax as expressions of JAX."""


def compiled(program: Program, threads: int) -> Ready:
    """Compile a program as one function, or in pieces if it recurses.

    Raises:
        BadInputError: an operator is not known.
    """
    # It is read when the first array is made.
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    jax.config.update("jax_enable_x64", True)  # Counters are int64; numbers stay float32.
    scope = {"jax": jax, "jnp": jnp, "lax": jax.lax}
    constants = [jnp.asarray(each) for each in program.constants.values()]
    try:
        source, pieces = jax_source(program), []
    except BadInputError:  # A recursion: Python's, of pieces.
        source, pieces = python_source(program, None)
    for piece in pieces:
        exec(piece_source(piece, JAX), scope)  # noqa: S102 - The source is ours.
        scope[piece.name] = jax.jit(scope[piece.name])
    scope["holds"] = bool
    exec(source, scope)  # noqa: S102

    def whole(*values: Any) -> Any:  # Of one function, the compiler knows the constants.
        return scope["main"](*values, *constants)

    main = whole if pieces else jax.jit(whole)

    def on(arguments: Sequence[Array]) -> Prepared:
        values = [jnp.asarray(each) for each in arguments]
        return Prepared(lambda: jax.block_until_ready(main(*values)))

    return on
