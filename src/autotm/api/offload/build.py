"""From a module to a planned step: captured, timed, placed, bound to memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autotm.api.offload.addresses import places_of
from autotm.api.offload.execute import Executor, schedule
from autotm.api.offload.measuring import measure
from autotm.api.offload.planning import Ways, place
from autotm.api.offload.step import OffloadedStep, arguments
from autotm.api.offload.step_graph import model_of
from autotm.capture import checked_loss
from autotm.joint_graph import Step, capture
from autotm.memory.torch_arena import Arena
from autotm.memory.torch_device import device_of, measured_links
from autotm.model.config import SolveConfig
from autotm.model.errors import BadInputError
from autotm.optimizer_updates import Update, require_known, with_updates


def build(
    module: Any,
    inputs: tuple[Any, ...],
    loss: Callable[..., Any] | None,
    targets: tuple[Any, ...],
    optimizer: Any,
    budget: tuple[float | None, int],
    node: int | None,
    allowed: tuple[bool, bool, int | None],
    kernel_s: float,
    config: SolveConfig,
) -> OffloadedStep:
    """Build the step of `autotm.offload` from its arguments.

    Args:
        module: as in `autotm.offload`, like all that is not named here.
        inputs: as there.
        loss: as there.
        targets: as there.
        optimizer: as there.
        budget: a share of the plain step's peak, or bytes.
        node: the number of a memory node in the place of the host's memory.
        allowed: whether tensors may be moved, whether operators may run again, and bytes of the host's memory.
        kernel_s: as there.
        config: of the solver.
    """
    device = device_of(_common_device(module, inputs, targets), node)
    if optimizer is not None:
        require_known(optimizer, module)
    captured = capture(module, inputs, loss, targets, device.torch)
    step = Step(captured if optimizer is None else with_updates(captured, optimizer))
    share, size_bytes = budget
    if share is None and device.torch.type == "cuda":
        total = torch.cuda.get_device_properties(device.torch).total_memory
        if size_bytes > total:
            raise BadInputError(
                f"offload: a budget of {size_bytes} bytes; {device.name} has {total}: give at most that"
            )
    measured = measure(step, arguments(step, (*inputs, *targets)), device, kernel_s)
    graph, profile = model_of(step, measured, device.name, device.granularity_bytes)
    size_bytes = size_bytes if share is None else int(share * graph.peak_live_bytes)
    moves, recomputes, host_bytes = allowed
    ways = Ways(moves, recomputes, device.host_bytes() if host_bytes is None else host_bytes)
    links, has_arena = measured_links(device, size_bytes), device.has_arenas
    planned = place(
        *(step, graph, profile, links, ways, size_bytes, config),
        has_arena=has_arena,
        uses_slow_memory=device.uses_slow_memory,
    )
    pool = device.host_pool(planned.host_bytes)
    for states, use_there in ((planned.states, False), (planned.states_in_place, True)):
        for operator, (offset, state_bytes) in states.items():
            update = step.operators[operator].node.target
            assert isinstance(update, Update)
            update.keep_on_host(pool[offset : offset + state_bytes], use_there=use_there)
    arena = None
    if planned.arena_bytes:
        places = places_of(step, planned.graph, planned.runs, planned.plan, planned.layout, measured)
        arena = Arena(planned.arena_bytes, places)
    executor = Executor(step, planned.runs, schedule(planned), pool, device.copies(), measured.sizes, arena)
    if arena is not None:
        arena.make_room()

    def plain(applied: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
        output = applied(*batch[: len(inputs)])
        return checked_loss(output if loss is None else loss(output, *batch[len(inputs) :]))

    return OffloadedStep(module, plain, optimizer, step, planned, executor, device)


def _common_device(module: Any, inputs: tuple[Any, ...], targets: tuple[Any, ...]) -> torch.device:
    """Return the one device that everything is on; BadInputError if there are several, or an argument is at fault."""
    _require_trainable(module)
    named = {f"parameter '{name}'": value for name, value in module.named_parameters()}
    named |= {f"buffer '{name}'": value for name, value in module.named_buffers()}
    batch = {f"input {number}": value for number, value in enumerate(inputs)}
    batch |= {f"target {number}": value for number, value in enumerate(targets)}
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor):
            raise BadInputError(f"offload: {name} is a {type(value).__name__}; give tensors")
        if value.requires_grad:
            raise BadInputError(
                f"offload: {name} requires a gradient; only those of parameters are computed: detach it"
            )
    devices: dict[torch.device, str] = {}
    for name, value in (named | batch).items():
        if type(value) not in {torch.Tensor, nn.Parameter}:
            raise BadInputError(f"offload: {name} is a {type(value).__name__}; only plain tensors are supported")
        devices.setdefault(value.device, name)
    if len(devices) > 1:
        described = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise BadInputError(f"offload: everything must be on one device; {described}")
    return next(iter(devices))


def _require_trainable(module: Any) -> None:
    """Raise BadInputError where there is no gradient to compute, or hooks compute with gradients."""
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
