"""Slow memory made of DRAM and delays: both pools are DRAM, copies and kernels wait for what the device would take."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy.typing as npt

from autotm.memory.emulation import Emulation, load_device, stretch_of, wait_until
from autotm.memory.pool import Pool, require_available
from autotm.memory.tiers import Tiers
from autotm.model.cache import PagedTraffic
from autotm.model.graph import OpClass, Tier
from autotm.model.links import Links
from autotm.model.machine import EmulatedTier, Machine


class EmulatedTiers(Tiers):
    """Two DRAM pools, the slow one played by `emulation`."""

    waits_are_known = True

    def __init__(self, fast: Pool, slow: Pool, machine: Machine, emulation: Emulation) -> None:
        super().__init__(fast, slow, machine)
        self.emulation = emulation
        self.waits_are_additive = emulation.device.mixed_overlap_fraction == 0

    def copy(self, destination_view: npt.NDArray[Any], source_view: npt.NDArray[Any], destination: Tier) -> None:
        """Copy, then wait up to the time that the device would have taken for the same bytes."""
        start_ns = perf_counter_ns()
        super().copy(destination_view, source_view, destination)
        wait_until(start_ns + self.emulation.move_ns(destination, source_view.nbytes))

    def asynchronous_move_ns(self, destination: Tier, size_bytes: int) -> int:
        """Return the device's time for these bytes while kernels run; an engine spreads its copies over it."""
        return self.emulation.asynchronous_move_ns(destination, size_bytes)

    def kernel_delay_ns(
        self, op_class: OpClass, slow_read_bytes: tuple[int, ...], slow_write_bytes: tuple[int, ...]
    ) -> int:
        """Return the emulated cost of a kernel's slow operands."""
        return self.emulation.kernel_delay_ns(op_class, slow_read_bytes, slow_write_bytes)

    def cache_delay_ns(self, op_class: OpClass, fetched_bytes: int, written_bytes: int, own_bytes: int) -> int:
        """Return the emulated cost of misses; none where the machine's own memory has missed already."""
        if self._machine.memory_mode:
            return 0
        rate = self.emulation.fast_bytes_per_s
        own_ns = 0 if rate is None else round(own_bytes / rate * 1e9)
        return self.kernel_delay_ns(op_class, (fetched_bytes,), (written_bytes,)) + own_ns

    def paged_delay_ns(self, op_class: OpClass, traffic: PagedTraffic) -> int:
        """Return the emulated cost of what is in slow pages, and of copying those that move."""
        promoted_ns = self.emulation.move_ns(Tier.FAST, traffic.promoted)
        demoted_ns = self.emulation.move_ns(Tier.SLOW, traffic.demoted)
        return self.kernel_delay_ns(op_class, (traffic.slow_read,), (traffic.slow_written,)) + promoted_ns + demoted_ns


def open_kind(
    machine: Machine, links: Links | None, fast_bytes: int, slow_bytes: int, devices_dir: Path, *, stretch: float | None
) -> EmulatedTiers:
    """Open the pools as `open_tiers` does."""
    tier = machine.slow_tier
    assert isinstance(tier, EmulatedTier)
    device = load_device(devices_dir, tier.device)
    fast_bytes_per_s = links.rates.copy_bytes_per_s if links and links.rates else None
    emulation = Emulation(device, stretch_of(tier, links) if stretch is None else stretch, fast_bytes_per_s)
    require_available(fast_bytes + slow_bytes)
    return EmulatedTiers(Pool(Tier.FAST, fast_bytes), Pool(Tier.SLOW, slow_bytes), machine, emulation)
