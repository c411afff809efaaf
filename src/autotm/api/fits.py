"""`autotm.fits(module, ...)`: what memory a training step of PyTorch needs, without allocating any of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotm.api.offload.entry import require_torch
from autotm.model.step_memory import StepMemory, budget_of


def fits(
    module: Any,
    inputs: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    budget: str | float | None = None,
    *,
    targets: Sequence[Any] = (),
) -> StepMemory:
    """Predict what memory a training step needs, by cause, by module, and when it is most.

    Two steps run over tensors without memory, so that a module of billions of parameters takes a laptop seconds, and no
    GPU is needed. Forward, backward and the optimizer's update are PyTorch's own, in its order.

    Args:
        module: in the mode, training or evaluation, in which it is to run; or a function that makes it, which is
            called so that its parameters take no memory either.
        inputs: a tensor, or a tuple of tensors: an example of what the module is called with.
        loss: gives a scalar from the module's output and the targets; without it the module returns its loss.
        optimizer: of the module's parameters; or a function that makes one of parameters, such as `torch.optim.AdamW`;
            without one a step ends with the gradients.
        budget: bytes, as `8GB`, `4GiB` or a number: whether the step fits.
        targets: what the loss takes behind the module's output.

    Returns:
        The memory of the first step and of later ones. Printed it is a table.

    Raises:
        BadInputError: an argument is at fault, or the step depends on the values of tensors.
        AutotmError: PyTorch is missing or too old.
    """
    budget_bytes = None if budget is None else budget_of(budget)
    require_torch("fits")
    from autotm.memory.torch_step import step_memory  # noqa: PLC0415 - imports PyTorch

    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return step_memory(module, inputs, loss, optimizer, tuple(targets), budget_bytes)
