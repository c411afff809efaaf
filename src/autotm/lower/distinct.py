"""The distinct kernels of a step: what tuning searches through and what the list of kernels shows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.making import workload
from autotm.kernels.schedules import ScheduledKernel
from autotm.lower.lower import ScheduledStep
from autotm.model.step import Kernel

_FLOP_PER_S, _ITEMS_PER_S = 1e11, 2e9
"""Rough rates of a core or a few, only for putting kernels in order."""


@dataclass(frozen=True)
class DistinctKernel:
    """One compiled function of a step.

    Attributes:
        workload: hash of the unscheduled function.
        function: it.
        scheduled: the kernel made of it.
        example: a call of it.
        calls: calls of it per step.
    """

    workload: str
    function: tirx.PrimFunc
    scheduled: ScheduledKernel
    example: Kernel
    calls: int

    @property
    def shapes(self) -> str:
        """Inputs, then outputs, e.g. `16x256,256x256->16x256`."""
        sides = (self.example.inputs, self.example.outputs)
        return "->".join(",".join("x".join(map(str, operand.shape)) or "1" for operand in side) for side in sides)

    @property
    def text(self) -> str:
        """Operation and shapes, for people."""
        return f"{self.scheduled.op} {self.shapes}"

    @property
    def flops(self) -> int:
        """Floating-point operations per step."""
        return self.calls * self.example.flops

    @property
    def weight(self) -> float:
        """About the seconds per step, from operations and operands alone."""
        items = sum(math.prod(operand.shape) for operand in self.example.operands)
        return self.calls * max(self.example.flops / _FLOP_PER_S, items / _ITEMS_PER_S)


def distinct_kernels(step: ScheduledStep) -> tuple[DistinctKernel, ...]:
    """Every compiled function once, heaviest first."""
    calls: dict[str, list[Kernel]] = {}
    for kernel in step.graph.kernels:
        calls.setdefault(kernel.function, []).append(kernel)
    found = [
        DistinctKernel(
            workload(step.functions[symbol]), step.functions[symbol], step.kernels[symbol], same[0], len(same)
        )
        for symbol, same in calls.items()
    ]
    return tuple(sorted(found, key=lambda item: (-item.weight, item.workload)))
