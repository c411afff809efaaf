"""The tensors that outlive a step (parameters, inputs, constants, results): in memory of their own or in the pools."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import psutil

from autotm.memory.pool import Pool
from autotm.memory.tiers import Tiers
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph, InitialValue, Operand, Role, Tensor, Tier
from autotm.model.limit import storage_of
from autotm.model.program import KernelStep, Program

# Work on many arrays, spread over cores: NumPy and hashlib let go of the interpreter while they work on one.

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Iterable[Item], cpus: Sequence[int]) -> list[Result]:
    """Return the result of `work` for each item, in the order of the items.

    One thread for each of `cpus` does the work; without any, the calling thread does.

    Raises:
        Exception: what `work` raises for an item.
    """
    if not cpus:
        return [work(item) for item in items]
    # Threads take the next item by themselves: a future for each of thousands of small tensors costs more than work.
    left, results = iter(list(enumerate(items))), {}

    def work_on() -> None:
        for number, item in left:
            results[number] = work(item)

    # A thread inherits its maker's cores, and that one may be held on a single core.
    with ThreadPoolExecutor(len(cpus), initializer=os.sched_setaffinity, initargs=(0, set(cpus))) as threads:
        for thread in [threads.submit(work_on) for _ in cpus]:
            thread.result()
    return [results[number] for number in sorted(results)]


Array = npt.NDArray[Any]


def initial_value(tensor: Tensor, seed: int) -> Array:
    """Return the value of `tensor` before the first step; random numbers are float32 of the tensor's own stream.

    The stream depends on `seed` and the tensor's name only, so every program of a network, on every machine, and a
    reference in any other precision start from the same numbers.

    Raises:
        AutotmError: the tensor, which is no result, has no initial value. Results are zero.
    """
    value: Array = np.empty(tensor.shape, tensor.dtype)
    _fill(value, tensor, seed)
    return value


def _fill(memory: Array, tensor: Tensor, seed: int) -> None:
    if tensor.role is Role.RESULT:
        memory[...] = 0
        return
    if tensor.initial is None:
        raise AutotmError(f"graph: tensor '{tensor.name}' ({tensor.role}) has no initializer; rerun kernel_profile")
    if isinstance(tensor.initial, InitialValue):
        memory[...] = tensor.initial.read(tensor.name, tensor.shape, tensor.dtype)
        return
    # Jobs wait for this: of NumPy's generators SFC64 is the fastest.
    key = hashlib.sha256(f"{seed}:{tensor.name}".encode()).digest()[:16]
    generator = np.random.Generator(np.random.SFC64(int.from_bytes(key, "little")))
    initial, shape = tensor.initial, tensor.shape
    match initial.kind:
        case "normal" | "uniform":
            draw = generator.standard_normal if initial.kind == "normal" else generator.random
            drawn = memory if memory.dtype == np.float32 else np.empty(shape, np.float32)
            draw(out=drawn, dtype=np.float32)
            np.multiply(drawn, np.float32(initial.scale), out=memory, casting="unsafe")
        case "one_hot":
            columns = generator.integers(shape[-1], size=shape[:-1])
            memory[...] = columns[..., None] == np.arange(shape[-1])
        case "integers":
            memory[...] = generator.integers(int(initial.scale), size=shape)
        case "zeros" | "ones":
            memory[...] = initial.kind == "ones"
        case "sinusoids":
            column = np.arange(shape[1])
            angle = np.arange(shape[0])[:, None] / 10000.0 ** ((column - column % 2) / shape[1])
            memory[...] = np.where(column % 2, np.cos(angle), np.sin(angle))
        case "future":
            memory[...] = np.triu(np.full(shape, initial.scale), 1)


@dataclass(frozen=True)
class Arguments:
    """Where every argument is: a pool and an offset in it. An alias shares the memory of the tensor it takes over.

    Attributes:
        graph: as lowered; its arguments keep their own names.
        places: by name of the tensor whose memory it is.
        initial: copies of what `fill` makes of those that are not results, so that it need not draw again.
    """

    graph: Graph
    places: Mapping[str, tuple[Pool, int]]
    initial: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def allocate(
        cls, graph: Graph, placed: Mapping[str, tuple[Pool, int]] | None = None, tiers: Tiers | None = None
    ) -> Arguments:
        """Allocate memory for each argument of `graph` that has no place in `placed`; it is zero until filled.

        Where `tiers` are open, it is fast memory of theirs outside the pool.
        """
        offsets, total = {}, 0
        for tensor in own_arguments(graph):
            if tensor.name not in (placed or {}):
                offsets[tensor.name] = total
                total += tensor.allocated_bytes
        own = Pool(Tier.FAST, total) if tiers is None else tiers.outside(total)
        return cls(graph, {name: (own, offset) for name, offset in offsets.items()} | dict(placed or {}))

    @classmethod
    def in_pools(cls, graph: Graph, counted: Graph, program: Program, tiers: Tiers) -> Arguments:
        """Provide memory for every argument: its place in the pools by `program`, of the step as `counted`, or its own.

        Args:
            graph: as lowered.
            counted: the same with what the limit counts (`model/limit.py`).
            program: of `counted`.
            tiers: opened for the program.
        """
        placed = {
            name: (tiers.pool(tier), offset) for name, (tier, offset) in placed_arguments(counted, program).items()
        }
        return cls.allocate(graph, placed, tiers)

    def fill(self, seed: int, cpus: Sequence[int] = ()) -> None:
        """Make every argument what it is before the first step, on `cpus` if given; results become zero."""

        def fill(tensor: Tensor) -> None:
            memory = self.value(tensor.name)
            if tensor.name in self.initial:
                memory[...] = self.initial[tensor.name]
            else:
                _fill(memory, tensor, seed)

        spread(fill, own_arguments(self.graph), cpus)

    def copied(self) -> dict[str, Array]:
        """Return copies of all that are not results, as they are now; none if less than their size would stay free."""
        own = [tensor for tensor in own_arguments(self.graph) if tensor.role is not Role.RESULT]
        if psutil.virtual_memory().available < 2 * sum(tensor.size_bytes for tensor in own):
            return {}
        return {tensor.name: self.value(tensor.name).copy() for tensor in own}

    def value(self, name: str) -> Array:
        """Return the memory of argument `name`, in the tensor's own shape."""
        tensor = self.graph.by_name[name]
        pool, offset = self.places[storage_of(self.graph, name)]
        return pool.view(offset, tensor.shape, tensor.dtype)

    def view(self, operand: Operand) -> Array:
        """Return the memory of an argument as a kernel sees it."""
        pool, offset = self.places[storage_of(self.graph, operand.tensor)]
        return pool.view(offset, operand.shape, operand.dtype)


def io_bytes(graph: Graph) -> int:
    """Return the bytes of all arguments; an updated parameter shares its parameter's memory and counts once."""
    return sum(tensor.size_bytes for tensor in own_arguments(graph))


def own_arguments(graph: Graph) -> list[Tensor]:
    """Return the arguments that have memory of their own."""
    return [tensor for tensor in graph.tensors if not tensor.role.is_movable and tensor.alias_of is None]


def placed_arguments(counted: Graph, program: Program) -> dict[str, tuple[Tier, int]]:
    """Return the tier and offset of the arguments that `program`, of the step as `counted`, keeps in the pools."""
    placed = {}
    for step in program.steps:
        if isinstance(step, KernelStep):
            for operand, address in zip(counted.kernels[step.kernel].operands, step.addresses, strict=True):
                if counted.by_name[operand.tensor].held and address.offset is not None:
                    placed[operand.tensor] = address.tier, address.offset
    return placed
