"""Memory on which different schedules of one kernel are run and compared."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.kernels.library import KernelLibrary, aligned_empty
from autotm.kernels.making import workspace_bytes
from autotm.kernels.schedules import ScheduledKernel
from autotm.memory import quiet_interpreter
from autotm.model.measurement import Timing
from autotm.model.step import Graph, Kernel, Operand, storage_of
from autotm.profile.timing import MAX_COPIES, Call, Filler, ProfileOptions, time_interleaved

Array = npt.NDArray[Any]
Schedules = tuple[ScheduledKernel, Any]
"""A scheduled kernel and its machine code, a module with the symbol `main`."""

_RELATIVE, _OF_LARGEST = 1e-5, 2e-6
"""How far results of another order of sums may lie apart: of each value, and of the largest one.

Our kernels add up long sums in blocks. A schedule that adds 10^5 terms or more one by one rounds ten times as much, and
does not agree.
"""
_HOPELESS = 5.0
"""A candidate that takes this many times as long as the limit is not run again."""
_SCRAP = 0xFF


class TuningBench:
    """Several copies of a kernel's operands and workspaces, in which operands that share memory in the step share it.

    Args:
        graph, kernel: the step, and the call of it that is run.
        options: how to time, as in a profile.
    """

    def __init__(self, graph: Graph, kernel: Kernel, options: ProfileOptions) -> None:
        self.kernel = kernel
        self._options = options
        self._operands = (*kernel.inputs, *kernel.outputs)
        self._storages = [storage_of(graph, operand.tensor) for operand in self._operands]
        sizes: dict[str, int] = {}
        for storage, operand in zip(self._storages, self._operands, strict=True):
            sizes[storage] = max(sizes.get(storage, 0), _size(operand))
        total = max(1, sum(sizes.values()))
        copies = min(max(2, -(-options.rotation_bytes // total)), MAX_COPIES)
        self._memory = [{name: aligned_empty((size,), "uint8") for name, size in sizes.items()} for _ in range(copies)]
        self._spare = [aligned_empty((0,), "uint8") for _ in range(copies)]
        filler = Filler(options.seed)
        for copy, storages in enumerate(self._memory):
            for storage in storages.values():
                storage[:] = _SCRAP
            for view, operand in zip(self._operand_views(copy), kernel.inputs, strict=False):
                filler.fill(view, graph.by_name[operand.tensor].initial)
        self._start = {name: storage.copy() for name, storage in self._memory[0].items()}

    def seconds(self, schedule: Schedules, limit_s: float, repeats: int = 5) -> float:
        """The least time of a few calls; one that takes far longer than `limit_s` is called once."""
        calls = self._calls(schedule)
        found = _timed(calls[0])
        if found > _HOPELESS * limit_s:
            return found
        return min(_timed(calls[turn % len(calls)]) for turn in range(1, repeats + 1))

    def compare(self, schedules: list[Schedules]) -> list[Timing]:
        """Times of several schedules, measured in turn on the same memory."""
        calls = [self._calls(schedule) for schedule in schedules]
        with quiet_interpreter():
            return time_interleaved(calls, [None] * len(calls), self._options)

    def results(self, schedule: Schedules) -> list[Array]:
        """What one call computes from the same inputs as every other; its workspaces hold scrap before."""
        for name, storage in self._memory[0].items():
            storage[:] = self._start[name]
        views = self._views(schedule[0], 0)
        _bind(schedule, views)()
        first = len(self.kernel.inputs)
        return [views[slot].copy() for slot in range(first, first + len(self.kernel.outputs))]

    def _calls(self, schedule: Schedules) -> list[Call]:
        return [_bind(schedule, self._views(schedule[0], copy)) for copy in range(len(self._memory))]

    def _views(self, scheduled: ScheduledKernel, copy: int) -> list[Array]:
        return [*self._operand_views(copy), *self._workspaces(scheduled, copy)]

    def _operand_views(self, copy: int) -> list[Array]:
        return [
            self._memory[copy][storage][: _size(operand)].view(operand.dtype).reshape(operand.shape)
            for storage, operand in zip(self._storages, self._operands, strict=True)
        ]

    def _workspaces(self, scheduled: ScheduledKernel, copy: int) -> list[Array]:
        needed = workspace_bytes(scheduled) + 64 * len(scheduled.workspaces)
        if self._spare[copy].size < needed:
            self._spare[copy] = aligned_empty((needed,), "uint8")
        spare, start, views = self._spare[copy], 0, []
        spare[:needed] = _SCRAP
        for shape, dtype in scheduled.workspaces:
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            views.append(spare[start : start + size].view(dtype).reshape(shape))
            start += -(-size // 64) * 64
        return views


def agree(found: list[Array], expected: list[Array]) -> bool:
    """Whether two schedules computed the same but for the rounding of sums in another order."""
    return all(_agrees(one, other) for one, other in zip(found, expected, strict=True))


def _agrees(found: Array, expected: Array) -> bool:
    if expected.dtype.kind != "f":
        return np.array_equal(found, expected)
    largest = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
    return np.allclose(found, expected, rtol=_RELATIVE, atol=_OF_LARGEST * largest, equal_nan=True)


def _bind(schedule: Schedules, views: list[Array]) -> Call:
    return KernelLibrary.in_memory(schedule[1]).bind("main", views)


def _timed(call: Call) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) * 1e-9


def _size(operand: Operand) -> int:
    return int(np.prod(operand.shape, dtype=np.int64)) * np.dtype(operand.dtype).itemsize
