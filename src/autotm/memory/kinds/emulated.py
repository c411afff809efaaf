"""Slow memory made of DRAM and delays: both pools are DRAM, copies and kernels wait for what the device would take."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy.typing as npt

from autotm.memory.clock import wait_until
from autotm.memory.copying import CopyEngine
from autotm.memory.device import load_device
from autotm.memory.emulation import Emulation, stretch_of
from autotm.memory.pool import Pool
from autotm.memory.tiers import Tiers
from autotm.model.machine import Machine
from autotm.model.measurement import Links
from autotm.model.step import OpClass, Tier


class EmulatedTiers(Tiers):
    """Two DRAM pools, the slow one played by `emulation`."""

    waits_are_known = True

    def __init__(self, fast: Pool, slow: Pool, machine: Machine, emulation: Emulation) -> None:
        super().__init__(fast, slow, machine.copying_cpus)
        self.emulation = emulation
        self._memory_mode = machine.memory_mode
        self._engine = CopyEngine(machine.cpus)

    def copy(self, destination_view: npt.NDArray[Any], source_view: npt.NDArray[Any], destination: Tier) -> None:
        """Copy, then wait up to the time that the device would have taken for the same bytes."""
        start_ns = perf_counter_ns()
        self._engine.copy(destination_view, source_view)
        wait_until(start_ns + self.emulation.move_ns(destination, source_view.nbytes))

    def asynchronous_move_ns(self, destination: Tier, size_bytes: int) -> int:
        """The device's time for these bytes beside kernels; an engine spreads its copies over it."""
        return self.emulation.asynchronous_move_ns(destination, size_bytes)

    def kernel_delay_ns(
        self, op_class: OpClass, slow_read_bytes: tuple[int, ...], slow_write_bytes: tuple[int, ...]
    ) -> int:
        """The emulated cost of a kernel's slow operands."""
        return self.emulation.kernel_delay_ns(op_class, slow_read_bytes, slow_write_bytes)

    def cache_delay_ns(self, op_class: OpClass, fetched_bytes: int, written_bytes: int) -> int:
        """The emulated cost of misses; none where the machine's own memory has missed already."""
        return 0 if self._memory_mode else super().cache_delay_ns(op_class, fetched_bytes, written_bytes)

    def close(self) -> None:
        """End the copying threads and free both pools."""
        self._engine.close()
        super().close()


def open_kind(
    machine: Machine,
    links: Links | None,
    fast_bytes: int,
    slow_bytes: int,
    devices_dir: Path,
    *,
    stretch: float | None,
) -> EmulatedTiers:
    """As `open_tiers`."""
    tier = machine.slow_tier
    device = load_device(devices_dir, tier.device)
    emulation = Emulation(device, stretch_of(tier, links) if stretch is None else stretch)
    fast = Pool(Tier.DRAM, fast_bytes)
    slow = Pool(Tier.PMEM, slow_bytes)
    return EmulatedTiers(fast, slow, machine, emulation)
