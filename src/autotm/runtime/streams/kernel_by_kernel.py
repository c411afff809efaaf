"""The step without a plan where a device has too little memory for it: every tensor is in ordinary memory of the host.

One kernel at a time has its operands in device memory, and nothing else is there: they are copied in, it runs, what it
wrote is copied out. No memory is used for two tensors, and nothing is moved ahead or beside a kernel, so that none of
what makes a planned program wrong can make this one wrong too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.memory import POISON_BYTE
from autotm.memory.gpu import Device, Span
from autotm.model.step import ALIGNMENT_BYTES, Graph, Kernel, Role, storage_of
from autotm.runtime.arguments import initial_value
from autotm.runtime.streams.executor import Kernels

Array = npt.NDArray[Any]
Places = Mapping[str, int]
"""First byte in the device's pool, by the name of the tensor whose memory it is."""


def largest_kernel(graph: Graph) -> tuple[Kernel, int]:
    """The kernel with most bytes of operands, and the device memory that they take."""
    sizes = ((kernel, _places(graph, kernel)[1]) for kernel in graph.kernels)
    return max(sizes, key=lambda one: one[1])


@dataclass(frozen=True)
class KernelByKernel:
    """Steps of a graph, kernel by kernel.

    Attributes:
        graph: as lowered, with the implementations that run.
        device: whose pool has room for the operands of any one kernel.
        library: the kernels, on that device.
        values: what is in memory of the host, by the name of the tensor whose memory it is.
    """

    graph: Graph
    device: Device
    library: Kernels
    values: dict[str, Array] = field(default_factory=dict, repr=False)

    def fill(self, seed: int) -> None:
        """Make every argument what it is before the first step; results become zero."""
        for tensor in self.graph.tensors:
            if not tensor.role.is_movable and tensor.alias_of is None:
                is_result = tensor.role is Role.RESULT
                value = np.zeros(tensor.shape, tensor.dtype) if is_result else initial_value(tensor, seed)
                self.values[tensor.name] = np.ascontiguousarray(value)

    def value(self, name: str) -> Array:
        """An argument as it is now."""
        tensor = self.graph.by_name[name]
        return self.values[storage_of(self.graph, name)].reshape(-1).view(tensor.dtype).reshape(tensor.shape)

    def step(self) -> None:
        """Run one training step to its end.

        Raises:
            AutotmError: some of the device's work failed.
        """
        for index, kernel in enumerate(self.graph.kernels):
            self._run(kernel)
            for operand in kernel.operands:
                tensor = self.graph.by_name[operand.tensor]
                if tensor.role.is_movable and tensor.live.stop == index + 1:
                    self.values.pop(tensor.name, None)

    def _run(self, kernel: Kernel) -> None:
        places, size_bytes = _places(self.graph, kernel)
        pool = self.device.device_pool
        # What is not copied in must not be what an earlier kernel left there.
        self.device.compute.fill(Span(pool, 0, size_bytes), POISON_BYTE)
        self.device.synchronize()
        for name, start in places.items():
            if name in self.values:
                self.device.write(Span(pool, start, self.values[name].nbytes), self.values[name])
        names = [storage_of(self.graph, operand.tensor) for operand in kernel.operands]
        views = [
            pool.view(places[name], operand.shape, operand.dtype)
            for name, operand in zip(names, kernel.operands, strict=True)
        ]
        spans = [
            Span(pool, places[name], operand.size_bytes) for name, operand in zip(names, kernel.operands, strict=True)
        ]
        inputs = len(kernel.inputs)
        self.device.compute.launch(self.library.bind(kernel.function, views), spans[:inputs], spans[inputs:])
        self.device.synchronize()
        for operand in kernel.outputs:
            tensor = self.graph.by_name[storage_of(self.graph, operand.tensor)]
            self.values[tensor.name] = self.device.read(Span(pool, places[tensor.name], tensor.size_bytes))


def _places(graph: Graph, kernel: Kernel) -> tuple[Places, int]:
    """Where the operands of a kernel are while it runs, one behind the other, and the bytes that all take."""
    places: dict[str, int] = {}
    end = 0
    for operand in kernel.operands:
        name = storage_of(graph, operand.tensor)
        if name not in places:
            places[name] = end
            size_bytes = max(operand.size_bytes, graph.by_name[name].size_bytes, 1)
            end += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return places, end
