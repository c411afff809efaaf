"""A program as a flat list of calls: everything is looked up, viewed and priced before the first one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotm.kernels.library import Array, KernelLibrary
from autotm.memory.clock import wait_until
from autotm.memory.tiers import Tiers
from autotm.model.graph import Graph, Kernel
from autotm.model.program import Address, KernelStep, MoveStep, Program, Step
from autotm.model.traffic import slow_traffic
from autotm.runtime.arguments import Arguments

Call = Callable[[], None]


@dataclass(frozen=True)
class Executor:
    """One training step, ready to run.

    Attributes:
        calls: in execution order; a kernel with slow operands on an emulated tier is followed by its wait.
        spans: per program step, the half-open range of its calls.
    """

    program: Program
    calls: tuple[Call, ...]
    spans: tuple[tuple[int, int], ...]

    def step(self) -> None:
        """Run one training step: parameters are updated in place, results overwritten."""
        for call in self.calls:
            call()

    def instrumented_step(self) -> list[int]:
        """Run one training step and return the nanoseconds of each program step, waits included."""
        now = time.perf_counter_ns
        times = []
        for first, end in self.spans:
            start = now()
            for call in self.calls[first:end]:
                call()
            times.append(now() - start)
        return times


def prepare(graph: Graph, library: KernelLibrary, program: Program, arguments: Arguments, tiers: Tiers) -> Executor:
    """Bind every step of `program` to memory.

    Raises:
        AutotmError: an address leaves its pool or is not aligned.
        BadInputError: the library lacks a kernel.
    """
    builder = _Builder(graph, library, arguments, tiers)
    calls: list[Call] = []
    spans = []
    for step in program.steps:
        first = len(calls)
        calls += builder.calls(step)
        spans.append((first, len(calls)))
    return Executor(program, tuple(calls), tuple(spans))


@dataclass(frozen=True)
class _Builder:
    graph: Graph
    library: KernelLibrary
    arguments: Arguments
    tiers: Tiers

    def calls(self, step: Step) -> list[Call]:
        return [self._move(step)] if isinstance(step, MoveStep) else self._kernel(step)

    def _kernel(self, step: KernelStep) -> list[Call]:
        kernel = self.graph.kernels[step.kernel]
        views = [self._operand(kernel, slot, address) for slot, address in enumerate(step.addresses)]
        call = self.library.bind(kernel.function, views)
        config = "".join(address.tier.letter for address in step.addresses)
        delay_ns = self.tiers.kernel_delay_ns(kernel.op_class, *slow_traffic(self.graph, kernel, config))
        return [call, functools.partial(_wait, delay_ns)] if delay_ns else [call]

    def _operand(self, kernel: Kernel, slot: int, address: Address) -> Array:
        operand = kernel.operands[slot]
        if address.offset is None:
            return self.arguments.view(operand)
        return self.tiers.pool(address.tier).view(address.offset, operand.shape, operand.dtype)

    def _move(self, step: MoveStep) -> Call:
        source, destination = self._bytes(step.source, step.size_bytes), self._bytes(step.destination, step.size_bytes)
        return functools.partial(self.tiers.copy, destination, source, step.destination.tier)

    def _bytes(self, address: Address, size_bytes: int) -> Array:
        assert address.offset is not None, "arguments never move"
        return self.tiers.pool(address.tier).view(address.offset, (size_bytes,), "uint8")


def _wait(delay_ns: int) -> None:
    wait_until(time.perf_counter_ns() + delay_ns)
