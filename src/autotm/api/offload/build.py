"""From a module to a planned step: captured, timed, placed, bound to memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autotm.api.offload.execute import Executor, schedule
from autotm.api.offload.joint_graph import Slots, Step, capture, step_of
from autotm.api.offload.measuring import Measured, measure
from autotm.api.offload.planning import model_of, place, require_budget
from autotm.api.offload.step import OffloadedStep, arguments
from autotm.memory.torch_device import Device, device_of, measured_links
from autotm.model.config import SolveConfig
from autotm.model.errors import BadInputError
from autotm.model.profile import Timing


def build(
    module: Any,
    inputs: tuple[Any, ...],
    loss: Callable[..., Any] | None,
    targets: tuple[Any, ...],
    budget: tuple[float | None, int],
    optimizer: str,
    kernel_s: float,
    config: SolveConfig,
) -> OffloadedStep:
    """As `autotm.offload`, whose arguments these are; `budget` is a share of the plain step's peak, or bytes."""
    device = device_of(_common_device(module, inputs, targets))
    captured = capture(module, inputs, loss, targets, device.torch)
    step = step_of(captured)
    slots = Slots(list(captured.graph.graph.nodes))
    share, size_bytes = budget
    if share is None:
        _require_possible(step, device, size_bytes)
    values = arguments(captured, step, slots, (*inputs, *targets))
    measured = measure(step, slots, values, device, kernel_s)
    graph, profile = model_of(step, measured, device)
    size_bytes = size_bytes if share is None else int(share * graph.peak_live_bytes)
    links = measured_links(device, size_bytes)
    planned = place(graph, profile, links, optimizer, size_bytes, config)
    places = {
        tensor.name: number
        for number, (tensor, storage) in enumerate(zip(graph.tensors, step.storages, strict=False))
        if storage.argument is None
    }
    before = schedule(planned.plan, planned.layout, places, len(graph.kernels))
    pool = device.host_pool(planned.layout.slow_bytes)
    executor = Executor(step, slots, before, pool, device.copies(), measured.sizes)
    return OffloadedStep(module, step, slots, planned, executor, device)


def _require_possible(step: Step, device: Device, size_bytes: int) -> None:
    """Refuse a budget that no plan can keep before anything is timed; workspaces are not known yet, and only add to it.

    Raises:
        InfeasibleLimitError: names the least, without workspaces.
        BadInputError: the device has less memory.
    """
    count = len(step.operators)
    unknown = Measured(
        (Timing(1, 1, 1, 1, 0),) * count,
        tuple(operator.node.name for operator in step.operators),
        (0,) * count,
        tuple(storage.size_bytes for storage in step.storages),
    )
    require_budget(model_of(step, unknown, device)[0], size_bytes, " and its workspace")
    if device.torch.type == "cuda":
        total = torch.cuda.get_device_properties(device.torch).total_memory
        if size_bytes > total:
            raise BadInputError(
                f"offload: a budget of {size_bytes} bytes; {device.name} has {total}: give at most that"
            )


def _common_device(module: Any, inputs: tuple[Any, ...], targets: tuple[Any, ...]) -> torch.device:
    """The one device that everything is on.

    Raises:
        BadInputError: there are several, or an argument is none that a step can be made of.
    """
    _require_trainable(module)
    named = {f"parameter '{name}'": value for name, value in module.named_parameters()}
    named |= {f"buffer '{name}'": value for name, value in module.named_buffers()}
    given = {f"input {number}": value for number, value in enumerate(inputs)}
    given |= {f"target {number}": value for number, value in enumerate(targets)}
    for name, value in given.items():
        if not isinstance(value, torch.Tensor):
            raise BadInputError(f"offload: {name} is a {type(value).__name__}; give tensors")
        if value.requires_grad:
            raise BadInputError(
                f"offload: {name} requires a gradient; only those of parameters are computed: detach it"
            )
    devices: dict[torch.device, str] = {}
    for name, value in (named | given).items():
        if type(value) not in {torch.Tensor, nn.Parameter}:
            raise BadInputError(f"offload: {name} is a {type(value).__name__}; only plain tensors are supported")
        devices.setdefault(value.device, name)
    if len(devices) > 1:
        found = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise BadInputError(f"offload: everything must be on one device; {found}")
    return next(iter(devices))


def _require_trainable(module: Any) -> None:
    """Raises BadInputError where there is no gradient to compute, or hooks compute with them."""
    if not isinstance(module, nn.Module):
        raise BadInputError(f"offload: the module is a {type(module).__name__}; give a torch.nn.Module")
    if type(module).__name__ in {"DistributedDataParallel", "FullyShardedDataParallel"}:
        raise BadInputError(
            f"offload: {type(module).__name__} exchanges gradients in hooks, which would not run; give its module, and "
            "exchange .grad yourself"
        )
    if not torch.is_grad_enabled():
        raise BadInputError("offload: gradients are switched off (torch.no_grad); make the step outside of it")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise BadInputError("offload: no parameter of the module requires a gradient; call module.requires_grad_()")
