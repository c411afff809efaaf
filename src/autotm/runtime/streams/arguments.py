"""The tensors that outlive a step, in the pools of a device: behind what the program places, or where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.memory.gpu import Device, Span
from autotm.model.plan import KernelStep, Program
from autotm.model.step import ALIGNMENT_BYTES, Graph, Operand, Role, Tensor, Tier, storage_of
from autotm.runtime.arguments import initial_value

Array = npt.NDArray[Any]


def device_bytes(graph: Graph, counted: Graph, program: Program) -> int:
    """Device memory that a program takes: its fast pool, and behind it the arguments that it does not place.

    Args:
        graph: as lowered.
        counted: the same with what the limit counts.
        program: of `counted`.
    """
    own = _own(graph, _placed(counted, program))
    return _aligned(program.fast_bytes) + sum(tensor.allocated_bytes for tensor in own)


@dataclass(frozen=True)
class DeviceArguments:
    """Where every argument is. An alias shares the memory of the tensor it takes over.

    Attributes:
        graph: as lowered; its arguments keep their own names.
        device: whose pools they are in.
        places: pool and first byte by name of the tensor whose memory it is.
    """

    graph: Graph
    device: Device
    places: Mapping[str, tuple[Tier, int]]

    @classmethod
    def of(cls, graph: Graph, counted: Graph, program: Program, device: Device) -> DeviceArguments:
        """Places in a device whose pool has `device_bytes`."""
        places = _placed(counted, program)
        end = _aligned(program.fast_bytes)
        for tensor in _own(graph, places):
            places[tensor.name] = Tier.DRAM, end
            end += tensor.allocated_bytes
        return cls(graph, device, places)

    def fill(self, seed: int) -> None:
        """Make every argument what it is before the first step; results become zero. The streams must stand still."""
        for tensor in self.graph.tensors:
            if not tensor.role.is_movable and tensor.alias_of is None:
                is_result = tensor.role is Role.RESULT
                value = np.zeros(tensor.shape, tensor.dtype) if is_result else initial_value(tensor, seed)
                self.device.write(self._span(tensor), value)

    def value(self, name: str) -> Array:
        """A copy of argument `name` as it is now. The streams must stand still."""
        tensor = self.graph.by_name[name]
        return self.device.read(self._span(tensor)).view(tensor.dtype).reshape(tensor.shape)

    def set(self, name: str, value: Array) -> None:
        """Overwrite argument `name`, in its shape and type. The streams must stand still."""
        self.device.write(self._span(self.graph.by_name[name]), value)

    def place(self, operand: Operand) -> tuple[Tier, int]:
        """Pool and first byte of an argument that a kernel uses."""
        return self.places[storage_of(self.graph, operand.tensor)]

    def _span(self, tensor: Tensor) -> Span:
        tier, start = self.places[storage_of(self.graph, tensor.name)]
        pool = self.device.device_pool if tier is Tier.DRAM else self.device.host_pool
        return Span(pool, start, tensor.size_bytes)


def _own(graph: Graph, placed: Mapping[str, tuple[Tier, int]]) -> list[Tensor]:
    """Arguments that have memory of their own."""
    arguments = (tensor for tensor in graph.tensors if not tensor.role.is_movable and tensor.alias_of is None)
    return [tensor for tensor in arguments if tensor.name not in placed]


def _placed(counted: Graph, program: Program) -> dict[str, tuple[Tier, int]]:
    """Arguments that the program has places for."""
    found = {}
    for step in program.steps:
        if isinstance(step, KernelStep):
            for operand, address in zip(counted.kernels[step.kernel].operands, step.addresses, strict=True):
                if counted.by_name[operand.tensor].held and address.offset is not None:
                    found[operand.tensor] = address.tier, address.offset
    return found


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
