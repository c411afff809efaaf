"""A step of PyTorch as the graph that plans are made of, with state of its optimizer that moves."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from autotm.api.offload.measuring import Measured
from autotm.joint_graph import Step, Storage
from autotm.model.files import hash_of
from autotm.model.graph import (
    DEFAULT_IMPLEMENTATION,
    Graph,
    Kernel,
    OpClass,
    Operand,
    Role,
    Tensor,
    Tier,
    all_fast,
    workspace,
)
from autotm.model.profile import Profile, Timing
from autotm.solve.recomputation import AGAIN

_KEPT = ".state"
"""What the names of tensors end with that an optimizer keeps; those of storages do not."""
IN_PLACE = ".in_place"
"""What the identities of updates end with that use state in the slower memory."""
_UPDATED = "updated"
"""What kernels are called that compute nothing: before each of them, state that moves was updated."""
RESULTS = "results"
"""The last kernel, which computes nothing: gradients, updates and the loss are in device memory at the end."""

_CLASSES = (
    (OpClass.CONV_DATA_GRADIENT, ("convolution_backward",)),
    (OpClass.CONV_FORWARD, ("convolution",)),
    (OpClass.MATMUL, ("mm", "bmm", "matmul", "linear", "attention", "einsum", "mv", "dot")),
    (OpClass.WINDOW_GRADIENT, ("pool2d_with_indices_backward", "pool2d_backward", "pool3d_backward")),
    (OpClass.WINDOW, ("pool",)),
    (OpClass.NORMALIZATION_GRADIENT, ("norm_backward",)),
    (OpClass.NORMALIZATION, ("norm",)),
    (OpClass.REDUCTION, ("sum", "mean", "softmax", "amax", "var", "loss", "embedding_dense_backward")),
    (OpClass.DATA_MOVEMENT, ("clone", "copy", "cat", "stack", "embedding", "index", "gather", "_backward_slice")),
)
"""Class of an operator by parts of its name, the first that fits; all other operators are elementwise."""


@dataclass(frozen=True)
class Run:
    """One run of an operator.

    Attributes:
        operator: its index.
        wanted: where it ran before, the storages that are taken from this run.
    """

    operator: int
    wanted: tuple[int, ...] | None = None


def model_of(step: Step, measured: Measured, device: str, grain: int) -> tuple[Graph, Profile]:
    """Return the kernels, tensors and times of a step.

    Args:
        step: captured.
        measured: of its operators.
        device: name of what they ran on.
        grain: bytes to multiples of which its allocator rounds sizes up.
    """
    names = [f"{place}:{storage.name}" for place, storage in enumerate(step.storages)]
    sizes = [math.ceil(max(size, 1) / grain) * grain for size in measured.sizes]
    slots = [Operand(name, (size,), "uint8") for name, size in zip(names, sizes, strict=True)]
    kernels, workspaces, states = [], [], []
    for index, operator in enumerate(step.operators):
        name = f"{index}:{operator.node.name}"
        workspace_bytes = math.ceil(measured.memory[index].workspace_bytes / grain) * grain
        own = (Operand(f"{name}.workspace", (workspace_bytes,), "uint8"),) if workspace_bytes else ()
        workspaces += [workspace(operand, index) for operand in own]
        inputs, outputs = ([slots[place] for place in places] for places in (operator.inputs, operator.outputs))
        if measured.states[index]:
            inputs.append(Operand(f"{name}{_KEPT}", (measured.states[index],), "uint8"))
            states.append((inputs[-1], index))
        op, identity = operator.name, measured.identities[index]
        kernels.append(Kernel(name, op, identity, op, _class_of(op), 0, tuple(inputs), tuple(outputs), own))
    last, results = len(kernels), [slots[place] for place in step.results]
    kernels.append(Kernel(RESULTS, RESULTS, RESULTS, RESULTS, OpClass.DATA_MOVEMENT, 0, tuple(results), ()))
    tensors = [
        _tensor(storage, slots[place], (*storage.readers, *((last,) if place in step.results else ())), last + 1)
        for place, storage in enumerate(step.storages)
    ]
    tensors += [
        Tensor(slot.tensor, Role.STATE, slot.shape, slot.dtype, slot.size_bytes, None, (index,), held=(0, last + 1))
        for slot, index in states
    ]
    graph = Graph("torch", "own", 1, tuple(kernels), (*tensors, *workspaces))
    nothing = Timing(1, 1, 1, 1, 0)
    timings = {
        (kernel.identity, DEFAULT_IMPLEMENTATION, all_fast(kernel)): timing
        for kernel, timing in zip(kernels, (*measured.timings, nothing), strict=True)
    }
    timings.update(
        ((f"{kernel.identity}{IN_PLACE}", DEFAULT_IMPLEMENTATION, all_fast(kernel)), timing)
        for kernel, timing in zip(kernels, measured.in_place, strict=False)
        if timing is not None
    )
    timings[_UPDATED, DEFAULT_IMPLEMENTATION, Tier.FAST.letter] = nothing
    return graph, Profile(hash_of(graph), timings, {"device": device})


def with_states_on_host(graph: Graph, part: float) -> tuple[Graph, frozenset[int]]:
    """Return a step in which a part of an optimizer's state is on the device during its updates alone.

    Args:
        graph: with the state held on the device.
        part: of its bytes; that of the first updates is taken.

    Returns:
        The step, and the operators whose state that is.
    """
    kept = {tensor.readers[0]: tensor for tensor in graph.tensors if is_state(tensor.name)}
    wanted_bytes, taken_bytes = part * sum(tensor.size_bytes for tensor in kept.values()), 0
    kernels, moving = [*graph.kernels], {}
    for index, tensor in kept.items():
        if taken_bytes >= wanted_bytes:
            break
        taken_bytes += tensor.size_bytes
        (operand,) = (one for one in kernels[index].inputs if one.tensor == tensor.name)
        inputs = tuple(one for one in kernels[index].inputs if one is not operand)
        kernels[index] = replace(kernels[index], inputs=inputs, workspaces=(*kernels[index].workspaces, operand))
        moving[tensor.name] = workspace(operand, index)
    tensors = tuple(moving.get(tensor.name, tensor) for tensor in graph.tensors)
    return replace(graph, kernels=tuple(kernels), tensors=tensors), frozenset(map(place_of, moving))


def with_states_in_place(graph: Graph, states: Collection[int]) -> Graph:
    """Return a step in which updates use state in the slower memory, which they move there when they have made it.

    Args:
        graph: one of `with_states_on_host`.
        states: operators whose state that is.
    """
    kernels = (
        replace(kernel, identity=f"{kernel.identity}{IN_PLACE}") if index in states else kernel
        for index, kernel in enumerate(graph.kernels)
    )
    return replace(graph, kernels=tuple(kernels))


def with_states_that_move(graph: Graph, states: Collection[int]) -> Graph:
    """Return a step in which state of an optimizer is fetched some time before its update, and stored afterwards.

    Args:
        graph: one of `with_states_on_host`, in which kernels may run again.
        states: operators whose state that is.
    """
    kernels: list[Kernel] = []
    moved: list[int] = []  # Where each kernel is now.
    last = len(graph.kernels) + len(states) - 1
    tensors = []
    for kernel in graph.kernels:
        moved.append(len(kernels))
        kernels.append(kernel)
        if kernel.name == RESULTS or place_of(kernel.name) not in states:
            continue
        *workspaces, fetched = kernel.workspaces
        stored = replace(fetched, tensor=f"{fetched.tensor}.{_UPDATED}")
        kernels[-1] = replace(kernel, inputs=(*kernel.inputs, fetched), workspaces=tuple(workspaces))
        kernels.append(Kernel(f"{kernel.name}.{_UPDATED}", *[_UPDATED] * 3, OpClass.DATA_MOVEMENT, 0, (), (stored,)))
        kind = fetched.shape, fetched.dtype, fetched.size_bytes
        tensors.append(Tensor(fetched.tensor, Role.FETCHED, *kind, None, (0, moved[-1])))
        tensors.append(Tensor(stored.tensor, Role.STORED, *kind, moved[-1] + 1, (last,)))
    names = {tensor.name for tensor in tensors}
    others = (
        replace(
            tensor,
            producer=None if tensor.producer is None else moved[tensor.producer],
            readers=tuple(moved[reader] for reader in tensor.readers),
            held=None if tensor.held is None else (0, len(kernels)),
        )
        for tensor in graph.tensors
        if tensor.name not in names
    )
    return replace(graph, kernels=tuple(kernels), tensors=(*others, *tensors))


def runs_of(graph: Graph) -> tuple[Run | None, ...]:
    """Return the operators of a step's kernels, but for the last; None for one that computes nothing."""
    read = {operand.tensor for kernel in graph.kernels for operand in kernel.inputs}
    runs: list[Run | None] = []
    for kernel in graph.kernels[:-1]:
        wanted = tuple(place_of(operand.tensor) for operand in kernel.outputs if operand.tensor in read)
        run = Run(place_of(kernel.name), wanted if kernel.name.endswith(AGAIN) else None)
        runs.append(None if kernel.identity == _UPDATED else run)
    return tuple(runs)


def place_of(name: str) -> int:
    """Return the storage of a tensor, or the operator of a kernel, which its name begins with."""
    return int(name.partition(":")[0])


def is_state(name: str) -> bool:
    """Whether a tensor is what an optimizer keeps, before its update."""
    return name.endswith(_KEPT)


def _tensor(storage: Storage, slot: Operand, readers: tuple[int, ...], kernels: int) -> Tensor:
    role = storage.argument or Role.INTERMEDIATE
    held = None if storage.argument is None else (0, kernels)
    readers = tuple(sorted(set(readers)))
    return Tensor(slot.tensor, role, slot.shape, slot.dtype, slot.size_bytes, storage.producer, readers, held=held)


def _class_of(operator: str) -> OpClass:
    classes = (op_class for op_class, parts in _CLASSES if any(part in operator for part in parts))
    return next(classes, OpClass.ELEMENTWISE)
