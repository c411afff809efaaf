"""The tensors that no plan moves: parameters, inputs, constants and results, in memory of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.memory.pool import Pool
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph, Initial, Operand, Role, Tensor
from autotm.model.tier import Tier

Array = npt.NDArray[Any]


def initial_value(tensor: Tensor, seed: int) -> Array:
    """The value of `tensor` before the first step: drawn in float64 from its own stream, then cast to its dtype.

    The stream depends on `seed` and the tensor's name only, so every program of a network, on every machine, and a
    reference in any other precision start from the same numbers.

    Raises:
        AutotmError: the tensor has no initial value.
    """
    return np.asarray(initial_draw(tensor, seed), tensor.dtype)


def initial_draw(tensor: Tensor, seed: int) -> Array:
    """As `initial_value`, in float64."""
    if tensor.initial is None:
        raise AutotmError(
            f"graph: tensor '{tensor.name}' ({tensor.role}) says not how to fill it; lower the network again"
        )
    generator = np.random.Generator(np.random.Philox(key=_key(tensor.name, seed)))
    return _draw(tensor.initial, tensor.shape, generator)


def _key(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")


def _draw(initial: Initial, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    match initial.kind:
        case "normal":
            return generator.standard_normal(shape) * initial.scale
        case "uniform":
            return generator.random(shape) * initial.scale
        case "one_hot":
            columns = generator.integers(shape[-1], size=shape[:-1])
            hot: Array = columns[..., None] == np.arange(shape[-1])
            return hot.astype(np.float64)
        case "integers":
            return generator.integers(int(initial.scale), size=shape).astype(np.float64)
        case _:
            return _FORMULAS[initial.kind](shape, initial.scale)


def _sinusoids(shape: tuple[int, ...], _scale: float) -> Array:
    positions, width = shape
    column = np.arange(width)
    angle = np.arange(positions)[:, None] / 10000.0 ** ((column - column % 2) / width)
    found: Array = np.where(column % 2, np.cos(angle), np.sin(angle))
    return found


_FORMULAS: dict[str, Callable[[tuple[int, ...], float], Array]] = {
    "zeros": lambda shape, _: np.zeros(shape),
    "ones": lambda shape, _: np.ones(shape),
    "sinusoids": _sinusoids,
    "future": lambda shape, scale: np.triu(np.full(shape, scale), 1),
}
"""Values that need no random numbers, from shape and scale."""


@dataclass(frozen=True)
class Arguments:
    """Argument buffers; an alias shares the memory of the tensor it takes over."""

    graph: Graph
    pool: Pool
    offsets: dict[str, int]

    @classmethod
    def allocate(cls, graph: Graph) -> Arguments:
        """Memory for every argument of `graph`, zero until filled."""
        offsets, total = {}, 0
        for tensor in graph.tensors:
            if not tensor.role.is_movable and tensor.alias_of is None:
                offsets[tensor.name] = total
                total += tensor.allocated_bytes
        for tensor in graph.tensors:
            if tensor.alias_of is not None:
                offsets[tensor.name] = offsets[_storage(graph, tensor)]
        return cls(graph, Pool(Tier.DRAM, total), offsets)

    def fill(self, seed: int) -> None:
        """Make every argument what it is before the first step; results become zero."""
        for tensor in self.graph.tensors:
            if tensor.role.is_movable or tensor.alias_of is not None:
                continue
            self.value(tensor.name)[...] = 0 if tensor.role is Role.RESULT else initial_value(tensor, seed)

    def value(self, name: str) -> Array:
        """The memory of argument `name`, in the tensor's own shape."""
        tensor = self.graph.by_name[name]
        return self.pool.view(self.offsets[name], tensor.shape, tensor.dtype)

    def view(self, operand: Operand) -> Array:
        """The memory of an argument as a kernel sees it."""
        return self.pool.view(self.offsets[operand.tensor], operand.shape, operand.dtype)


def io_bytes(graph: Graph) -> int:
    """Bytes of all arguments; an updated parameter shares its parameter's memory and counts once."""
    return sum(t.size_bytes for t in graph.tensors if not t.role.is_movable and t.alias_of is None)


def _storage(graph: Graph, tensor: Tensor) -> str:
    while tensor.alias_of is not None:
        tensor = graph.by_name[tensor.alias_of]
    return tensor.name
