"""Loops and recursion in Relax: LSTM, NASRNN, attention, a decoder, a tree encoder, as in Cocktailer (OSDI 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from autotm.zoo.functions import FunctionWriter, Kind, as_module, integer

Array = np.ndarray


def _packed_product(writer: FunctionWriter, left: relax.Var, weights: relax.Var) -> relax.Var:
    """Multiply (batch, hidden) by each of some weights (n, hidden, hidden), as (batch, n hidden)."""
    emit, op = writer.emit, relax.op
    count, hidden, _ = (int(extent) for extent in weights.ty.shape)
    return emit(op.matmul(left, emit(op.reshape(emit(op.permute_dims(weights, [1, 0, 2])), (hidden, count * hidden)))))


# NASRNN: a counted loop.


def nasrnn(steps: int, batch: int, hidden: int) -> tvm.IRModule:
    """Return `main(x, input_weights, hidden_weights)`: x is (steps, batch, hidden), weights are (8, hidden, hidden)."""
    kinds = {
        "x": ((steps, batch, hidden), "float32"),
        "input_weights": ((8, hidden, hidden), "float32"),
        "hidden_weights": ((8, hidden, hidden), "float32"),
    }
    state = ((batch, hidden), "float32")
    loop = FunctionWriter("nasrnn", {"step": ((), "int64"), "c": state, "m": state, **kinds}, [state, state])
    step, c, m, x, *weights = loop.params.values()

    def again() -> relax.Expr:
        return loop.call(loop, *_nas_step(loop, step, c, m, x, *weights), x, *weights)

    test = loop.emit(relax.op.less(step, integer(steps)))
    result = loop.branch(test, again, lambda: relax.Tuple([c, m]))
    main = FunctionWriter("main", kinds, state)
    zero = relax.const(np.zeros((batch, hidden), "float32"))
    last = main.call(loop, integer(0), zero, zero, *main.params.values())
    c, m = (main.emit(relax.TupleGetItem(last, index)) for index in range(2))
    return as_module({loop: loop.function(result), main: main.function(main.emit(relax.op.add(c, m)))})


def _nas_step(
    writer: FunctionWriter,
    step: relax.Var,
    c: relax.Var,
    m: relax.Var,
    x: relax.Var,
    input_weights: relax.Var,
    hidden_weights: relax.Var,
) -> list[relax.Var]:
    emit, op = writer.emit, relax.op
    row = emit(op.take(x, step, axis=0))
    sums = emit(op.add(_packed_product(writer, row, input_weights), _packed_product(writer, m, hidden_weights)))
    parts = emit(op.split(sums, 8, axis=1))
    functions = [
        op.sigmoid, op.nn.relu, op.sigmoid, op.nn.relu, op.tanh, op.sigmoid, op.tanh, op.sigmoid
    ]  # fmt: skip
    g = [emit(function(emit(relax.TupleGetItem(parts, index)))) for index, function in enumerate(functions)]
    first, second = emit(op.tanh(emit(op.multiply(g[0], g[1])))), emit(op.tanh(emit(op.add(g[2], g[3]))))
    third, fourth = emit(op.tanh(emit(op.multiply(g[4], g[5])))), emit(op.sigmoid(emit(op.add(g[6], g[7]))))
    c = emit(op.multiply(emit(op.tanh(emit(op.add(first, c)))), second))
    m = emit(op.tanh(emit(op.multiply(c, emit(op.tanh(emit(op.add(third, fourth))))))))
    return [emit(op.add(step, integer(1))), c, m]


def nasrnn_arguments(steps: int, batch: int, hidden: int, seed: int = 0) -> list[Array]:
    """Return seeded arguments."""
    random = np.random.default_rng(seed)
    scale = 1 / np.sqrt(hidden)
    shapes = [(steps, batch, hidden), (8, hidden, hidden), (8, hidden, hidden)]
    factors = [1.0, scale, scale]
    return [(random.standard_normal(shape) * by).astype("float32") for shape, by in zip(shapes, factors, strict=True)]


# LSTM: a counted loop over time, in each step of which there are cells one upon the other.


def lstm(steps: int, cells: int, batch: int, hidden: int) -> tvm.IRModule:
    """Return `main(x, *weights)`: x is (steps, batch, hidden); the result is the last cell's last h.

    Each cell has three weights: (4, hidden, hidden) for its input, the same for its state, and 8 biases of `hidden`.
    """
    kinds: dict[str, Kind] = {"x": ((steps, batch, hidden), "float32")}
    for cell in range(cells):
        kinds[f"input_weights{cell}"] = kinds[f"hidden_weights{cell}"] = ((4, hidden, hidden), "float32")
        kinds[f"biases{cell}"] = ((8, hidden), "float32")
    state = ((batch, hidden), "float32")
    states = {f"{name}{cell}": state for cell in range(cells) for name in ("c", "h")}
    loop = FunctionWriter("lstm", {"step": ((), "int64"), **states, **kinds}, state)
    emit, op = loop.emit, relax.op
    step, *others = loop.params.values()
    before, x, weights = others[: 2 * cells], others[2 * cells], others[2 * cells + 1 :]

    def again() -> relax.Expr:
        row, after = emit(op.take(x, step, axis=0)), []
        for cell in range(cells):
            c, h = before[2 * cell : 2 * cell + 2]
            own, own_hidden, biases = weights[3 * cell : 3 * cell + 3]
            both = emit(op.add(_packed_product(loop, row, own), _packed_product(loop, h, own_hidden)))
            bias = emit(op.reshape(emit(op.sum(emit(op.reshape(biases, (2, 4 * hidden))), axis=0)), (1, 4 * hidden)))
            parts = emit(op.split(emit(op.add(both, bias)), 4, axis=1))
            enter, keep, new, leave = (
                emit(function(emit(relax.TupleGetItem(parts, index))))
                for index, function in enumerate((op.sigmoid, op.sigmoid, op.tanh, op.sigmoid))
            )
            c = emit(op.add(emit(op.multiply(keep, c)), emit(op.multiply(enter, new))))
            row = emit(op.multiply(leave, emit(op.tanh(c))))
            after += [c, row]
        return loop.call(loop, emit(op.add(step, integer(1))), *after, x, *weights)

    result = loop.branch(emit(op.less(step, integer(steps))), again, lambda: before[-1])
    main = FunctionWriter("main", kinds, state)
    zeros = [relax.const(np.zeros((batch, hidden), "float32"))] * (2 * cells)
    last = main.call(loop, integer(0), *zeros, *main.params.values())
    return as_module({loop: loop.function(result), main: main.function(last)})


def lstm_arguments(steps: int, cells: int, batch: int, hidden: int, seed: int = 0) -> list[Array]:
    """Return seeded arguments."""
    random = np.random.default_rng(seed)
    shapes = [(4, hidden, hidden), (4, hidden, hidden), (8, hidden)] * cells
    weights = [(random.standard_normal(shape) / np.sqrt(hidden)).astype("float32") for shape in shapes]
    return [random.standard_normal((steps, batch, hidden)).astype("float32"), *weights]


# Attention: one token after the other, whose keys and values are kept.


def attention(first: int, slots: int, batch: int, heads: int, width: int) -> tvm.IRModule:
    """Return `main(x, keys, values, *weights)`: the output of the last of the steps at positions [first, slots).

    x is (batch, heads, 1, width), `keys` and `values` are (batch, heads, slots, width), the weights of queries, keys,
    values and outputs are (heads, width, width). A step's output is the next one's input. Within the loop heads come
    first, so that each product is one of matrices in a single row.
    """
    token, cache = ((heads, batch, width), "float32"), ((heads * batch, slots, width), "float32")
    names = [f"{name}_weights" for name in ("query", "key", "value", "output")]
    kinds: dict[str, Kind] = dict.fromkeys(names, ((heads, width, width), "float32"))
    states: dict[str, Kind] = {"x": token, "keys": cache, "values": cache}
    loop = FunctionWriter("attention", {"position": ((), "int64"), **states, **kinds}, token)
    position, x, keys, values, *weights = loop.params.values()
    emit, op = loop.emit, relax.op

    def again() -> relax.Expr:
        products = (emit(op.matmul(x, weight)) for weight in weights[:3])
        query, key, value = (emit(op.reshape(each, (heads * batch, 1, width))) for each in products)
        is_here = emit(op.equal(relax.const(np.arange(slots).reshape(1, slots, 1), "int64"), position))
        new_keys, new_values = (emit(op.where(is_here, new, old)) for new, old in ((key, keys), (value, values)))
        scores = emit(op.matmul(query, emit(op.permute_dims(new_keys, [0, 2, 1]))))
        shares = emit(op.nn.softmax(emit(op.multiply(scores, relax.const(width**-0.5, "float32")))))
        mixed = emit(op.reshape(emit(op.matmul(shares, new_values)), (heads, batch, width)))
        output = emit(op.matmul(mixed, weights[3]))
        return loop.call(loop, emit(op.add(position, integer(1))), output, new_keys, new_values, *weights)

    result = loop.branch(emit(op.less(position, integer(slots))), again, lambda: x)
    outer = {
        name: ((batch, heads, length, width), "float32") for name, length in zip(states, (1, slots, slots), strict=True)
    }
    main = FunctionWriter("main", {**outer, **kinds}, outer["x"])
    initial = [
        main.emit(op.reshape(main.emit(op.permute_dims(main.params[name], [1, 0, 2, 3])), shape))
        for name, (shape, _) in states.items()
    ]
    last = main.call(loop, integer(first), *initial, *(main.params[name] for name in names))
    last = main.emit(op.permute_dims(main.emit(op.reshape(last, (heads, batch, 1, width))), [1, 0, 2, 3]))
    return as_module({loop: loop.function(result), main: main.function(last)})


def attention_arguments(first: int, slots: int, batch: int, heads: int, width: int, seed: int = 0) -> list[Array]:
    """Return seeded arguments; slots from `first` on are empty."""
    random = np.random.default_rng(seed)
    cache = (batch, heads, slots, width)
    x, keys, values = (random.standard_normal(shape) for shape in ((batch, heads, 1, width), cache, cache))
    keys[:, :, first:] = values[:, :, first:] = 0
    weights = [random.standard_normal((heads, width, width)) / np.sqrt(width) for _ in range(4)]
    return [each.astype("float32") for each in (x, keys, values, *weights)]


# A greedy decoder as in Seq2seq: a while loop whose steps depend on what it computes.

FORCED = 1e6
"""Added to the score of the token that a sentence is to have at a step."""


def decoder(most_steps: int, batch: int, hidden: int, words: int) -> tvm.IRModule:
    """Return `main(token, h, forcing, table, weights, projection)`: steps taken, last tokens, and state.

    One LSTM cell: `weights` is (2 hidden, 4 hidden). `forcing` is (most_steps, batch, words). It ends when all tokens
    are 0, or after `most_steps`.
    """
    state, tokens = ((batch, hidden), "float32"), ((batch,), "int64")
    kinds = {
        "forcing": ((most_steps, batch, words), "float32"),
        "table": ((words, hidden), "float32"),
        "weights": ((2 * hidden, 4 * hidden), "float32"),
        "projection": ((hidden, words), "float32"),
    }
    results = [((), "int64"), tokens, state]
    loop = FunctionWriter("decode", {"step": ((), "int64"), "token": tokens, "h": state, "c": state, **kinds}, results)
    step, token, h, c, forcing, table, weights, projection = loop.params.values()
    emit, op = loop.emit, relax.op

    def again() -> relax.Expr:
        word = emit(op.take(table, token, axis=0))
        sums = emit(op.matmul(emit(op.concat([word, h], axis=1)), weights))
        parts = emit(op.split(sums, 4, axis=1))
        gates = [emit(relax.TupleGetItem(parts, index)) for index in range(4)]
        enter, keep, leave = (emit(op.sigmoid(gate)) for gate in gates[:3])
        added = emit(op.multiply(enter, emit(op.tanh(gates[3]))))
        new_c = emit(op.add(emit(op.multiply(keep, c)), added))
        new_h = emit(op.multiply(leave, emit(op.tanh(new_c))))
        scores = emit(op.add(emit(op.matmul(new_h, projection)), emit(op.take(forcing, step, axis=0))))
        new_token = emit(op.argmax(scores, axis=1))
        return loop.call(loop, emit(op.add(step, integer(1))), new_token, new_h, new_c, *list(loop.params.values())[4:])

    is_open = emit(op.astype(emit(op.not_equal(token, integer(0))), "int32"))
    is_any = emit(op.greater(emit(op.max(is_open)), relax.const(0, "int32")))
    test = emit(op.logical_and(is_any, emit(op.less(step, integer(most_steps)))))
    result = loop.branch(test, again, lambda: relax.Tuple([step, token, h]))
    main = FunctionWriter("main", {"token": tokens, "h": state, **kinds}, results)
    token, h, *others = main.params.values()
    return as_module(
        {loop: loop.function(result), main: main.function(main.call(loop, integer(0), token, h, h, *others))}
    )


def decoder_arguments(lengths: Sequence[int], most_steps: int, hidden: int, words: int, seed: int = 0) -> list[Array]:
    """Return seeded arguments that make sentences of the given numbers of steps."""
    random, batch = np.random.default_rng(seed), len(lengths)
    forcing = np.zeros((most_steps, batch, words), "float32")
    for sentence, length in enumerate(lengths):
        for step in range(most_steps):
            token = random.integers(1, words) if step < length - 1 else 0
            forcing[step, sentence, token] = FORCED
    scale = 1 / np.sqrt(hidden)
    shapes = [(batch, hidden), (words, hidden), (2 * hidden, 4 * hidden), (hidden, words)]
    h, table, weights, projection = ((random.standard_normal(shape) * scale).astype("float32") for shape in shapes)
    return [np.ones(batch, "int64"), h, forcing, table, weights, projection]


# A tree encoder as in RAE: recursion.


def encoder(nodes: int, leaves: int, width: int) -> tvm.IRModule:
    """Return `main(left, right, rows, weights, bias)`, the encoding of node 0 of a tree as (1, width).

    An inner node has its children in `left` and `right`; a leaf has -1 in `left`, and its row in `right`.
    """
    kinds = {
        "left": ((nodes,), "int64"), "right": ((nodes,), "int64"), "rows": ((leaves, width), "float32"),
        "weights": ((2 * width, width), "float32"), "bias": ((width,), "float32"),
    }  # fmt: skip
    result = ((1, width), "float32")
    encode = FunctionWriter("encode", {"node": ((), "int64"), **kinds}, result)
    node, left, right, rows, weights, bias = encode.params.values()
    emit, op, others = encode.emit, relax.op, (left, right, rows, weights, bias)

    def leaf() -> relax.Expr:
        row = emit(op.take(right, node, axis=0))
        return emit(op.reshape(emit(op.take(rows, row, axis=0)), (1, width)))

    def inner() -> relax.Expr:
        children = [encode.call(encode, emit(op.take(children, node, axis=0)), *others) for children in (left, right)]
        product = emit(op.matmul(emit(op.concat(children, axis=1)), weights))
        return emit(op.tanh(emit(op.add(product, bias))))

    is_leaf = emit(op.less(emit(op.take(left, node, axis=0)), integer(0)))
    encoded = encode.branch(is_leaf, leaf, inner)
    main = FunctionWriter("main", kinds, result)
    root = main.call(encode, integer(0), *main.params.values())
    return as_module({encode: encode.function(encoded), main: main.function(root)})


def tree(leaves: int, seed: int = 0) -> tuple[Array, Array]:
    """Return `left` and `right` of a random binary tree with so many leaves; node 0 is its root."""
    random = np.random.default_rng(seed)
    left, right = np.full(2 * leaves - 1, -1), np.zeros(2 * leaves - 1, "int64")
    waiting, used, row = [(0, leaves)], 1, 0
    while waiting:
        node, count = waiting.pop()
        if count == 1:
            right[node], row = row, row + 1
            continue
        first = int(random.integers(1, count))
        left[node], right[node] = used, used + 1
        waiting += [(used, first), (used + 1, count - first)]
        used += 2
    return left.astype("int64"), right


def encoder_arguments(children: tuple[Array, Array], width: int, seed: int = 0) -> list[Array]:
    """Return seeded arguments for a tree."""
    random, leaves = np.random.default_rng(seed), (len(children[0]) + 1) // 2
    shapes = [((leaves, width), 1.0), ((2 * width, width), 1 / np.sqrt(2 * width)), ((width,), 1.0)]
    return [*children, *((random.standard_normal(shape) * scale).astype("float32") for shape, scale in shapes)]
