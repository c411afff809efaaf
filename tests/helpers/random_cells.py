"""Random counted loops of cells, some fed by others: written in Relax, and interpreted in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from hypothesis import strategies
from tvm import relax

from autotm.zoo.functions import FunctionWriter, as_module, integer

WIDTH = 16
_ROW = ((1, WIDTH), "float32")


@dataclass(frozen=True)
class Cells:
    """A loop over rows, with some states.

    Attributes:
        steps: of the loop.
        values: of one step: a kind, and two operands by number: the row, what does not change, the states, and the
            values before; modulo how many there are.
        following: number of what each state is next.
        written: number of what is written to row i of a table in step i.
    """

    steps: int
    values: tuple[tuple[str, int, int], ...]
    following: tuple[int, ...]
    written: int


def cells() -> strategies.SearchStrategy[Cells]:
    """Loops of two or three states."""
    number = strategies.integers(0, 11)
    value = strategies.tuples(strategies.sampled_from(["product", "product", "add", "scaled"]), number, number)
    return strategies.builds(
        Cells,
        strategies.integers(4, 6),
        strategies.lists(value, min_size=2, max_size=8).map(tuple),
        strategies.lists(number, min_size=2, max_size=3).map(tuple),
        number,
    )


def module_of(loop: Cells) -> tvm.IRModule:
    """Return `main(rows, fixed, weights)`, which returns the last states, and the table."""
    states = {f"state{index}": _ROW for index in range(len(loop.following))}
    table = ((loop.steps, WIDTH), "float32")
    given = {"rows": ((loop.steps, *_ROW[0]), "float32"), "fixed": _ROW, "weights": ((WIDTH, WIDTH), "float32")}
    kinds = {"step": ((), "int64"), "factor": ((), "float32"), **states, "table": table}
    writer = FunctionWriter("cells", {**kinds, **given}, [*states.values(), table])
    step, factor, *before, written, rows, fixed, weights = writer.params.values()
    emit, op = writer.emit, relax.op

    def again() -> relax.Var:
        found = [emit(op.take(rows, step, axis=0)), fixed, *before]
        for kind, first, second in loop.values:
            left, right = (found[number % len(found)] for number in (first, second))
            if kind == "product":
                left = emit(op.matmul(left, weights))
            elif kind == "scaled":
                left = emit(op.multiply(left, factor))
            found.append(emit(op.tanh(emit(op.add(left, right)))))
        own = found[loop.written % len(found)]
        filled = emit(op.scatter_nd(written, emit(op.reshape(step, (1, 1))), own))
        new = (found[number % len(found)] for number in loop.following)
        less = emit(op.multiply(factor, relax.const(0.9, "float32")))
        return writer.call(writer, emit(op.add(step, integer(1))), less, *new, filled, rows, fixed, weights)

    test = emit(op.less(step, integer(loop.steps)))
    result = writer.branch(test, again, lambda: relax.Tuple([*before, written]))
    main = FunctionWriter("main", given, [*states.values(), table])
    zeros = [main.emit(op.zeros(*_ROW)) for _ in states]
    empty = main.emit(op.zeros(*table))
    last = main.call(writer, integer(0), relax.const(1.0, "float32"), *zeros, empty, *main.params.values())
    return as_module({writer: writer.function(result), main: main.function(last)})


def interpreted(loop: Cells, rows: np.ndarray, fixed: np.ndarray, weights: np.ndarray) -> Sequence[np.ndarray]:
    """Return what `module_of(loop)` computes."""
    states = [np.zeros((1, WIDTH)) for _ in loop.following]
    table, factor = np.zeros((loop.steps, WIDTH)), 1.0
    for step in range(loop.steps):
        found = [rows[step], fixed, *states]
        for kind, first, second in loop.values:
            left, right = (found[number % len(found)] for number in (first, second))
            left = left @ weights if kind == "product" else left * factor if kind == "scaled" else left
            found.append(np.tanh(left + right))
        table[step] = found[loop.written % len(found)][0]
        states = [found[number % len(found)] for number in loop.following]
        factor *= 0.9
    return [*states, table]
