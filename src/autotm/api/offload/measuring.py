"""Times every operator of a step once, with real values.

Where the device's memory cannot hold an operator, all tensors that it does not use are put into host memory, as vDNN
keeps them (Rhu et al., MICRO 2016, "all"); so a step can be timed wherever some plan can run it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from autotm.joint_graph import Operator, Step, Values, call_of, keep, storage_of, tensors_of
from autotm.memory.torch_device import Device
from autotm.model.errors import AutotmError
from autotm.model.profile import Timing
from autotm.optimizer_updates import Update

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """Measurements of a step's operators.

    Attributes:
        timings: of each operator.
        identities: of each operator: equal where the same operator is called on equal shapes.
        workspaces: bytes that each operator took while it ran, besides its results.
        sizes: of each storage, as allocated.
        states: bytes of an optimizer's state that each operator updates.
    """

    timings: tuple[Timing, ...]
    identities: tuple[str, ...]
    workspaces: tuple[int, ...]
    sizes: tuple[int, ...]
    states: tuple[int, ...]


def measure(step: Step, values: Values, device: Device, kernel_s: float) -> Measured:
    """Run the step once and time its operators; nothing that is the caller's changes.

    Args:
        step: to be timed.
        values: with those of the arguments.
        device: that it runs on.
        kernel_s: seconds for each distinct operator.

    Raises:
        AutotmError: an operator does not allocate as PyTorch's tracing said.
        torch.OutOfMemoryError: the device's memory cannot hold an operator by itself.
    """
    run = _Measuring(step, values, device, kernel_s)
    cuda = [device.torch] if device.torch.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(cuda):
        for index, operator in enumerate(step.operators):
            run.operator(index, operator)
    timings, workspaces, states = zip(*map(run.known.__getitem__, run.identities), strict=True)
    return Measured(timings, tuple(run.identities), workspaces, tuple(run.sizes), states)


class _Measuring:
    """The tensors of a step between two operators; they go to host memory where the device's memory is too small."""

    def __init__(self, step: Step, values: Values, device: Device, kernel_s: float) -> None:
        self._step, self._values, self._device, self._kernel_s = step, values, device, kernel_s
        self.known: dict[str, tuple[Timing, int, int]] = {}
        self._away: dict[int, torch.Tensor] = {}
        # The storages of arguments, to be told apart from others; they are never moved.
        self._bytes = {place: values[step.storages[place].nodes[0]] for place in step.held}
        self.sizes = [storage.size_bytes for storage in step.storages]
        self.identities: list[str] = []
        for view in step.argument_views:
            values[view] = call_of(view)(values)

    def operator(self, index: int, operator: Operator) -> None:
        """Call and time an operator; free the storages that no later operator uses."""
        identity, target = identity_of(operator), operator.node.target
        self.identities.append(identity)
        if isinstance(target, Update):
            if identity not in self.known:
                self.known[identity] = self._tried(operator, target)
        else:
            call = partial(call_of(operator.node), self._values)
            result, peak_bytes = self._with_enough_memory(operator, lambda: self._called(operator, call))
            self._require_as_traced(operator, result)
            if identity not in self.known:
                grain = self._device.granularity_bytes
                own_bytes = sum(math.ceil(self.sizes[place] / grain) * grain for place in operator.outputs)
                self.known[identity] = self._timing(operator, call), max(0, peak_bytes - own_bytes), 0
            self._bytes.update(keep(self._step, self._values, operator, result))
        for place in (*operator.inputs, *operator.outputs):
            storage = self._step.storages[place]
            if storage.argument is None and index >= storage.last:
                for node in storage.nodes:
                    self._values[node] = None
                self._bytes.pop(place).untyped_storage().resize_(0)

    def _tried(self, operator: Operator, update: Update) -> tuple[Timing, int, int]:
        """Return the time, workspace and state of an update of copies of the parameters."""
        trial = self._with_enough_memory(operator, update.trial)
        call = partial(call_of(operator.node, trial), self._values)
        self._with_enough_memory(operator, lambda: self._called(operator, call))  # The first one makes the state.
        _, peak_bytes = self._with_enough_memory(operator, lambda: self._called(operator, call))
        return self._timing(operator, call), peak_bytes, trial.state_bytes

    def _timing(self, operator: Operator, call: Callable[[], object]) -> Timing:
        return Timing(*self._with_enough_memory(operator, lambda: self._device.median_ns(call, self._kernel_s)))

    def _with_enough_memory(self, operator: Operator, work: Callable[[], T]) -> T:
        """Return the result of `work`; if device memory runs out, repeat it with all other tensors in host memory."""
        try:
            return work()
        except torch.OutOfMemoryError:
            pass  # The error holds the memory of the failed call, and is dropped here.
        for place in self._bytes.keys() - self._away.keys() - {*operator.inputs}:
            if self._step.storages[place].argument is None:
                self._away[place] = self._bytes[place].to("cpu", copy=True)
                self._bytes[place].untyped_storage().resize_(0)
        return work()

    def _called(self, operator: Operator, call: Callable[[], object]) -> tuple[Any, int]:
        for place in self._away.keys() & {*operator.inputs}:
            on_device, on_host = self._bytes[place], self._away.pop(place)
            on_device.untyped_storage().resize_(on_host.numel())
            on_device.copy_(on_host)
        if self._device.torch.type == "cuda":
            call()  # Libraries keep what they allocate at their first call (cuBLAS 32 MiB on an H100).
        return self._device.peak(call)

    def _require_as_traced(self, operator: Operator, result: object) -> None:
        """Note the sizes of the storages that an operator made; AutotmError if memory is not shared as traced."""
        tensors = list(tensors_of(result))
        traced = list(tensors_of(operator.node.meta.get("val")))
        of_traced, of_result = ([storage_of(value) for value in values] for values in (traced, tensors))
        pairs = dict(zip(of_traced, of_result, strict=False))
        is_alike = len(traced) == len(tensors) and [pairs[one] for one in of_traced] == of_result
        inside = {storage_of(self._bytes[place]) for place in operator.inputs}
        fresh = dict.fromkeys(storage for storage in of_result if storage not in inside)
        if not is_alike or len(fresh) != len(operator.outputs):
            raise AutotmError(
                f"offload: operator '{operator.node.target}' ({operator.node.name}) shares memory otherwise than "
                "PyTorch's tracing said, and cannot be moved safely; report it with the module"
            )
        for place in operator.outputs:
            self.sizes[place] = tensors[self._step.storages[place].element].untyped_storage().nbytes()


def identity_of(operator: Operator) -> str:
    """Return the hash of the operator, its options, and shapes, strides and types of what it is called on."""

    def text(item: object) -> str:
        if isinstance(item, torch.fx.Node):
            values = tensors_of(item.meta.get("val"))
            return ",".join(f"{value.dtype}{tuple(value.shape)}{value.stride()}" for value in values)
        if isinstance(item, Sequence) and not isinstance(item, str):
            return f"[{','.join(map(text, item))}]"
        return repr(item)

    node = operator.node
    options = node.target.options if isinstance(node.target, Update) else ""
    named = sorted((key, text(value)) for key, value in node.kwargs.items())
    call = f"{operator.name}{options}({text(node.args)}, {named})"
    return hashlib.sha256(call.encode()).hexdigest()[:16]
