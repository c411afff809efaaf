"""One training step by PyTorch, in float64 and, in several ways, in float32, and how far another one is from it."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from imported_models import TrainingCase

Array = npt.NDArray[Any]
RATE = 0.1
QUICK = {"step_s": 0.2, "min_repeats": 2, "patience_s": 1.0, "step_tolerance": 1000.0}
"""Profile options: enough for a plan that is checked for its bits, not for its time."""
TURN_S = 0.3
_IMAGE_RANK = 4


@dataclass(frozen=True)
class Stepped:
    """What a step computed: its loss, and every tensor of the module's state after it, in its precision."""

    loss: float
    state: Mapping[str, Array]


def torch_step(
    case: TrainingCase,
    dtype: torch.dtype,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Stepped:
    """Return a step of plain descent by PyTorch in that precision, on a copy of the module, images in that format."""
    module = copy.deepcopy(case.module).to(dtype=dtype, memory_format=memory_format).train()
    trained = optimizer(module.parameters(), lr=RATE)
    if isinstance(case.inputs, Mapping):
        output = module(**{name: _in(value, dtype) for name, value in case.inputs.items()})
    else:
        values = (_in(value, dtype) for value in case.inputs)
        output = module(*(value.to(memory_format=memory_format) for value in values))
    loss = case.loss(output, *(_in(value, dtype) for value in case.targets))
    loss.backward()
    trained.step()
    return Stepped(loss.item(), state_of(module))


def single_steps(case: TrainingCase) -> list[Stepped]:
    """Return the step in float32 in each of PyTorch's ways: as it comes, without oneDNN, and images with channels last.

    They add in different orders, as we do. Where a sum is so near zero that its last bit decides whether a ReLU lets it
    through, one of them may be off by a thousand times what roundings make of the others.
    """
    steps = [torch_step(case, torch.float32)]
    with torch.backends.mkldnn.flags(enabled=False):
        steps.append(torch_step(case, torch.float32))
    if not isinstance(case.inputs, Mapping) and all(value.ndim == _IMAGE_RANK for value in case.inputs):
        steps.append(torch_step(case, torch.float32, memory_format=torch.channels_last))
    return steps


def state_of(module: torch.nn.Module) -> dict[str, Array]:
    """Return a module's state; each tensor once, under its first name."""
    state, seen = {}, set()
    for name, value in module.state_dict(keep_vars=True).items():
        if value.is_floating_point() and id(value) not in seen:
            seen.add(id(value))
            state[name] = value.detach().numpy().copy()
    return state


def change_error(before: Mapping[str, Array], after: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """|after - wanted| over |wanted - before|, over all tensors together: the error of what a step changes."""
    return float(np.sqrt(_distance(after, wanted) / _distance(before, wanted)))


def medians_in_turn(works: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of a call of each, over so many rounds of `TURN_S` each."""
    all_samples: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for samples, work in zip(all_samples, works, strict=True):
            samples.append(_seconds(work))
    return [statistics.median(samples) for samples in all_samples]


def _seconds(work: Callable[[], object]) -> float:
    """Seconds of one call, on average over `TURN_S`, after a call that is not counted."""
    work()
    start, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < TURN_S:
        work()
        count += 1
    return spent / count


def _distance(some: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    return sum(float(np.sum((some[name] - wanted[name].astype(np.float64)) ** 2)) for name in wanted)


def _in(value: Any, dtype: torch.dtype) -> Any:
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_real else value
