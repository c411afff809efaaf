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
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from autotm.joint_graph import Operator, Step, Values, call_of, keep, storage_of, tensors_of
from autotm.layout.packing import Blocks, pack_blocks
from autotm.memory.torch_arena import Allocation, recorded
from autotm.memory.torch_device import Device
from autotm.model.errors import AutotmError
from autotm.model.graph import ALIGNMENT_BYTES
from autotm.model.profile import Timing
from autotm.optimizer_updates import STATE_ALIGNMENT_BYTES, Update

T = TypeVar("T")


class OperatorAllocation(NamedTuple):
    """An allocation of an operator.

    Attributes:
        size_bytes: as the operator asks for.
        element: of the tensors that the operator gives, the one that is in it; None of others.
        offset: in the operator's workspace, or in the optimizer's state.
        is_state: whether it is state that an update makes.
    """

    size_bytes: int
    element: int | None
    offset: int = 0
    is_state: bool = False


class OperatorMemory(NamedTuple):
    """Memory that an operator takes.

    Attributes:
        workspace_bytes: while it runs, besides its results.
        allocations: in order; none where tensors cannot have places in an arena.
        first_allocations: those of an update's first call, which makes the state.
    """

    workspace_bytes: int
    allocations: tuple[OperatorAllocation, ...] = ()
    first_allocations: tuple[OperatorAllocation, ...] = ()

    def with_draws(self, generator_bytes: int) -> OperatorMemory:
        """Return this with what lets a random operator draw the same numbers again: two states of the generator."""
        state_bytes, begin = generator_bytes // 2, self.workspace_bytes
        states = (
            OperatorAllocation(state_bytes, None, begin),
            OperatorAllocation(state_bytes, None, begin + state_bytes),
        )
        return OperatorMemory(begin + generator_bytes, (*states, *self.allocations) if self.allocations else ())


@dataclass(frozen=True)
class Measured:
    """Measurements of a step's operators.

    Attributes:
        timings: of each operator.
        identities: of each operator: equal where the same operator is called on equal shapes.
        memory: of each operator.
        sizes: of each storage, as allocated.
        states: bytes of an optimizer's state that each operator updates.
        in_place: of each update whose state is in the slower memory, if operators can use that; else None.
    """

    timings: tuple[Timing, ...]
    identities: tuple[str, ...]
    memory: tuple[OperatorMemory, ...]
    sizes: tuple[int, ...]
    states: tuple[int, ...]
    in_place: tuple[Timing | None, ...]


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
    timings, memory, states, in_place = zip(*map(run.known.__getitem__, run.identities), strict=True)
    return Measured(timings, tuple(run.identities), memory, tuple(run.sizes), states, in_place)


_Known = tuple[Timing, OperatorMemory, int, Timing | None]
"""Time and memory of an operator, bytes of the optimizer's state that it updates, and its time with that elsewhere."""


class _Measuring:
    """The tensors of a step between two operators; they go to host memory where the device's memory is too small."""

    def __init__(self, step: Step, values: Values, device: Device, kernel_s: float) -> None:
        self._step, self._values, self._device, self._kernel_s = step, values, device, kernel_s
        self.known: dict[str, _Known] = {}
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
            result, allocations = self._with_enough_memory(operator, lambda: self._called(operator, call))
            self._require_as_traced(operator, result)
            if identity not in self.known:
                memory = self._memory_of(operator, result, allocations)
                self.known[identity] = self._timing(operator, call), memory, 0, None
            self._bytes.update(keep(self._step, self._values, operator, result))
        for place in (*operator.inputs, *operator.outputs):
            storage = self._step.storages[place]
            if storage.argument is None and index >= storage.last:
                for node in storage.nodes:
                    self._values[node] = None
                self._bytes.pop(place).untyped_storage().resize_(0)

    def _tried(self, operator: Operator, update: Update) -> _Known:
        """Return what is known of an update, from one of copies of the parameters."""
        trial = self._with_enough_memory(operator, update.trial)
        call = partial(call_of(operator.node, trial), self._values)
        # The first call makes the state.
        first, memory = (
            self._memory_of(operator, None, self._with_enough_memory(operator, lambda: self._called(operator, call))[1])
            for _ in range(2)
        )
        if self._device.has_arenas:
            workspace_bytes = max(first.workspace_bytes, memory.workspace_bytes)
            memory = OperatorMemory(workspace_bytes, memory.allocations, first.allocations)
        timing, state_bytes = self._timing(operator, call), trial.state_bytes
        if not state_bytes or not self._device.uses_slow_memory:
            return timing, memory, state_bytes, None
        trial.keep_on_host(self._device.host_pool(state_bytes), use_there=True)
        trial.store()
        # Slower memory takes no update less time, whatever the clock said.
        return timing, memory, state_bytes, max(timing, self._timing(operator, call), key=lambda one: one.median_ns)

    def _memory_of(self, operator: Operator, result: object, allocations: int | list[Allocation]) -> OperatorMemory:
        """Return the memory that an operator took, from the peak of a call or from all its allocations."""
        if isinstance(allocations, int):
            grain = self._device.granularity_bytes
            own_bytes = sum(math.ceil(self.sizes[place] / grain) * grain for place in operator.outputs)
            memory = OperatorMemory(max(0, allocations - own_bytes))
        else:
            tensors = list(tensors_of(result))
            elements = (self._step.storages[place].element for place in operator.outputs)
            memory = _placed(
                allocations, {tensors[element].untyped_storage().data_ptr(): element for element in elements}
            )
        return memory.with_draws(self._device.generator_bytes) if operator.is_random else memory

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

    def _called(self, operator: Operator, call: Callable[[], object]) -> tuple[Any, int | list[Allocation]]:
        """Return a call's result, and its allocations, or the bytes of its peak where they cannot be recorded."""
        for place in self._away.keys() & {*operator.inputs}:
            on_device, on_host = self._bytes[place], self._away.pop(place)
            on_device.untyped_storage().resize_(on_host.numel())
            on_device.copy_(on_host)
        if self._device.torch.type == "cuda":
            call()  # Libraries keep what they allocate at their first call (cuBLAS 32 MiB on an H100).
        return recorded(call) if self._device.has_arenas else self._device.peak(call)

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


def _placed(allocations: Sequence[Allocation], results: dict[int, int]) -> OperatorMemory:
    """Return what an operator took, with places in its workspace for what it frees, and in the state for what it keeps.

    Args:
        allocations: of a call.
        results: the elements that it gave, by the addresses of their memory.
    """
    inner = [one for one in allocations if one.end is not None]
    columns = [(_rounded(one.size_bytes, ALIGNMENT_BYTES), one.begin, one.end) for one in inner]
    blocks = Blocks(*np.array(columns, np.int64).reshape(-1, 3).T)
    offsets = pack_blocks(blocks, end_s=0)  # What an operator takes is nested for the most part: no search is needed.
    places, state_bytes, placed = iter(offsets.tolist()), 0, []
    for one in allocations:
        if one.end is not None:
            placed.append(OperatorAllocation(one.size_bytes, None, next(places)))
        elif one.address in results:
            placed.append(OperatorAllocation(one.size_bytes, results[one.address]))
        else:
            placed.append(OperatorAllocation(one.size_bytes, None, state_bytes, is_state=True))
            state_bytes += _rounded(one.size_bytes, STATE_ALIGNMENT_BYTES)
    return OperatorMemory(blocks.height(offsets), tuple(placed))


def _rounded(size_bytes: int, alignment_bytes: int) -> int:
    return math.ceil(size_bytes / alignment_bytes) * alignment_bytes


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
