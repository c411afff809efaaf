"""An optimizer's updates as operators of a step: of each group of parameters as soon as its gradients are complete.

An update frees the gradients of its group, so that those of all parameters are never there at once. Learning rates, and
all else in `param_groups`, are read at each step. What the optimizer keeps may wait in host memory between updates; it
is copied to the device before an update, and back afterwards, at any time that a plan says.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import Node

from autotm.capture import Captured
from autotm.joint_graph import Step
from autotm.model.errors import BadInputError

_GROUPS = 32
"""Groups hold gradients of up to this part of all: a call of an optimizer takes some 0.1 ms, whatever it updates."""
STATE_ALIGNMENT_BYTES = 512
"""To which CUDA's allocator rounds up."""
_BY_PARAMETER = {
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
}  # fmt: skip
"""Optimizers of PyTorch that update each parameter by itself, whichever others are there."""


Copied = tuple[torch.Tensor, torch.Tensor]
"""Bytes to copy into, and those to copy."""


class _Place(NamedTuple):
    """Where a tensor of an optimizer's state is on the host."""

    offset: int
    kept: torch.Tensor


@dataclass(eq=False)
class Update:
    """Updates a group of parameters; the target of a node whose arguments are parameters and their gradients.

    Attributes:
        optimizer: that updates them.
        parameters: in the order of the arguments.
    """

    optimizer: torch.optim.Optimizer
    parameters: tuple[nn.Parameter, ...]

    def __post_init__(self) -> None:
        self._pool: torch.Tensor | None = None
        self._is_used_there = False
        self._kept_bytes = 0
        self._places: dict[tuple[nn.Parameter, str], _Place] = {}
        self._here: torch.Tensor | None = None
        self._is_updated = False  # What was fetched, since then.
        self._fetched: dict[tuple[nn.Parameter, str], torch.Tensor] = {}

    @property
    def __name__(self) -> str:
        """What graphs and messages call it."""
        return f"update_by_{type(self.optimizer).__name__}"

    @property
    def options(self) -> str:
        """How parameters are updated, but for the learning rate: what the time and the state of an update depend on."""
        part = _part(self.optimizer, {own: own for own in self.parameters})
        return repr([
            (len(group["params"]), sorted((key, value) for key, value in group.items() if key not in {"params", "lr"}))
            for group in part.param_groups
        ])  # fmt: skip

    @property
    def state_bytes(self) -> int:
        """Memory of the optimizer's state for these parameters, as far as it is there, on their device."""
        return sum(_rounded(value) for _, _, value in self._states())

    @property
    def has_state(self) -> bool:
        """Whether the optimizer keeps something for these parameters; not before their first update."""
        return any(self.optimizer.state.get(own) for own in self.parameters)

    @property
    def kept(self) -> torch.Tensor:
        """The bytes of the state on the host; none before the first update, or where it is not kept there."""
        return torch.empty(0, dtype=torch.uint8) if self._pool is None else self._pool[: self._kept_bytes]

    def keep_on_host(self, pool: torch.Tensor, *, use_there: bool = False) -> None:
        """Keep the state in host memory from the next update on; `pool` has room for `state_bytes` of a trial.

        With `use_there` updates read and write it there, and it is never fetched.
        """
        self._pool, self._is_used_there = pool, use_there

    def bring_back(self) -> None:
        """Put the state back on the device of the parameters, for good."""
        self.store()
        for (own, key), (_, kept) in self._places.items():
            if self.optimizer.state.get(own, {}).get(key) is kept:
                self.optimizer.state[own][key] = torch.empty_like(kept, device=own.device).copy_(kept)
        self._pool, self._is_used_there = None, False
        self._kept_bytes = 0
        self._places.clear()

    def __call__(self, values: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Update the parameters, which are what graphs see as `values`, in place; `.grad` stays empty."""
        del values
        part = _part(self.optimizer, {own: own for own in self.parameters})
        for own, gradient in zip(self.parameters, gradients, strict=True):
            own.grad = gradient
        try:
            type(part).step(part)  # A scheduler puts a `step` of its own into the instance.
        finally:
            self._is_updated = True
            for own in self.parameters:
                own.grad = None
        if self._is_used_there:
            self.store()  # What the first update has made.

    def store(self) -> None:
        """Copy state that is on the device, because it was made or loaded there, to its places on the host, if any.

        What was fetched, and is there because a step failed before the update, is on the host, too.
        """
        if not self._is_updated:
            self.give_back()
        for own, key, value in list(self._states()) if self._pool is not None else ():
            if (own, key) not in self._places:
                kept = _view(self._pool, self._kept_bytes, value)
                self._places[own, key] = _Place(self._kept_bytes, kept)
                self._kept_bytes += _rounded(value)
            kept = self._places[own, key].kept
            self.optimizer.state[own][key] = kept.copy_(value, non_blocking=True)
        self._fetched.clear()
        self._here = None

    def fetch(self) -> Copied | None:
        """Take device memory for the state, where the optimizer finds it from now on; None where there is no state.

        Returns:
            That memory, and what to copy into it before the update.
        """
        if not self._kept_bytes:
            return None
        self._is_updated = False
        self._here = torch.empty(self._kept_bytes, dtype=torch.uint8, device=self.parameters[0].device)
        for (own, key), (offset, kept) in self._places.items():
            if self.optimizer.state.get(own, {}).get(key) is kept:  # Else it was taken from the optimizer.
                self._fetched[own, key] = self.optimizer.state[own][key] = _view(self._here, offset, kept)
        return self._here, self.kept

    def replace_kept(self) -> Copied | None:
        """Return the host memory of the state, and what to copy into it before `give_back`.

        None where the update made state: all of it is in its places already.
        """
        if all(value is self._fetched.get((own, key)) for own, key, value in self._states()) and self._fetched:
            assert self._here is not None
            return self.kept, self._here
        self.store()
        return None

    def give_back(self) -> torch.Tensor | None:
        """Return the device memory of the state, if any; the optimizer finds its state on the host from now on."""
        for own, key in self._fetched:
            self.optimizer.state[own][key] = self._places[own, key].kept
        self._fetched.clear()
        here, self._here = self._here, None
        return here

    def _states(self) -> Iterator[tuple[nn.Parameter, str, torch.Tensor]]:
        """Yield the tensors of the state that are on the device of their parameters, and not in their places."""
        for own in self.parameters:
            for key, value in self.optimizer.state.get(own, {}).items():
                place = self._places.get((own, key))
                is_kept = place is not None and value is place.kept
                if isinstance(value, torch.Tensor) and value.device == own.device and not is_kept:
                    yield own, key, value

    def trial(self) -> Update:
        """Return an update of copies of the parameters, with copies of their state."""
        copies = {own: nn.Parameter(own.detach().clone()) for own in self.parameters}
        part = _part(self.optimizer, copies)
        known = {copies[own]: copy.deepcopy(self.optimizer.state[own]) for own in copies if own in self.optimizer.state}
        part.state = defaultdict(dict, known)
        return Update(part, tuple(copies.values()))


def _view(memory: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the bytes of `memory` from an offset on, laid out like another, which is dense."""
    return memory[offset : offset + like.nbytes].view(like.dtype).as_strided(like.shape, like.stride())


def _rounded(value: torch.Tensor) -> int:
    """Return the bytes that a tensor takes by itself."""
    return math.ceil(value.nbytes / STATE_ALIGNMENT_BYTES) * STATE_ALIGNMENT_BYTES


def _part(optimizer: torch.optim.Optimizer, of: dict[nn.Parameter, nn.Parameter]) -> torch.optim.Optimizer:
    """Return a copy of an optimizer, with the same state, that has the values of `of` in the places of its keys."""
    part = copy.copy(optimizer)
    groups = (
        {**group, "params": [of[own] for own in group["params"] if own in of]} for group in optimizer.param_groups
    )
    part.param_groups = [group for group in groups if group["params"]]
    return part


def with_updates(captured: Captured, optimizer: torch.optim.Optimizer) -> Captured:
    """Return a step whose gradients are no results, but read by updates, which are put into the graph.

    Parameters that the optimizer has not keep their gradients.
    """
    known = {id(own) for group in optimizer.param_groups for own in group["params"]}
    parameters: dict[str, Any] = {name: captured.values[name] for name in captured.gradients}
    parameters = {name: own for name, own in parameters.items() if id(own) in known}
    nodes = {name: node for node, (_, name) in captured.arguments.items()}
    for names, last in _groups(captured, parameters, nodes):
        operands = [nodes[name] for name in names], [captured.gradients[name] for name in names]
        with captured.graph.inserting_after(last):
            update = captured.graph.call_function(
                Update(optimizer, tuple(parameters[name] for name in names)), operands
            )
        update.meta["val"] = None
    return replace(
        captured, gradients={name: node for name, node in captured.gradients.items() if name not in parameters}
    )


def _groups(
    captured: Captured, parameters: dict[str, nn.Parameter], nodes: dict[str, Node]
) -> Iterator[tuple[list[str], Node]]:
    """Yield the names of the parameters of each group, and the last node that uses them or their gradients.

    Parameters that are ready one after the other are in one group.
    """
    step = Step(captured)
    storages = {node: storage for storage in step.storages for node in storage.nodes}
    # Operators of the forward pass may run again, and read parameters then, until their results are used last.
    again = [0] * step.turn
    for index in reversed(range(step.turn)):
        readers = (reader for place in step.operators[index].outputs for reader in step.storages[place].readers)
        again[index] = max((again[reader] if reader < step.turn else reader for reader in readers), default=0)

    def ready(name: str) -> int:
        own, gradient = storages[nodes[name]], storages[captured.gradients[name]]
        made = -1 if gradient.producer is None else gradient.producer
        return max(own.last, gradient.last, made, *(again[reader] for reader in own.readers if reader < step.turn))

    order = sorted((ready(name), name) for name in parameters)
    most = sum(own.nbytes for own in parameters.values()) / _GROUPS
    names: list[str] = []
    for number, (index, name) in enumerate(order):
        names.append(name)
        following = parameters[order[number + 1][1]].nbytes if number + 1 < len(order) else math.inf
        if sum(parameters[one].nbytes for one in names) + following > most:
            yield names, step.operators[index].node
            names = []


def require_known(optimizer: Any, module: nn.Module) -> None:
    """Raise BadInputError unless an optimizer is one whose updates can be parts of a step of the module."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInputError(
            f"offload: the optimizer is a {type(optimizer).__name__}; give one of torch.optim, made of the module's "
            "parameters"
        )
    kind = type(optimizer)
    if kind.__name__ not in _BY_PARAMETER or getattr(torch.optim, kind.__name__, None) is not kind:
        raise BadInputError(
            f"offload: {kind.__name__} is not known to update each parameter by itself; leave the optimizer out, and "
            f"call its step() after the step; known are {', '.join(sorted(_BY_PARAMETER))}"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:  # noqa: SLF001 - none is public
        raise BadInputError(
            "offload: the optimizer has hooks, which would run for each group of parameters; leave it out, and call "
            "its step() after the step"
        )
    own = {id(parameter) for parameter in module.parameters()}
    missing = [one for group in optimizer.param_groups for one in group["params"] if id(one) not in own]
    if missing:
        raise BadInputError(
            f"offload: the optimizer has a parameter of shape {tuple(missing[0].shape)} that the module has not; make "
            "it of the module's parameters"
        )
