"""A user's own way to save memory, measured beside a plan with the same peak, and how far from the bound it is."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autotm.api.offload.step import OffloadedStep, OffloadSummary
from autotm.capture import checked_loss
from autotm.memory.torch_device import Device, device_of
from autotm.model.errors import BadInputError, InfeasibleLimitError

_SAME = 1e-3
"""Relative difference of losses of the same step by other operators, such as those of a compiled module."""
Way = Callable[[nn.Module], Callable[..., Any]]


@dataclass(frozen=True)
class Judgement:
    """A way to save memory beside a plan of `autotm.offload` with the same peak.

    Peaks and times are measured, the latter medians of steps in turn; the bound and the plan's own time are predicted.

    Attributes:
        plain_peak_bytes, plain_s: of a plain step.
        peak_bytes, step_s: of a step with the way that is judged.
        plan_peak_bytes, plan_s: of a step by the plan; None where there is none.
        plan: its budget is `peak_bytes`; None where there is none.
        failure: why there is no plan; empty where there is one.
    """

    plain_peak_bytes: int
    plain_s: float
    peak_bytes: int
    step_s: float
    plan_peak_bytes: int | None = None
    plan_s: float | None = None
    plan: OffloadSummary | None = None
    failure: str = ""

    @property
    def added(self) -> float:
        """What the way adds to the time of a plain step, as a share of it."""
        return self.step_s / self.plain_s - 1

    @property
    def plan_added(self) -> float | None:
        """The same of the plan."""
        return None if self.plan_s is None else self.plan_s / self.plain_s - 1

    @property
    def least_added(self) -> float | None:
        """What every plan with this peak adds at least, predicted."""
        return None if self.plan is None else self.plan.bound_s / self.plan.plain_s - 1

    def __str__(self) -> str:
        def line(name: str, peak_bytes: int, step_s: float) -> str:
            share = peak_bytes / self.plain_peak_bytes
            return f"{name}: {peak_bytes / 1e6:.6g} MB ({share:.3f} of plain), {step_s:.4g} s a step, measured"

        lines = [
            line("plain", self.plain_peak_bytes, self.plain_s),
            f"{line('judged', self.peak_bytes, self.step_s)}: adds {self.added:.1%}",
        ]
        if self.plan is None or self.plan_s is None or self.plan_peak_bytes is None:
            return "\n".join([*lines, f"autotm.offload: {self.failure}"])
        predicted = self.plan.predicted_s / self.plan.plain_s - 1
        planned = line("autotm.offload", self.plan_peak_bytes, self.plan_s)
        lines += [
            f"{planned}: adds {self.plan_added:.1%}, predicted {predicted:.1%}",
            f"bound: every plan within this memory adds {self.least_added:.1%} or more, predicted",
        ]
        return "\n".join(lines)


def judge_way(
    module: nn.Module,
    way: Way,
    batch: tuple[tuple[Any, ...], tuple[Any, ...]],
    loss: Callable[..., Any] | None,
    offload: Callable[[nn.Module, int], OffloadedStep],
    rounds: int,
) -> Judgement:
    """Measure a way and a plan; the arguments are those of `autotm.judge`.

    Args:
        module: is copied, and stays as it is.
        way: to be judged.
        batch: inputs and targets.
        loss: as for `autotm.offload`.
        offload: makes the step of a module within a budget in bytes.
        rounds: in which steps take turns.
    """
    inputs, targets = batch
    for value in (*inputs, *targets):
        if not isinstance(value, torch.Tensor):
            raise BadInputError(f"judge: an input or target is a {type(value).__name__}; give tensors")
    devices = {value.device for value in (*inputs, *targets, *module.parameters(), *module.buffers())}
    if len(devices) > 1:
        raise BadInputError(f"judge: everything must be on one device, not on {', '.join(sorted(map(str, devices)))}")
    device = device_of(devices.pop())
    own, twin = copy.deepcopy(module), copy.deepcopy(module)
    judged = way(twin)
    if not callable(judged):
        raise BadInputError(f"judge: way returned a {type(judged).__name__}; it has to return what is called")

    def step_of(called: Callable[..., Any], changed: nn.Module) -> Callable[[], torch.Tensor]:
        def step() -> torch.Tensor:
            changed.zero_grad()
            output = called(*inputs)
            value = checked_loss(output if loss is None else loss(output, *targets))
            value.backward()
            return value.detach()

        return step

    plain, theirs = step_of(own, own), step_of(judged, twin)
    _require_same_loss(device, plain, theirs)
    held = (*inputs, *targets, *module.parameters(), *module.buffers())
    held_bytes = sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held}.values())

    def peak_bytes(step: Callable[[], object], changed: nn.Module) -> int:
        changed.zero_grad()  # Gradients that are there would not be allocated.
        return held_bytes + int(device.peak(step)[1])

    peaks = [peak_bytes(step, changed) for step, changed in ((plain, own), (theirs, twin))]
    try:
        planned = offload(own, peaks[1])
    except InfeasibleLimitError as error:
        medians = medians_in_turn(device, {"plain": plain, "theirs": theirs}, rounds)
        return Judgement(peaks[0], medians["plain"], peaks[1], medians["theirs"], failure=str(error))
    with planned:

        def ours() -> None:
            own.zero_grad()
            planned(*inputs, *targets)

        medians = medians_in_turn(device, {"plain": plain, "theirs": theirs, "ours": ours}, rounds)
        own.zero_grad()
        plan_peak_bytes = planned.measure(*inputs, *targets).peak_bytes
        return Judgement(
            peaks[0], medians["plain"], peaks[1], medians["theirs"], plan_peak_bytes, medians["ours"], planned.summary()
        )


def medians_in_turn(device: Device, steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of steps that take turns, after one turn that does not count."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            step_s = device.seconds(step, 1)
            if turn:
                times[name].append(step_s)
    return {name: statistics.median(taken) for name, taken in times.items()}


def _require_same_loss(device: Device, plain: Callable[[], torch.Tensor], theirs: Callable[[], torch.Tensor]) -> None:
    """Raise BadInputError where a way gives another loss than a plain step, unless that draws random numbers."""
    losses = []
    for step, seed in ((plain, 0), (plain, 1), (theirs, 0)):
        with torch.random.fork_rng([device.torch] if device.torch.type == "cuda" else []):
            torch.manual_seed(seed)
            losses.append(float(step()))
    first, second, judged = losses
    # Compiled modules draw in another order, so losses of random steps say nothing.
    if first == second and not abs(first - judged) <= _SAME * abs(first):
        raise BadInputError(
            f"judge: the loss is {judged:.6g} with the way that is judged, and {first:.6g} by a plain step; they have "
            "to be the same"
        )
