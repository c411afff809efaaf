"""Where a step's time went, against what the machine could have done at best."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotm.model.graph import Graph, Kernel, OpClass, Role

CONTRACTIONS = {
    OpClass.CONV_FORWARD,
    OpClass.CONV_DATA_GRADIENT,
    OpClass.CONV_WEIGHT_GRADIENT,
    OpClass.MATMUL,
}


@dataclass(frozen=True)
class Limits:
    """Measured rates of the machine: multiply-adds in registers (two each), and copies (read and written bytes)."""

    flop_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Spent:
    """Median microseconds of each kernel of a step, by name."""

    graph: Graph
    times_us: Mapping[str, float]

    def peak_share(self, limits: Limits, step_s: float) -> float:
        """Multiply-adds of the step over what the cores could do in the step's time."""
        flops = sum(kernel.flops for kernel in self.graph.kernels if kernel.op_class in CONTRACTIONS)
        return flops / step_s / limits.flop_per_s

    def copy_share(self, limits: Limits) -> float:
        """Bytes of the kernels that are no contractions over what copies could move in those kernels' time."""
        others = [kernel for kernel in self.graph.kernels if kernel.op_class not in CONTRACTIONS]
        seconds = sum(self.times_us[kernel.name] for kernel in others) / 1e6
        return sum(self._bytes(kernel) for kernel in others) / seconds / limits.bytes_per_s

    def slowest(self, limits: Limits, count: int) -> Iterator[str]:
        """Yield the distinct kernels that lose most time over the step against both limits, as lines."""
        groups: dict[str, list[Kernel]] = collections.defaultdict(list)
        for kernel in self.graph.kernels:
            groups[kernel.identity].append(kernel)
        losses = sorted(((self._lost_us(kernels, limits), kernels) for kernels in groups.values()), key=lambda x: -x[0])
        for lost_us, kernels in losses[:count]:
            first, taken_us = kernels[0], sum(self.times_us[kernel.name] for kernel in kernels)
            shapes = " ".join("x".join(map(str, operand.shape)) for operand in first.inputs + first.outputs)
            yield (
                f"{first.op} {shapes}: {len(kernels)} calls, {taken_us / 1e3:.2f} ms, "
                f"{taken_us / (taken_us - lost_us):.1f} times its limit"
            )

    def _lost_us(self, kernels: list[Kernel], limits: Limits) -> float:
        best_us = [
            1e6 * max(kernel.flops / limits.flop_per_s, self._bytes(kernel) / limits.bytes_per_s) for kernel in kernels
        ]
        return sum(self.times_us[kernel.name] for kernel in kernels) - sum(best_us)

    def _bytes(self, kernel: Kernel) -> int:
        """Bytes that the kernel has to read and write; of a table, only the rows that it looks up or updates."""
        tensors = [self.graph.by_name[operand.tensor] for operand in kernel.inputs + kernel.outputs]
        if not kernel.op.startswith("embedding"):
            return sum(tensor.size_bytes for tensor in tensors)
        rows = [tensor for tensor in tensors if tensor.role is not Role.PARAMETER and tensor.alias_of is None]
        return 2 * sum(tensor.size_bytes for tensor in rows)
