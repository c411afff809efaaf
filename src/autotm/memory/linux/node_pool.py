"""A pool whose pages are bound to memory nodes, and looked for there one by one."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from autotm.memory.linux.calls import NOWHERE, bind, lock, pages_by_node
from autotm.memory.pool import Pool
from autotm.model.files import AutotmError, BadInputError
from autotm.model.machine import MemoryNode, SystemMemory
from autotm.model.step import Tier

_AT_ONCE_BYTES = 64 << 20
"""Touched between two looks at what is left: binding beyond a node has the kernel kill the process."""


class NodePool(Pool):
    """`size_bytes` on `nodes` and nowhere else.

    Args:
        tier: the memory that the pool is.
        size_bytes: may be 0.
        nodes: numbers of memory nodes, all of which exist (`check_nodes`).
        huge_pages: `transparent`, `reserved` or `none`.
        system: this machine's memories.
    """

    def __init__(
        self, tier: Tier, size_bytes: int, nodes: Sequence[int], huge_pages: str, system: SystemMemory
    ) -> None:
        self.nodes = tuple(nodes)
        self._are_reserved = huge_pages == "reserved"
        self._system = system
        super().__init__(tier, size_bytes, huge_pages=huge_pages == "transparent")
        self.check()

    def _mapped(self, size_bytes: int) -> mmap.mmap:
        granularity = self._system.huge_page_bytes if self._are_reserved else mmap.PAGESIZE
        whole_bytes = -(-size_bytes // granularity) * granularity
        self._require_room(whole_bytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_HUGETLB if self._are_reserved else 0)
        try:
            return mmap.mmap(-1, whole_bytes, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise self._too_large(whole_bytes, str(error)) from None

    def _touch(self) -> None:
        bind(self._whole.ctypes.data, self._whole.size, self.nodes)
        for start in range(0, self._whole.size, _AT_ONCE_BYTES):
            part = self._whole[start : start + _AT_ONCE_BYTES]
            self._require_room(part.size)
            part[:: mmap.PAGESIZE] = 0

    def _require_room(self, size_bytes: int) -> None:
        nodes = self._system.nodes_named(self.nodes)
        where = f"node{'s' if len(self.nodes) > 1 else ''} {', '.join(map(str, self.nodes))}"
        if self._are_reserved:
            page_bytes = self._system.huge_page_bytes
            free = sum(node.free_huge_pages for node in nodes)
            if free * page_bytes < size_bytes:
                raise AutotmError(
                    f"{self.tier} pool: {-(-size_bytes // page_bytes)} huge pages are needed, {free} are set aside and "
                    f"free on {where}; set aside more (/sys/devices/system/node/node{self.nodes[0]}/hugepages), "
                    "or take huge_pages: transparent"
                )
            return
        room = sum(node.room_bytes for node in nodes)
        left = self._system.limit_left_bytes
        if left is not None and left < room:
            room, where = left, "this container's limit"
        if size_bytes > room:
            raise self._too_large(size_bytes, f"{where} has room for {room / 1e9:.3f} GB")

    def pages_by_node(self) -> dict[str, int]:
        """How many pages are on which memory node now, by its number."""
        return pages_by_node(self._whole.ctypes.data, self._whole.size)

    def keep(self) -> None:
        """Lock every page, so that no demotion takes it away, while that is switched on."""
        lock(self._whole.ctypes.data, self._whole.size)

    def check(self) -> None:
        """Make sure that every page is on the pool's nodes.

        Raises:
            AutotmError: some are not, so that what was measured since tells nothing; or the system does not tell.
        """
        found = self.pages_by_node()
        if away := {place: count for place, count in found.items() if place not in map(str, self.nodes)}:
            listed = ", ".join(f"{n} {place if place == NOWHERE else f'on node {place}'}" for place, n in away.items())
            raise AutotmError(
                f"{self.tier} pool: {sum(away.values())} of {sum(found.values())} pages are not on node "
                f"{', '.join(map(str, self.nodes))} ({listed}): something moved them, or took their memory away; what "
                "was measured meanwhile is refused. Look for page demotion, cpusets, swap and memory that was "
                "taken offline (autotm doctor), then run again"
            )


_MAP_HUGETLB = 0x40000


def check_nodes(system: SystemMemory, key: str, nodes: Sequence[int]) -> list[MemoryNode]:
    """The nodes of these numbers.

    Args:
        system: this machine's memories.
        key: of the machine file, for messages.
        nodes: as it names them.

    Raises:
        BadInputError: one does not exist, has no memory, is not for this process, or loses pages by itself.
    """
    found = system.nodes_named(nodes)
    if absent := sorted(set(nodes) - {node.number for node in found}):
        known = ", ".join(str(node.number) for node in system.nodes)
        what = "has no memory" if absent[0] in system.numbers else "does not exist"
        raise BadInputError(f"{key}: node {absent[0]} {what} on this machine; nodes with memory: {known}")
    for node in found:
        if reason := refusal(system, node):
            raise BadInputError(f"{key}: node {node.number}: {reason}")
    return found


def refusal(system: SystemMemory, node: MemoryNode) -> str | None:
    """Why pages cannot be bound to a node that exists so that they stay there; None where they can."""
    allowed = system.allowed_nodes
    if allowed is not None and node.number not in allowed:
        return (
            f"this process may take memory of node {', '.join(map(str, allowed))} only (cpuset.mems of its cgroup); "
            "start it elsewhere, or allow the node"
        )
    return demotion(system)


def demotion(system: SystemMemory) -> str | None:
    """Why pages in fast memory do not stay there; None where they do."""
    if system.demotes and len(system.nodes) > 1:
        return (
            "Linux moves little used pages to slower nodes, even bound ones; switch that off for the study: "
            "echo false | sudo tee /sys/kernel/mm/numa/demotion_enabled"
        )
    return None


def check_demotion(system: SystemMemory, key: str) -> None:
    """Refuse a machine whose fast memory is not bound to nodes, but loses pages all the same.

    Args:
        system: this machine's memories.
        key: of the machine file, for messages.

    Raises:
        BadInputError: it does; says how to switch that off.
    """
    if reason := demotion(system):
        raise BadInputError(f"{key}: {reason}")
