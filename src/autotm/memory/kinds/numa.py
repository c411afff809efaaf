"""Slow memory that is a memory node of Linux: both pools are bound to their nodes, every page is checked to be there.

For optimizers that are policies of Linux, the kernel places the pages itself, in both.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path

from autotm.memory.linux.page_policy import POLICIES, PagePolicy, PolicyPool
from autotm.memory.linux.policy_tiers import PolicyTiers
from autotm.memory.linux.pools import NodePool, check_capacity, check_nodes
from autotm.memory.tiers import Tiers
from autotm.model.graph import Tier
from autotm.model.links import Links
from autotm.model.machine import Machine, NumaTier
from autotm.model.program import Program
from autotm.model.system import SystemMemory

log = logging.getLogger(__name__)


def open_kind(
    machine: Machine, links: Links | None, fast_bytes: int, slow_bytes: int, devices_dir: Path, *, stretch: float | None
) -> Tiers:
    """Open the pools as `open_tiers` does."""
    del links, devices_dir, stretch
    tier, system, more_fast = _checked(machine, slow_bytes)
    fast = more_fast(fast_bytes)
    slow = NodePool(Tier.SLOW, slow_bytes, tier.slow_nodes, tier.huge_pages, system)
    if slow_bytes:
        log.info("slow pool: pages by memory node: %s", slow.pages_by_node())
    return Tiers(fast, slow, machine, more_fast)


def open_paged(program: Program, machine: Machine) -> Tiers:
    """Return a pool of the program's size whose pages Linux places in both memories, by the optimizer's policy.

    Raises:
        as `open_kind`.
    """
    policy, size_bytes = POLICIES[program.optimizer], program.slow_bytes
    if program.limit.is_unlimited:  # A ratio 0:n is a machine without slow memory.
        tier, system, more_fast = _checked(machine, 0)
        pool = NodePool(Tier.SLOW, size_bytes, tier.fast_nodes, tier.huge_pages, system)
        return Tiers(more_fast(0), pool, machine, more_fast)
    tier, system, more_fast = _checked(machine, max(0, size_bytes - program.dram_limit_bytes))
    every = (*tier.fast_nodes, *tier.slow_nodes)
    nodes = {PagePolicy.LOCAL: (), PagePolicy.PREFERRED: tier.fast_nodes[:1]}.get(policy, every)
    paged = PolicyPool(size_bytes, policy, nodes, every, huge_pages=tier.huge_pages == "transparent")
    return PolicyTiers(paged, machine, more_fast, program.dram_limit_bytes, system)


def _checked(machine: Machine, slow_bytes: int) -> tuple[NumaTier, SystemMemory, Callable[[int], NodePool]]:
    """Check the nodes and the capacity that the machine file names.

    Returns the slow tier, the system's memories, and a function that opens fast memory of a size.
    """
    tier, system = machine.slow_tier, SystemMemory()
    assert isinstance(tier, NumaTier)
    file = f"config/machines/{machine.name}.yaml"
    check_nodes(system, f"{file}: slow_tier.fast_nodes", tier.fast_nodes)
    slow_nodes = check_nodes(system, f"{file}: slow_tier.slow_nodes", tier.slow_nodes)
    check_capacity(file, tier, sum(node.total_bytes for node in slow_nodes), slow_bytes)
    more_fast = functools.partial(NodePool, Tier.FAST, nodes=tier.fast_nodes, huge_pages=tier.huge_pages, system=system)
    return tier, system, more_fast
