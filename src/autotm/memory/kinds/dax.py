"""Slow memory behind DAX: a pool in a file system on such memory, or on a device; elsewhere with a warning."""

from __future__ import annotations

import logging
from pathlib import Path

from autotm.memory.linux.pools import DaxPool, NodePool, check_capacity, check_nodes, dax_bytes, demotion
from autotm.memory.pool import Pool
from autotm.memory.tiers import Tiers
from autotm.model.errors import BadInputError
from autotm.model.graph import Tier
from autotm.model.links import Links
from autotm.model.machine import DaxTier, Machine
from autotm.model.system import SystemMemory

log = logging.getLogger(__name__)


def open_kind(
    machine: Machine, links: Links | None, fast_bytes: int, slow_bytes: int, devices_dir: Path, *, stretch: float | None
) -> Tiers:
    """Open the pools as `open_tiers` does."""
    del links, devices_dir, stretch
    tier, system = machine.slow_tier, SystemMemory()
    assert isinstance(tier, DaxTier)
    file, path = f"config/machines/{machine.name}.yaml", Path(tier.path)
    if tier.fast_nodes is not None:
        check_nodes(system, f"{file}: slow_tier.fast_nodes", tier.fast_nodes)
    elif reason := demotion(system):
        raise BadInputError(f"{file}: slow_tier: {reason}")
    check_capacity(file, tier, dax_bytes(path, system), slow_bytes)

    def more_fast(size_bytes: int) -> Pool:
        if tier.fast_nodes is None:
            return Pool(Tier.FAST, size_bytes, huge_pages=tier.huge_pages == "transparent")
        return NodePool(Tier.FAST, size_bytes, tier.fast_nodes, tier.huge_pages, system)

    fast = more_fast(fast_bytes)
    slow = DaxPool(path, slow_bytes, stand_in=tier.stand_in, system=system)
    if slow_bytes and tier.stand_in:
        log.warning("%s: a stand-in for slow memory: times say nothing about slow memory", path)
    return Tiers(fast, slow, machine, more_fast)
