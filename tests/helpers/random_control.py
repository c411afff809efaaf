"""Random programs of nested loops, branches and recursion: written in Relax, and interpreted in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from hypothesis import strategies
from tvm import relax

from autotm.zoo.functions import FunctionWriter, Kind, as_module, integer
from autotm.zoo.loop_models import Array

ROWS, WIDTH = 2, 16  # Weights so wide are packed.
KIND = ((ROWS, WIDTH), "float32")
"""Of every value, but for counters and conditions."""

# Programs as data: a block is a list of items, each of which makes one more value from those before it; its last value
# is its result. Values are named by numbers, counted from the last one back, modulo how many there are.


@dataclass(frozen=True)
class Compute:
    """A value computed from two others."""

    function: str
    left: int
    right: int


@dataclass(frozen=True)
class If:
    """One of two blocks, by whether the mean of a value is above a threshold."""

    value: int
    threshold: float
    then: tuple[Item, ...]
    otherwise: tuple[Item, ...]


@dataclass(frozen=True)
class Repeat:
    """A block a fixed number of times: it meets the last two states as further values, and its result is the next."""

    steps: int
    first: int
    second: int
    body: tuple[Item, ...]


@dataclass(frozen=True)
class While:
    """A block as long as the mean of the state is below a threshold, but no more than so many times."""

    most: int
    threshold: float
    first: int
    body: tuple[Item, ...]


@dataclass(frozen=True)
class Recurse:
    """f(n, x) = if n <= 0: base(x) else: join(x, f(n - 1, before(x)), f(n - 2, before(x)))."""

    depth: int
    first: int
    base: tuple[Item, ...]
    before: tuple[Item, ...]
    join: tuple[Item, ...]


Item = Compute | If | Repeat | While | Recurse

FUNCTIONS: dict[str, tuple[Callable[..., relax.Expr], Callable[..., Array]]] = {
    "add": (relax.op.add, np.add),
    "subtract": (relax.op.subtract, np.subtract),
    "maximum": (relax.op.maximum, np.maximum),
    "multiply": (relax.op.multiply, np.multiply),
    "product": (None, None),
}


def blocks(depth: int) -> strategies.SearchStrategy[tuple[Item, ...]]:
    """Blocks in which so many levels of loops, branches and recursion are nested."""
    index = strategies.integers(0, 5)
    compute = strategies.builds(Compute, strategies.sampled_from(sorted(FUNCTIONS)), index, index)
    kinds = [compute]
    if depth:
        inner, threshold = blocks(depth - 1), strategies.floats(-0.5, 0.5, width=16)
        kinds += [
            strategies.builds(If, index, threshold, inner, inner),
            strategies.builds(Repeat, strategies.integers(0, 7), index, index, inner),
            strategies.builds(While, strategies.integers(0, 5), threshold, index, inner),
            strategies.builds(Recurse, strategies.integers(0, 4), index, inner, inner, inner),
        ]
    return strategies.lists(strategies.one_of(kinds[::-1]), min_size=1, max_size=2).map(tuple)


# In NumPy.


def interpreted(block: Sequence[Item], values: Sequence[Array], weights: Array) -> Array:
    """Return the result of a block, in float64."""
    values = list(values)
    for item in block:
        values.append(_interpreted(item, values, weights))
    return values[-1]


def _interpreted(item: Item, values: list[Array], weights: Array) -> Array:
    def pick(index: int) -> Array:
        return values[-1 - index % len(values)]

    match item:
        case Compute("product", left, right):
            return np.tanh(pick(left) @ weights + pick(right))
        case Compute(function, left, right):
            return np.tanh(FUNCTIONS[function][1](pick(left), pick(right)))
        case If():
            side = item.then if pick(item.value).mean() > item.threshold else item.otherwise
            return interpreted(side, values, weights)
        case Repeat():
            first, second = pick(item.first), pick(item.second)
            for _ in range(item.steps):
                first, second = second, interpreted(item.body, [*values, first, second], weights)
            return second
        case While():
            state, done = pick(item.first), 0
            while done < item.most and state.mean() < item.threshold:
                state, done = interpreted(item.body, [*values, state], weights), done + 1
            return state
        case Recurse():
            return _recursed(item, item.depth, pick(item.first), values, weights)
    raise TypeError(item)


def _recursed(item: Recurse, n: int, x: Array, values: list[Array], weights: Array) -> Array:
    if n <= 0:
        return interpreted(item.base, [*values, x], weights)
    y = interpreted(item.before, [*values, x], weights)
    results = (_recursed(item, less, y, values, weights) for less in (n - 1, n - 2))
    return interpreted(item.join, [*values, x, *results], weights)


# In Relax.


class Module:
    """A block as a module: `main(*values, weights)`."""

    def __init__(self, block: Sequence[Item], arguments: int) -> None:
        self._functions: dict[FunctionWriter, relax.Function] = {}
        main = self._writer("main", {}, arguments)
        *values, weights = main.params.values()
        self._functions[main] = main.function(self._written(main, block, values, weights))
        self.module: tvm.IRModule = as_module(self._functions)

    def _writer(self, name: str, first: dict[str, Kind], values: int) -> FunctionWriter:
        """A function of some values and the weights, after its own first parameters."""
        own = {f"value{index}": KIND for index in range(values)}
        params = {**first, **own, "weights": ((WIDTH, WIDTH), "float32")}
        number = "" if name == "main" else len(self._functions)
        self._functions.setdefault(writer := FunctionWriter(f"{name}{number}", params, KIND), None)
        return writer

    def _written(
        self, writer: FunctionWriter, block: Sequence[Item], values: Sequence[relax.Var], weights: relax.Var
    ) -> relax.Var:
        values = list(values)
        for item in block:
            values.append(self._item(writer, item, values, weights))
        return values[-1]

    def _item(self, writer: FunctionWriter, item: Item, values: list[relax.Var], weights: relax.Var) -> relax.Var:
        emit, op = writer.emit, relax.op

        def pick(index: int) -> relax.Var:
            return values[-1 - index % len(values)]

        def mean(value: relax.Var) -> relax.Var:
            return emit(op.mean(value))

        match item:
            case Compute("product", left, right):
                return emit(op.tanh(emit(op.add(emit(op.matmul(pick(left), weights)), pick(right)))))
            case Compute(function, left, right):
                return emit(op.tanh(emit(FUNCTIONS[function][0](pick(left), pick(right)))))
            case If():
                test = emit(op.greater(mean(pick(item.value)), relax.const(item.threshold, "float32")))
                sides = [
                    lambda s=side: self._written(writer, s, values, weights) for side in (item.then, item.otherwise)
                ]
                return writer.branch(test, *sides)
            case Repeat():
                return self._repeat(writer, item, values, weights, (pick(item.first), pick(item.second)))
            case While():
                return self._while(writer, item, values, weights, pick(item.first))
            case Recurse():
                return self._recurse(writer, item, values, weights, pick(item.first))
        raise TypeError(item)

    def _repeat(self, writer, item: Repeat, values, weights, initial) -> relax.Var:
        loop = self._writer("repeat", {"step": ((), "int64"), "first": KIND, "second": KIND}, len(values))
        step, first, second, *outer, own_weights = loop.params.values()
        emit, op = loop.emit, relax.op
        test = emit(op.less(step, integer(item.steps)))

        def again() -> relax.Var:
            new = self._written(loop, item.body, [*outer, first, second], own_weights)
            return loop.call(loop, emit(op.add(step, integer(1))), second, new, *outer, own_weights)

        self._functions[loop] = loop.function(loop.branch(test, again, lambda: second))
        return writer.call(loop, integer(0), *initial, *values, weights)

    def _while(self, writer, item: While, values, weights, initial) -> relax.Var:
        loop = self._writer("while", {"step": ((), "int64"), "state": KIND}, len(values))
        step, state, *outer, own_weights = loop.params.values()
        emit, op = loop.emit, relax.op
        is_below = emit(op.less(emit(op.mean(state)), relax.const(item.threshold, "float32")))
        test = emit(op.logical_and(is_below, emit(op.less(step, integer(item.most)))))

        def again() -> relax.Var:
            new = self._written(loop, item.body, [*outer, state], own_weights)
            return loop.call(loop, emit(op.add(step, integer(1))), new, *outer, own_weights)

        self._functions[loop] = loop.function(loop.branch(test, again, lambda: state))
        return writer.call(loop, integer(0), initial, *values, weights)

    def _recurse(self, writer, item: Recurse, values, weights, initial) -> relax.Var:
        own = self._writer("recurse", {"n": ((), "int64"), "x": KIND}, len(values))
        n, x, *outer, own_weights = own.params.values()
        emit, op = own.emit, relax.op
        test = emit(op.less_equal(n, integer(0)))

        def base() -> relax.Var:
            return self._written(own, item.base, [*outer, x], own_weights)

        def inner() -> relax.Var:
            y = self._written(own, item.before, [*outer, x], own_weights)
            results = [own.call(own, emit(op.subtract(n, integer(less))), y, *outer, own_weights) for less in (1, 2)]
            return self._written(own, item.join, [*outer, x, *results], own_weights)

        self._functions[own] = own.function(own.branch(test, base, inner))
        return writer.call(own, integer(item.depth), initial, *values, weights)
