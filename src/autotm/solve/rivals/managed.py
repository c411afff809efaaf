"""Memory that the GPU's driver moves by page faults (cudaMallocManaged), as a model: the baseline of figure 12."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.model.plan import Engine
from autotm.model.step import Counts, Tier, counting, fixed_bytes
from autotm.solve.bases import first_fit
from autotm.solve.paging import PageMap
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines
from autotm.solve.rivals.simulated import Simulated, fastest, simulated

_STEPS = 2
"""The first finds nothing on the device; what the last one found, all after it find."""


@dataclass(frozen=True, slots=True)
class ManagedMemory:
    """How the driver moves memory.

    Attributes:
        block_bytes: that it moves to the host as a whole, and brings back whole.
        faulted_bytes_per_s: at which a kernel that waits for faults gets them.
    """

    block_bytes: int
    faulted_bytes_per_s: float


def run_managed(problem: Problem, managed: ManagedMemory) -> Simulated:
    """The plain step in one managed pool, with the device memory that a plan has, that of the arguments included.

    Blocks are brought in when a kernel touches them, at the rate of faults; for room the block used least recently goes
    to the host, at the rate of a copy, whether or not anybody will read it: the driver knows no tensors. A block that
    was never on the host is not brought in. All of it is waited for. Addresses are those of a plain framework.
    """
    graph = counting(fastest(problem), Counts.ALL)
    offsets, pool_bytes = first_fit(graph)
    pages = PageMap.of(graph, offsets, pool_bytes, managed.block_bytes)
    device_bytes = problem.limit_bytes + fixed_bytes(problem.graph)
    blocks = _Blocks(pages.count, max(1, device_bytes // managed.block_bytes))
    for touch in pages.before:
        blocks.use(np.arange(pages.count)[touch.pages])
    engines = Engines()
    for step in range(_STEPS):
        if step:
            engines = Engines()
        for kernel, touches in zip(graph.kernels, pages.kernels, strict=True):
            faulted = evicted = 0
            for touch in touches:
                brought, sent = blocks.use(np.arange(pages.count)[touch.pages])
                faulted, evicted = faulted + brought, evicted + sent
            for engine, count in ((Engine.OUT, evicted), (Engine.IN, faulted)):
                size = count * managed.block_bytes
                rate_us = 1e6 * size / managed.faulted_bytes_per_s
                moved_us = problem.links.copy_us(Tier.PMEM, size) if engine is Engine.OUT else rate_us
                if size:
                    engines.wait(engines.ask(engine, kernel.name, size, moved_us))
            engines.compute(kernel.name, problem.profile.base_us(kernel))
    most_bytes = min(pool_bytes, device_bytes)
    text = "a model of page faults; nothing was run in managed memory"
    return simulated(problem, graph, engines, min(most_bytes, problem.limit_bytes), remark=text)


class _Blocks:
    """Which blocks are on the device, and when each was used last."""

    def __init__(self, count: int, room: int) -> None:
        self._room = room
        self._used: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self._resident: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
        self._on_host: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
        self._now = 0

    def use(self, touched: npt.NDArray[np.int64]) -> tuple[int, int]:
        """Touch blocks in order; gives how many were brought from the host, and how many sent there for room.

        More than there is room for pass through: of those touched, the last stay.
        """
        self._now += 1
        self._used[touched] = self._now
        missing = touched[~self._resident[touched]]
        brought = int(np.count_nonzero(self._on_host[missing]))
        passing = max(0, len(missing) - self._room)
        self._resident[missing] = True
        self._on_host[missing] = False
        over = int(np.count_nonzero(self._resident)) - self._room
        if over > 0:
            resident = np.flatnonzero(self._resident)
            # Of those used at the same time, the first ones touched go first.
            gone = resident[np.argsort(self._used[resident], kind="stable")[:over]]
            self._resident[gone] = False
            self._on_host[gone] = True
        return brought, max(over, passing)
