"""What a step leaves behind, by plain PyTorch and by a plan: the same bits, or the operator that is to blame."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from autotm.joint_graph import Step, Values, call_of, keep, tensors_of
from autotm.model.errors import AutotmError
from autotm.optimizer_updates import Update

Results = Mapping[str, torch.Tensor]
"""The loss, gradients, parameters and buffers after a step, by what they are called in messages."""


def results_of(module: nn.Module, optimizer: torch.optim.Optimizer | None, loss: torch.Tensor) -> Results:
    """Return what a step of a module left behind, and what an optimizer that is part of it did."""
    gradients = {
        f"the gradient of '{name}'": own.grad for name, own in module.named_parameters() if own.grad is not None
    }
    states = {f"'{name}'": own.detach() for name, own in (*module.named_parameters(), *module.named_buffers())}
    kept = {
        f"'{key}' of the optimizer for '{name}'": value.to(own.device)
        for name, own in (module.named_parameters() if optimizer is not None else ())
        for key, value in optimizer.state.get(own, {}).items()
        if isinstance(value, torch.Tensor)
    }
    return {"the loss": loss.detach(), **gradients, **states, **kept}


def plain_results(
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    plain: Callable[..., torch.Tensor],
    batch: Sequence[torch.Tensor],
    device: torch.device,
) -> Results:
    """Return what a step by plain PyTorch leaves behind, in a copy of the module; the generator stays where it is.

    Args:
        module: as it is before the step.
        optimizer: whose update is part of the step.
        plain: computes the loss from a module and the batch.
        batch: inputs and targets.
        device: that it runs on.
    """
    twin, other = copy.deepcopy((module, optimizer))
    if other is not None:
        other.load_state_dict(other.state_dict())  # Puts its state on the device.
    for own, given in zip(twin.parameters(), module.parameters(), strict=True):
        own.grad = None if given.grad is None else given.grad.clone()
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        loss = plain(twin, *(tensor.clone() for tensor in batch))
        loss.backward()
    if other is not None:
        other.step()
        other.zero_grad()
    return results_of(twin, other, loss)


def require_same(actual: Results, wanted: Results, step: Step, values: Values) -> None:
    """Raise AutotmError where results differ in any bit.

    Args:
        actual: by the plan.
        wanted: by plain PyTorch.
        step: that was planned; if results differ, its operators are called twice each.
        values: with those of the arguments.
    """
    differing = [name for name in wanted if name not in actual or not _is_same(actual[name], wanted[name])]
    if not differing:
        return
    first, others = differing[0], len(differing) - 1
    by = f" by up to {(actual[first] - wanted[first]).abs().max():.3g}" if first in actual else ", which is missing"
    unsteady = _unsteady_operator(step, values)
    reason = (
        f"operator '{unsteady}' gives other bits when it is called again; see torch.use_deterministic_algorithms"
        if unsteady
        else "every operator gives the same bits when it is called again: so the plan is wrong, or PyTorch computes a "
        "captured step by other operators, as it does for batch norm on a GPU"
    )
    raise AutotmError(
        f"offload: {first} differs from that of plain PyTorch{by}, and {others} other results do; {reason}"
    )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.shape == other.shape and torch.equal(*bits)


def _unsteady_operator(step: Step, values: Values) -> str:
    """Return the name of the first operator that gives other bits when it is called again; empty where none does."""
    devices = {tensor.device for value in values.values() for tensor in tensors_of(value)}
    with torch.no_grad():
        for view in step.argument_views:
            values[view] = call_of(view)(values)
        for index, operator in enumerate(step.operators):
            if isinstance(operator.node.target, Update):  # PyTorch's are the same, and this one would change anything.
                continue
            call = call_of(operator.node)
            with torch.random.fork_rng([device for device in devices if device.type == "cuda"]):
                before = [tensor.contiguous() for tensor in tensors_of(call(values))]
            result = call(values)
            if not all(map(_is_same, before, tensors_of(result))):
                return f"{operator.node.target} ({operator.node.name})"
            keep(step, values, operator, result)
            for place in (*operator.inputs, *operator.outputs):
                storage = step.storages[place]
                if storage.argument is None and index >= storage.last:
                    values.update(dict.fromkeys(storage.nodes))
    return ""
