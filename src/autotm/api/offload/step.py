"""A planned step of PyTorch, called with a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from autotm.api.offload.execute import Executor
from autotm.api.offload.planning import Planned
from autotm.api.offload.verifying import plain_results, require_same, results_of
from autotm.joint_graph import Step, Values, named_batch
from autotm.memory.torch_device import Device
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import Tier
from autotm.model.provenance import commit, cpu_signature, versions
from autotm.optimizer_updates import Update


@dataclass(frozen=True)
class OffloadSummary:
    """A plan for a step of PyTorch, in numbers; times are predicted from operators and copies timed on the device.

    Attributes:
        device: that was timed.
        budget_bytes: that were allowed.
        planned_peak_bytes: the most device memory that is in use at once.
        arena_bytes: of the one piece of device memory in which all that the step allocates has its place; 0 where
            PyTorch's allocator chooses places, on a GPU or without a C++ compiler, and loses memory between them.
        plain_peak_bytes: the same with nothing moved.
        least_bytes: no step of this graph needs less: the largest operator with its operands, and what never moves.
        host_bytes: of pinned memory, or of a memory node.
        in_place_bytes: of that, an optimizer's state that is used on the node.
        moved_out_bytes, moved_in_bytes: copied to the host and back in a step.
        recomputed: operators that run again.
        predicted_s: of a step.
        recomputed_s: of that, what runs again.
        plain_s: of a step with nothing moved, and nothing computed again: its operators alone.
        bound_s: no plan is predicted to take less.
        gap: share of the predicted time that is not proven necessary, in [0, 1].
    """

    device: str
    budget_bytes: int
    planned_peak_bytes: int
    arena_bytes: int
    plain_peak_bytes: int
    least_bytes: int
    host_bytes: int
    in_place_bytes: int
    moved_out_bytes: int
    moved_in_bytes: int
    recomputed: int
    predicted_s: float
    recomputed_s: float
    plain_s: float
    bound_s: float
    gap: float

    def __str__(self) -> str:
        arena = f" ({self.arena_bytes / 1e6:.6g} MB in one piece)" if self.arena_bytes else ""
        in_place = f", {self.in_place_bytes / 1e6:.6g} MB of it used there" if self.in_place_bytes else ""
        return (
            f"{self.device}: {self.planned_peak_bytes / 1e6:.6g} MB of device memory planned{arena}, "
            f"{self.budget_bytes / 1e6:.6g} MB allowed, {self.plain_peak_bytes / 1e6:.6g} MB with nothing moved, "
            f"{self.least_bytes / 1e6:.6g} MB at the least; {self.moved_out_bytes / 1e6:.6g} MB out and "
            f"{self.moved_in_bytes / 1e6:.6g} MB back a step through {self.host_bytes / 1e6:.6g} MB of host memory"
            f"{in_place}; "
            f"{self.recomputed} operators again, {self.recomputed_s:.6g} s; "
            f"{self.predicted_s:.6g} s a step predicted ({self.plain_s:.6g} s with nothing moved), bound "
            f"{self.bound_s:.6g} s, gap {self.gap:.2%}"
        )


@dataclass(frozen=True)
class MeasuredStep:
    """One step, as measured, beside its plan. On a CPU the time includes what counting the memory takes.

    Attributes:
        loss: of the batch.
        peak_bytes: the most device memory that was taken at once: parameters, buffers and the batch, and the step's
            arena with what was allocated outside of it; without an arena what PyTorch's allocator counts.
        step_s: how long it took.
        moved_out_bytes, moved_in_bytes: copied to the host and back.
        plan: what was allowed, planned and predicted.
    """

    loss: torch.Tensor
    peak_bytes: int
    step_s: float
    moved_out_bytes: int
    moved_in_bytes: int
    plan: OffloadSummary

    def __str__(self) -> str:
        plan = self.plan
        return (
            f"{self.peak_bytes / 1e6:.6g} MB of device memory measured ({plan.planned_peak_bytes / 1e6:.6g} MB "
            f"planned, {plan.budget_bytes / 1e6:.6g} MB allowed); {self.moved_out_bytes / 1e6:.6g} MB moved out and "
            f"{self.moved_in_bytes / 1e6:.6g} MB back; {self.step_s:.6g} s measured ({plan.predicted_s:.6g} s "
            f"predicted, bound {plan.bound_s:.6g} s)"
        )


class OffloadedStep:
    """Forward and backward of a module within a budget of device memory; made by `autotm.offload`.

    Calling it computes the loss of a batch, leaves gradients in `.grad` (added to those that are there) and updates
    buffers, as `loss.backward()` does. Parameters are the module's own: any optimizer updates them. One that was given
    to `autotm.offload` does so during the step, and leaves no gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        plain: Callable[..., torch.Tensor],
        optimizer: torch.optim.Optimizer | None,
        step: Step,
        planned: Planned,
        executor: Executor,
        device: Device,
    ) -> None:
        """Take a planned step of a module; `plain` computes its loss from a module and a batch."""
        self._module, self._plain, self._optimizer, self._step = module, plain, optimizer, step
        self._planned, self._executor, self._device = planned, executor, device
        targets = (operator.node.target for operator in step.operators)
        self._updates = [target for target in targets if isinstance(target, Update)]
        self._is_training = module.training
        self._is_closed = False

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        """Run a step.

        Args:
            batch: inputs and targets, of the shapes and types that the step was made for.

        Returns:
            The loss, without a graph behind it.

        Raises:
            BadInputError: the batch has other shapes or types, the module another mode or device; or it is closed.
            AutotmError: a copy failed.
        """
        self._require_as_captured(batch)
        captured = self._step.captured
        with torch.no_grad():
            self._empty_arena()
            for update in self._updates:
                update.store()
            values = arguments(self._step, batch)
            self._executor.run(values)
            for name, node in captured.updates.items():
                captured.values[name].copy_(values[node])
            for name, node in captured.gradients.items():
                parameter, gradient = captured.values[name], values[node]
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)
        if self._optimizer is not None:
            self._optimizer._opt_called = True  # noqa: SLF001 - schedulers of PyTorch warn where it is missing
        if self._planned.states and self._device.torch.type == "cuda":
            torch.cuda.current_stream(self._device.torch).synchronize()  # Somebody may read the state on the host.
        (loss,) = captured.outputs
        return values[loss].clone()  # Which may be kept; what is in an arena is in the way of the next step.

    def _empty_arena(self) -> None:
        """Give gradients of an earlier step, which stay, memory outside of the arena."""
        arena = self._executor.arena
        for name in self._step.captured.gradients:
            parameter = self._step.captured.values[name]
            if arena is not None and parameter.grad is not None and arena.holds(parameter.grad):
                parameter.grad = parameter.grad.clone()

    def measure(self, *batch: torch.Tensor, verify: bool = False) -> MeasuredStep:
        """Run a step, as calling it does; count its memory, its time, and what it moves.

        Args:
            batch: inputs and targets.
            verify: overwrite all memory that the step gives back, and compare the loss, gradients and buffers with
                those of plain PyTorch, bit for bit. A plain step is run for that, on a copy of the module.

        Raises:
            BadInputError: as for a call.
            AutotmError: the step took more memory than its budget, moved nothing though its plan
                does, or left other bits than plain PyTorch; names the operator if one is not deterministic.
        """
        self._require_as_captured(batch)
        self._empty_arena()
        for update in self._updates:
            update.store()
        subject = self._module, self._optimizer
        wanted = plain_results(*subject, self._plain, batch, self._device.torch) if verify else None
        values = arguments(self._step, tuple(tensor.clone() for tensor in batch)) if verify else {}
        argument_bytes = sum(self._step.storages[place].size_bytes for place in self._step.held)
        argument_bytes += sum(update.state_bytes for update in self._updates)
        is_there = any(update.kept.numel() for update in self._updates)
        absent_bytes = 0 if is_there else sum(size_bytes for _, size_bytes in self._planned.states.values())
        losses: list[torch.Tensor] = []
        step_s = 0.0

        def call() -> None:
            nonlocal step_s
            step_s = self._device.seconds(lambda: losses.append(self(*batch)), 1)

        self._executor.poison = verify
        try:
            _, peak_bytes = self._device.peak(call)
        finally:
            self._executor.poison = False
        moved = self._executor.moved_bytes
        measured = MeasuredStep(
            losses[0], argument_bytes + peak_bytes, step_s, moved[Tier.SLOW], moved[Tier.FAST], self.summary()
        )
        if wanted is not None:
            require_same(results_of(*subject, measured.loss), wanted, self._step, values)
        _require_as_planned(measured, absent_bytes)
        return measured

    def summary(self) -> OffloadSummary:
        """Return the plan's memory, moves and predicted time, with a lower bound of the time."""
        planned = self._planned
        plan, graph = planned.plan, planned.graph
        moved = {
            tier: sum(graph.by_name[move.tensor].size_bytes for move in plan.moves if move.destination is tier)
            for tier in Tier
        }
        return OffloadSummary(
            device=self._device.name,
            budget_bytes=planned.budget_bytes,
            planned_peak_bytes=planned.peak_bytes,
            arena_bytes=planned.arena_bytes,
            plain_peak_bytes=planned.plain_peak_bytes,
            least_bytes=planned.least_bytes,
            host_bytes=planned.host_bytes,
            in_place_bytes=sum(size_bytes for _, size_bytes in planned.states_in_place.values()),
            moved_out_bytes=moved[Tier.SLOW],
            moved_in_bytes=moved[Tier.FAST],
            recomputed=sum(run is not None and run.wanted is not None for run in planned.runs),
            predicted_s=plan.objective_us / 1e6,
            recomputed_s=planned.recomputed_us / 1e6,
            plain_s=planned.plain_us / 1e6,
            bound_s=planned.bound_us / 1e6,
            gap=max(0.0, 1 - planned.bound_us / plan.objective_us),
        )

    def view(self, path: str | Path) -> None:
        """Write one page that shows where each tensor is when; any browser opens it, and it needs nothing else.

        On a GPU addresses are those of a tight packing; PyTorch's allocator chooses its own there.

        Args:
            path: an .html file.
        """
        device = self._device
        source = {
            "machine": device.name,
            "cpu_model": cpu_signature(),
            "threads": torch.get_num_threads(),
            "tier_reality": device.tier_reality,
            "versions": versions(),
            "autotm_commit": commit(),
        }
        self._planned.write_page(Path(path), type(self._module).__name__, self._step.rows, source)

    def close(self) -> None:
        """End the streams and give the host memory back; the step cannot be called any more.

        What the optimizer keeps on the host goes back to the device.
        """
        if not self._is_closed:
            self._is_closed = True
            self._executor.copies.close()
            if self._executor.arena is not None:
                self._executor.arena.close()
            self._executor.pool = self._executor.pool.new_empty(0)
            for update in self._updates:
                update.bring_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self.summary())

    def _require_as_captured(self, batch: tuple[torch.Tensor, ...]) -> None:
        if self._is_closed:
            raise BadInputError("offload: the step was closed; make another one")
        if self._module.training != self._is_training:
            modes = {True: "training", False: "evaluation"}
            raise BadInputError(
                f"offload: the step was made in {modes[self._is_training]} mode, the module is in "
                f"{modes[self._module.training]} mode; call module.train({self._is_training}), or make another step"
            )
        for name, tensor in self._step.captured.values.items():
            if tensor.device != self._device.torch:
                raise BadInputError(
                    f"offload: {name} is on {tensor.device}, the step was made for {self._device.torch}"
                )
        for update in self._updates:
            if any(own.grad is not None for own in update.parameters):
                raise BadInputError(
                    "offload: a parameter has a gradient, and the step updates by those of its own batch alone; call "
                    "zero_grad() first"
                )
        wanted = self._step.batch
        if len(batch) != len(wanted):
            raise BadInputError(f"offload: the step takes {len(wanted)} tensors, inputs and targets, got {len(batch)}")
        for place, (name, tensor) in enumerate(named_batch(batch).items()):
            actual, expected = (_type_and_shape(each) for each in (tensor, wanted[name]))
            if actual != expected or tensor.device != self._device.torch:
                raise BadInputError(
                    f"offload: tensor {place} of the batch is {actual} on {tensor.device}; the step was made for "
                    f"{expected} on {self._device.torch}: shapes are fixed, so pad the batch or leave out the last one"
                )


def _require_as_planned(measured: MeasuredStep, absent_bytes: int) -> None:
    """Raise AutotmError where a step took more memory than its budget, or moved nothing though its plan does.

    Of what the plan brings in, `absent_bytes` were not there yet.
    """
    plan = measured.plan
    planned_in_bytes = plan.moved_in_bytes - absent_bytes
    moves = (measured.moved_out_bytes, plan.moved_out_bytes), (measured.moved_in_bytes, planned_in_bytes)
    if any(not moved and planned for moved, planned in moves):
        raise AutotmError(
            f"offload: the step moved {moves[0][0]} bytes out and {moves[1][0]} back, and its plan {moves[0][1]} and "
            f"{moves[1][1]}; please report it"
        )
    if (over := measured.peak_bytes - plan.budget_bytes) > 0:
        raise AutotmError(
            f"offload: the step took {measured.peak_bytes} bytes of device memory, {over} more than its budget: "
            "operators took more than when they were timed; give a budget that is smaller by that"
        )


def arguments(step: Step, batch: tuple[torch.Tensor, ...]) -> Values:
    """Return the values of the nodes that stand for the step's arguments."""
    known = {name: tensor.detach() for name, tensor in {**step.captured.values, **named_batch(batch)}.items()}
    return {**step.constants, **{node: known[name] for node, (_, name) in step.captured.arguments.items()}}


def _type_and_shape(tensor: Any) -> str:
    """Describe a tensor's type and shape."""
    if not isinstance(tensor, torch.Tensor):
        return type(tensor).__name__
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
