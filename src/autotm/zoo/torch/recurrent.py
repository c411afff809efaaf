"""PyTorch's recurrent layers as `scan` over their steps, with their gradient: a step is in the graph once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._higher_order_ops.scan import scan_op
from torch.fx import traceback as fx_traceback
from torch.nn import functional

from autotm.model.errors import BadInputError
from autotm.zoo.torch.program import innermost_line

Tensors = tuple[torch.Tensor, ...]
Step = Callable[..., Sequence[torch.Tensor]]
"""(states, a row of each input, what all steps read) -> new states, a row of each output."""
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
    cell: Cell,
    sums: torch.Tensor,
    weights: Sequence[torch.Tensor],
    projection: Tensors,
    initial: Tensors,
    *,
    keeps_products: bool = False,
) -> Tensors:
    """Return the states of the last step, and those of all steps; then the products of all steps, if they are kept.

    Args:
        cell: computes a step.
        sums: products of the inputs, with biases, (steps, ..., several times the layer's width).
        weights: of the output's product, and a bias or none.
        projection: what the output is multiplied with, if anything.
        initial: states before the first step.
        keeps_products: whether the products of the outputs are results too.
    """

    def step(*values: torch.Tensor) -> list[torch.Tensor]:
        states, row, more = values[: len(initial)], values[len(initial)], values[len(initial) + 1 :]
        own = functional.linear(states[0], *more[: len(weights)])
        new = cell(row, own, *states)
        if projection:
            new = (functional.linear(new[0], more[-1]), *new[1:])
        return [*new, *(state.clone() for state in new), *([own.clone()] if keeps_products else [])]

    return tuple(scan_op(step, list(initial), [sums], (*weights, *projection)))


_KEPT_BYTES = 1 << 28
"""Products of a layer's outputs are kept for its gradient up to this size; larger ones are computed again, as one
product of all steps: a seventh of the layer's multiply-adds in training."""


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
        weights, keeps = [weight] if bias is None else [weight, bias], sums.nbytes <= _KEPT_BYTES
        results = _all_steps(cell, sums, weights, (), initial, keeps_products=keeps)
        results, products = results[: 2 * len(initial)], results[2 * len(initial) :]
        ctx.cell, ctx.has_bias, ctx.count = cell, bias is not None, len(initial)
        ctx.save_for_backward(sums, weight, bias, *initial, *results[len(initial) :], *products)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        sums, weight, bias, *states = ctx.saved_tensors
        count = ctx.count
        initial, kept, products = states[:count], states[count : 2 * count], states[2 * count :]
        before = [torch.cat([first.unsqueeze(0), rows[:-1]]) for first, rows in zip(initial, kept, strict=True)]
        own = products[0] if products else functional.linear(before[0], weight, bias)
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


class _Scan(torch.autograd.Function):
    """A `scan` of the module's own, with a loop backward over the states before each step, which the one forward keeps.

    What a step computes besides is computed again. Gradients of what all steps read are added up, step by step.
    """

    @staticmethod
    def forward(ctx: Any, combine: Step, counts: tuple[int, int], *values: torch.Tensor) -> Tensors:
        ctx.set_materialize_grads(False)
        states, _ = counts
        initial, rows, fixed = _parts(values, counts)

        def keeping(*step: torch.Tensor) -> list[torch.Tensor]:
            return [*combine(*step), *(state.clone() for state in step[:states])]

        results = tuple(scan_op(keeping, initial, rows, tuple(fixed)))
        ctx.combine, ctx.counts, ctx.place = combine, counts, innermost_line(fx_traceback.get_current_meta(), "scan")
        # Sizes that are not known while PyTorch traces are numbers among what all steps read.
        ctx.numbers = {index: value for index, value in enumerate(values) if not isinstance(value, torch.Tensor)}
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        ctx.save_for_backward(*tensors, *results[len(results) - states :])
        return results[: len(results) - states]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        states, rows_count = ctx.counts
        values, kept = list(ctx.saved_tensors[: len(ctx.saved_tensors) - states]), ctx.saved_tensors[-states:]
        for index, number in ctx.numbers.items():
            values.insert(index, number)
        initial, rows, fixed = _parts(values, ctx.counts)
        inputs = (*initial, *rows, *fixed)
        # Counters and other whole numbers have no gradient; None stands for zeros.
        real = [index for index, value in enumerate(inputs) if _is_real(value)]
        passed = [index for index in real if index < states]
        added = [index for index in real if index >= states + rows_count]
        arriving = {index: rows for index, rows in enumerate(gradients) if index >= states and rows is not None}

        def step(*now: torch.Tensor) -> list[torch.Tensor]:
            of_states, sums = now[: len(passed)], now[len(passed) : len(passed) + len(added)]
            taken = now[len(passed) + len(added) :]
            given, own = taken[: len(arriving)], list(taken[len(arriving) :])  # The arguments of the step.
            results: list[int] = []

            def differentiable(*changed: torch.Tensor) -> Tensors:
                for index, value in zip(real, changed, strict=True):
                    own[index] = value
                outputs = ctx.combine(*own)
                results[:] = [index for index, value in enumerate(outputs) if _is_real(value)]
                return tuple(outputs[index] for index in results)

            try:
                outputs, pull = torch.func.vjp(differentiable, *(own[index] for index in real))
            except KeyError as error:  # An operator on functions has no rule for this.
                raise BadInputError(
                    f"{ctx.place}: a step holds a loop or a branch, through which no gradient is computed; write that "
                    "out, without an operator on functions"
                ) from error
            known = dict(zip(passed, of_states, strict=True)) | dict(zip(arriving, given, strict=True))
            pulled = pull(
                tuple(
                    known[index] if index in known else torch.zeros_like(output)
                    for index, output in zip(results, outputs, strict=True)
                )
            )
            of = dict(zip(real, pulled, strict=True))
            sums = [total + of[index] for index, total in zip(added, sums, strict=True)]
            of_rows = [of[index].clone() for index in real if states <= index < states + rows_count]
            return [*(of[index].clone() for index in passed), *sums, *of_rows]

        last = [torch.zeros_like(initial[index]) if gradients[index] is None else gradients[index] for index in passed]
        zeros = [torch.zeros_like(inputs[index]) for index in added]
        backward = [row.flip(0) for row in (*arriving.values(), *kept, *rows)]
        results = list(scan_op(step, [*last, *zeros], backward, tuple(fixed)))
        found: dict[int, torch.Tensor] = dict(zip([*passed, *added], results, strict=False))
        of_rows = [index for index in real if states <= index < states + rows_count]
        found |= {index: row.flip(0) for index, row in zip(of_rows, results[len(found) :], strict=True)}
        return None, None, *(found.get(index) for index in range(len(inputs)))


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _parts(values: Sequence[torch.Tensor], counts: tuple[int, int]) -> tuple[list[torch.Tensor], ...]:
    """Return the initial states, the rows and what all steps read."""
    states, rows = counts
    return list(values[:states]), list(values[states : states + rows]), list(values[states + rows :])


@contextmanager
def scans_have_gradients() -> Iterator[None]:
    """Let `scan` have the gradient of this module while a step is traced."""

    def with_gradient(combine: Step, initial: Tensors, rows: Tensors, fixed: Tensors) -> Tensors:
        values = (*initial, *rows, *fixed)
        if not torch.is_grad_enabled() or not any(_is_real(value) and value.requires_grad for value in values):
            with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - as operators on functions do
                return scan_op(combine, initial, rows, fixed)
        return _Scan.apply(combine, (len(initial), len(rows)), *values)

    kernels = {key: kernel for key, kernel in scan_op.py_kernels.items() if "Autograd" in str(key)}
    scan_op.py_kernels.update(dict.fromkeys(kernels, with_gradient))
    scan_op._dispatch_cache.clear()  # noqa: SLF001 - as `torch.export` does where it changes kernels
    try:
        yield
    finally:
        scan_op.py_kernels.update(kernels)
        scan_op._dispatch_cache.clear()  # noqa: SLF001


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
) -> Tensors:
    """Compute what `torch.lstm`, or one of its like, computes for the arguments behind the cell.

    The products with the inputs of all steps are one, before the loop; so is the sum of both biases, but for a GRU's.
    """
    whole = [initial] if isinstance(initial, torch.Tensor) else list(initial)
    directions = 2 if is_bidirectional else 1
    each = len(weights) // (layers * directions)
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
            if torch.is_grad_enabled() and not projection:
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
REPLACED = {function: partial(_layers, cell) for function, cell in _CELLS.items()}
"""What the modules call in place of PyTorch's functions, for `capture`."""
