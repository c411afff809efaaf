"""The models of loops and recursion in NumPy, in float64; and a tree as deep as it can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def nasrnn(x: Array, input_weights: Array, hidden_weights: Array) -> Array:
    """Compute `nasrnn` in float64."""
    x, input_weights, hidden_weights = (each.astype("float64") for each in (x, input_weights, hidden_weights))
    c = m = np.zeros(x.shape[1:])
    relu = lambda x: np.maximum(x, 0)  # noqa: E731
    functions = [_sigmoid, relu, _sigmoid, relu, np.tanh, _sigmoid, np.tanh, _sigmoid]
    for row in x:
        sums = row @ input_weights + m @ hidden_weights
        g = [function(part) for function, part in zip(functions, sums, strict=True)]
        c = np.tanh(np.tanh(g[0] * g[1]) + c) * np.tanh(g[2] + g[3])
        m = np.tanh(c * np.tanh(np.tanh(g[4] * g[5]) + _sigmoid(g[6] + g[7])))
    return c + m


def lstm(x: Array, *weights: Array) -> Array:
    """Compute `lstm` in float64."""
    states = [(np.zeros(x.shape[1:]),) * 2] * (len(weights) // 3)
    for step in x.astype("float64"):
        row = step
        for cell, (c, h) in enumerate(states):
            own, own_hidden, biases = weights[3 * cell : 3 * cell + 3]
            sums = row @ own + h @ own_hidden + biases.astype("float64").reshape(2, 4, 1, -1).sum(axis=0)
            new_c = _sigmoid(sums[1]) * c + _sigmoid(sums[0]) * np.tanh(sums[2])
            row = _sigmoid(sums[3]) * np.tanh(new_c)
            states[cell] = new_c, row
    return row


def attention(first: int, x: Array, keys: Array, values: Array, *weights: Array) -> Array:
    """Compute `attention` in float64."""
    x, keys, values = (each.astype("float64") for each in (x, keys, values))
    for position in range(first, keys.shape[2]):
        query, key, value = (x @ weight for weight in weights[:3])
        keys[:, :, position], values[:, :, position] = key[:, :, 0], value[:, :, 0]
        shares = np.exp(query @ keys.swapaxes(2, 3) * keys.shape[3] ** -0.5)
        x = shares / shares.sum(axis=-1, keepdims=True) @ values @ weights[3]
    return x


def decoder(
    token: Array, h: Array, forcing: Array, table: Array, weights: Array, projection: Array
) -> tuple[Array, ...]:
    """Compute `decoder` in float64."""
    c, step = h, 0
    while token.any() and step < len(forcing):
        sums = np.concatenate([table[token], h], axis=1, dtype="float64") @ weights
        enter, keep, leave, new = np.split(sums, 4, axis=1)
        c = _sigmoid(keep) * c + _sigmoid(enter) * np.tanh(new)
        h = _sigmoid(leave) * np.tanh(c)
        token = (h @ projection + forcing[step]).argmax(axis=1)
        step += 1
    return np.array(step), token, h


def chain(leaves: int) -> tuple[Array, Array]:
    """Return `left` and `right` of a tree whose left children are all leaves: as deep as it can be."""
    left, right = np.full(2 * leaves - 1, -1), np.zeros(2 * leaves - 1, "int64")
    for inner in range(leaves - 1):
        left[2 * inner], right[2 * inner] = 2 * inner + 1, 2 * inner + 2
        right[2 * inner + 1] = inner
    right[-1] = leaves - 1
    return left.astype("int64"), right


def encoder(left: Array, right: Array, rows: Array, weights: Array, bias: Array) -> Array:
    """Compute `encoder` in float64, children before their parents."""
    values: dict[int, Array] = {}
    for node in reversed(range(len(left))):
        if left[node] < 0:
            values[node] = rows[None, right[node]].astype("float64")
        else:
            both = np.concatenate([values[left[node]], values[right[node]]], axis=1)
            values[node] = np.tanh(both @ weights + bias)
    return values[0]
