"""PyTorch's recurrent layers as `scan` over their steps, with their gradient: a step is in the graph once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._higher_order_ops.scan import scan_op
from torch.nn import functional

Tensors = tuple[torch.Tensor, ...]
Cell = Callable[..., Tensors]
"""(sums of the inputs, sums of the states, states) -> new states, the layer's output first; element by element."""


def _lstm_cell(sums: torch.Tensor, own: torch.Tensor, _: torch.Tensor, c: torch.Tensor) -> Tensors:
    enter, keep, new, leave = (sums + own).chunk(4, dim=-1)
    c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * c.tanh(), c


def _gru_cell(sums: torch.Tensor, own: torch.Tensor, h: torch.Tensor) -> Tensors:
    (reset, update, new), (own_reset, own_update, own_new) = sums.chunk(3, dim=-1), own.chunk(3, dim=-1)
    update = (update + own_update).sigmoid()
    new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return (new + update * (h - new),)


def _plain_cell(
    function: Callable[[torch.Tensor], torch.Tensor], sums: torch.Tensor, own: torch.Tensor, _: torch.Tensor
) -> Tensors:
    return (function(sums + own),)


def _all_steps(
    cell: Cell, sums: torch.Tensor, weights: Sequence[torch.Tensor], projection: Tensors, initial: Tensors
) -> Tensors:
    """Return the states of the last step, and those of all steps.

    Args:
        cell: computes a step.
        sums: products of the inputs, with biases, (steps, ..., several times the layer's width).
        weights: of the output's product, and a bias or none.
        projection: what the output is multiplied with, if anything.
        initial: states before the first step.
    """

    def step(*values: torch.Tensor) -> list[torch.Tensor]:
        states, row, more = values[: len(initial)], values[len(initial)], values[len(initial) + 1 :]
        new = cell(row, functional.linear(states[0], *more[: len(weights)]), *states)
        if projection:
            new = (functional.linear(new[0], more[-1]), *new[1:])
        return [*new, *(state.clone() for state in new)]

    return tuple(scan_op(step, list(initial), [sums], (*weights, *projection)))


class _Recurrence(torch.autograd.Function):
    """`_all_steps` without a projection, with a loop backward over the states that the one forward has kept.

    PyTorch's own gradient of `scan` refuses a step that both keeps and passes on a state, as `tanh` does.
    """

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        sums: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *initial: torch.Tensor,
    ) -> Tensors:
        ctx.set_materialize_grads(False)
        results = _all_steps(cell, sums, [weight] if bias is None else [weight, bias], (), initial)
        ctx.cell, ctx.has_bias = cell, bias is not None
        ctx.save_for_backward(sums, weight, bias, *initial, *results[len(initial) :])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        sums, weight, bias, *states = ctx.saved_tensors
        count = len(states) // 2
        initial, kept = states[:count], states[count:]
        before = [torch.cat([first.unsqueeze(0), rows[:-1]]) for first, rows in zip(initial, kept, strict=True)]
        own = functional.linear(before[0], weight, bias)
        # Of the states of all steps, other layers read the first only; None stands for zeros.
        arriving = {index: rows for index, rows in enumerate(gradients[count:]) if rows is not None}

        def step(*values: torch.Tensor) -> list[torch.Tensor]:
            passed, (row, own_row) = list(values[:count]), values[count : count + 2]
            states, product = values[count + 2 : 2 * count + 2], values[-1]
            for index, value in zip(arriving, values[2 * count + 2 : -1], strict=True):
                passed[index] = passed[index] + value
            _, pull = torch.func.vjp(ctx.cell, row, own_row, *states)
            of_row, of_own, *of_states = pull(tuple(passed))
            of_states[0] = of_states[0] + of_own @ product
            return [*(state.clone() for state in of_states), of_row.clone(), of_own.clone()]

        last = [
            torch.zeros_like(first) if given is None else given
            for first, given in zip(initial, gradients[:count], strict=True)
        ]
        rows = [row.flip(0) for row in (sums, own, *before, *arriving.values())]
        *of_initial, of_sums, of_own = scan_op(step, last, rows, (weight,))
        of_own = of_own.flip(0)
        flat = of_own.flatten(0, -2)
        of_bias = flat.sum(0) if ctx.has_bias else None
        return None, of_sums.flip(0), flat.T @ before[0].flatten(0, -2), of_bias, *of_initial


def _layers(
    cell: Cell,
    function: Callable[..., Tensors],
    x: torch.Tensor,
    initial: torch.Tensor | Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    is_bidirectional: bool,
    batch_first: bool,
) -> Tensors:
    """Compute what `function`, one of `torch.lstm` and its like, computes for the arguments behind it.

    The products with the inputs of all steps are one, before the loop; so is the sum of both biases, but for a GRU's.
    """
    whole = [initial] if isinstance(initial, torch.Tensor) else list(initial)
    directions = 2 if is_bidirectional else 1
    each = len(weights) // (layers * directions)
    has_projections = each == (5 if has_biases else 3)
    if has_projections and torch.is_grad_enabled():
        return function(x, initial, weights, has_biases, layers, dropout, train, is_bidirectional, batch_first)
    x = x.transpose(0, 1) if batch_first else x
    last: list[Tensors] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            own, own_state, *others = weights[number * each : (number + 1) * each]
            (first, second), projection = (others[:2], others[2:]) if has_biases else ((None, None), others)
            if cell is not _gru_cell and has_biases:
                first, second = first + second, None
            sums = functional.linear(x, own, first)
            sums = sums.flip(0) if direction else sums
            states = tuple(one[number] for one in whole)
            if torch.is_grad_enabled():
                results = _Recurrence.apply(cell, sums, own_state, second, *states)
            else:
                results = _all_steps(
                    cell, sums, [own_state] if second is None else [own_state, second], tuple(projection), states
                )
            output = results[len(states)]
            outputs.append(output.flip(0) if direction else output)
            last.append(results[: len(states)])
        x = torch.cat(outputs, dim=-1) if is_bidirectional else outputs[0]
        if dropout and train and layer < layers - 1:
            x = functional.dropout(x, dropout)
    kept = [torch.stack(one) for one in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *kept)


_CELLS: dict[Callable[..., Tensors], Cell] = {
    torch.lstm: _lstm_cell,
    torch.gru: _gru_cell,
    torch.rnn_tanh: partial(_plain_cell, torch.tanh),
    torch.rnn_relu: partial(_plain_cell, torch.relu),
}
REPLACED = {function: partial(_layers, cell, function) for function, cell in _CELLS.items()}
"""What the modules call in place of PyTorch's functions, for `capture`."""
