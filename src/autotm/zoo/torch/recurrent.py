"""PyTorch's recurrent layers as `scan` over their steps: as PyTorch traces them, each step is in the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch._higher_order_ops.scan import scan_op
from torch.nn import functional

States = tuple[torch.Tensor, ...]
Cell = Callable[[torch.Tensor, States, Sequence[torch.Tensor]], States]
"""(sums of the inputs, states, weights of the states) -> new states, the layer's output first."""


def _lstm_cell(sums: torch.Tensor, states: States, weights: Sequence[torch.Tensor]) -> States:
    h, c = states
    enter, keep, new, leave = (sums + functional.linear(h, weights[0])).chunk(4, dim=-1)
    c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
    h = leave.sigmoid() * c.tanh()
    return (functional.linear(h, weights[1]) if len(weights) > 1 else h), c


def _gru_cell(sums: torch.Tensor, states: States, weights: Sequence[torch.Tensor]) -> States:
    (h,) = states
    reset, update, new = sums.chunk(3, dim=-1)
    own = functional.linear(h, *weights).chunk(3, dim=-1)
    update = (update + own[1]).sigmoid()
    new = (new + (reset + own[0]).sigmoid() * own[2]).tanh()
    return (new + update * (h - new),)


def _plain_cell(
    function: Callable[[torch.Tensor], torch.Tensor],
    sums: torch.Tensor,
    states: States,
    weights: Sequence[torch.Tensor],
) -> States:
    (h,) = states
    return (function(sums + functional.linear(h, weights[0])),)


def _layers(
    cell: Cell,
    x: torch.Tensor,
    initial: torch.Tensor | Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    is_bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute what `torch.lstm` and its like compute for the same arguments: the output, and the last states.

    The products with the inputs of all steps are one, before the loop; so is the sum of both biases, but for a GRU's.
    PyTorch's `scan` would trace each step twice, first to find the tensors that it reads from outside.
    """

    def step(*values: torch.Tensor) -> list[torch.Tensor]:
        states, sums, recurrent = values[: len(whole)], values[len(whole)], values[len(whole) + 1 :]
        new = cell(sums, states, recurrent)
        return [*new, new[0].clone()]

    whole = [initial] if isinstance(initial, torch.Tensor) else list(initial)
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if is_bidirectional else 1
    each = len(weights) // (layers * directions)
    last: list[States] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            own, own_state, *others = weights[number * each : (number + 1) * each]
            biases, others = (others[:2], others[2:]) if has_biases else ([], others)
            recurrent = [own_state, *others]
            if cell is _gru_cell:
                sums = functional.linear(x, own, *biases[:1])
                recurrent += biases[1:]
            else:
                sums = functional.linear(x, own, biases[0] + biases[1] if biases else None)

            sums = sums.flip(0) if direction else sums
            *states, output = scan_op(step, [one[number] for one in whole], [sums], tuple(recurrent))
            outputs.append(output.flip(0) if direction else output)
            last.append(tuple(states))
        x = torch.cat(outputs, dim=-1) if is_bidirectional else outputs[0]
        if dropout and train and layer < layers - 1:
            x = functional.dropout(x, dropout)
    kept = [torch.stack(one) for one in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *kept)


REPLACED = {
    torch.lstm: partial(_layers, _lstm_cell),
    torch.gru: partial(_layers, _gru_cell),
    torch.rnn_tanh: partial(_layers, partial(_plain_cell, torch.tanh)),
    torch.rnn_relu: partial(_layers, partial(_plain_cell, torch.relu)),
}
"""What the modules call in place of PyTorch's functions, for `capture`."""
