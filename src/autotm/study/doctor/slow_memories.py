"""What of a machine could be slow memory, with the lines of a machine file for it, or why it cannot."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotm.memory.linux import DaxPool, NodePool, refusal
from autotm.model.files import AutotmError
from autotm.model.machine import DaxTier, MemoryNode, NumaTier, SystemMemory
from autotm.model.step import Tier

Probe = Callable[[NumaTier | DaxTier], str | None]
"""Tries a memory out; says why it cannot be had, or None where it can."""


@dataclass(frozen=True)
class SlowMemory:
    """A memory that is, or might be, slower than that next to the cores.

    Attributes:
        what: the thing.
        found: what there is of it.
        tier: how a machine file names it; None where it cannot be used as it is.
        why_not: the reason and the remedy; empty where it can be used.
        caution: what using it does to others.
        other_fast_nodes: further memory nodes with cores that may be `fast_nodes` instead, farther away.
    """

    what: str
    found: str
    tier: NumaTier | DaxTier | None
    why_not: str = ""
    caution: str = ""
    other_fast_nodes: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """For a machine file, with what may stand in it instead; empty where it cannot be used."""
        if self.tier is None:
            return ""
        said = self.tier.model_dump(mode="json", exclude_defaults=True)
        fields = ", ".join(f"{key}: {value}" for key, value in sorted(said.items(), key=lambda one: one[0] != "kind"))
        instead = " or ".join(f"[{node}]" for node in self.other_fast_nodes)
        return f"slow_tier: {{{fields}}}" + (f", or fast_nodes: {instead}" if instead else "")


def here(tier: NumaTier | DaxTier) -> str | None:
    """A `Probe` of this machine: opens pools as a run would, of a page of a node, and of nothing behind DAX."""
    system = SystemMemory()
    try:
        if isinstance(tier, NumaTier):
            NodePool(Tier.PMEM, mmap.PAGESIZE, tier.slow_nodes, "none", system).close()
            NodePool(Tier.DRAM, mmap.PAGESIZE, tier.fast_nodes, "none", system).close()
        else:
            DaxPool(Path(tier.path), 0, stand_in=False, system=system).close()
            if tier.fast_nodes is not None:
                NodePool(Tier.DRAM, mmap.PAGESIZE, tier.fast_nodes, "none", system).close()
    except AutotmError as error:
        return str(error)
    return None


def slow_memories(system: SystemMemory, fast_nodes: Sequence[int], probe: Probe, devices: Path) -> list[SlowMemory]:
    """All that this machine has beside the memory next to its cores; of several nodes with cores, each beside another.

    Args:
        system: its memories.
        fast_nodes: next to cores that kernels may run on.
        probe: tries one out.
        devices: the folder of device files, /dev.
    """
    beside = _Beside(system, tuple(fast_nodes))
    pairs = ((node, beside.nearest(node.number)) for node in system.nodes)
    return [
        *(_node(beside, node, near, probe) for node, near in pairs if near),
        *_file_systems(beside, probe),
        *_devices(beside, devices, probe),
    ]


@dataclass(frozen=True)
class _Beside:
    """The nodes with cores, and what is next to them."""

    system: SystemMemory
    fast_nodes: tuple[int, ...]

    def nearest(self, node: int | None) -> tuple[int, ...]:
        """Those but `node` itself, the nearest to it first."""
        others = [fast for fast in self.fast_nodes if fast != node]
        return tuple(others if node is None else sorted(others, key=lambda fast: self.system.distance(fast, node) or 0))

    def near_device(self, name: str) -> tuple[int, ...]:
        """All of them, that of a device first."""
        own = self.system.device_node(name)
        return tuple(sorted(self.nearest(None), key=lambda fast: fast != own))

    @property
    def barred(self) -> str:
        """Why none can be fast memory; empty where one can."""
        nodes = self.system.nodes_named(self.fast_nodes)
        reasons = [refusal(self.system, node) for node in nodes]
        return (reasons[0] or "") if reasons and all(reasons) else ""


def _node(beside: _Beside, node: MemoryNode, near: tuple[int, ...], probe: Probe) -> SlowMemory:
    system, fast_node = beside.system, near[0]
    cores = f"beside cores {node.cpus}" if node.cpus else "no cores (CXL, persistent or far memory)"
    said = [_size(node.total_bytes, node.free_bytes), cores]
    distance = system.distance(fast_node, node.number)
    if distance is not None:
        said.append(f"distance {distance} from node {fast_node}")
    said += [f"{value} {_UNITS[key]}" for key, value in node.hmat.items()]
    tier = NumaTier(kind="numa", fast_nodes=(fast_node,), slow_nodes=(node.number,))
    why_not = refusal(system, node) or beside.barred or probe(tier) or ""
    name, shown = f"memory node {node.number}", None if why_not else tier
    return SlowMemory(name, ", ".join(said), shown, why_not, other_fast_nodes=near[1:])


_UNITS = {
    "read_mb_per_s": "MB/s read (HMAT)",
    "write_mb_per_s": "MB/s write (HMAT)",
    "read_ns": "ns read (HMAT)",
    "write_ns": "ns write (HMAT)",
}


def _file_systems(beside: _Beside, probe: Probe) -> Iterator[SlowMemory]:
    system = beside.system
    mounts = {mount.folder: mount for mount in system.mounts}
    on_memory = {mount.device: mount for mount in mounts.values() if Path(mount.device).name in system.memory_disks}
    for mount in {mount.folder: mount for mount in (*on_memory.values(), *mounts.values())}.values():
        is_memory = mount.device in on_memory
        if not is_memory and not mount.is_dax:
            continue
        found = f"{mount.file_system} on {mount.device} ({mount.options})"
        near = beside.near_device(Path(mount.device).name)
        tier = DaxTier(kind="dax", path=mount.folder, fast_nodes=near[:1])
        why_not = beside.barred or ("" if mount.is_dax else _WITHOUT_DAX.format(folder=mount.folder))
        if not why_not:
            tier, why_not, said = _bound_or_not(tier, probe)
            found += said
        others = near[1:] if tier.fast_nodes else ()
        yield SlowMemory(f"folder {mount.folder}", found, None if why_not else tier, why_not, other_fast_nodes=others)
    for name, size_bytes in system.memory_disks.items():
        if f"/dev/{name}" not in on_memory and not system.holds_mounts(name):
            why_not = (
                f"not mounted: make a file system if it holds no data (sudo mkfs.ext4 /dev/{name}), then sudo mount -o "
                f"dax=always /dev/{name} FOLDER; or turn it into a memory node or device with ndctl and daxctl"
            )
            yield SlowMemory(f"persistent memory {name}", f"{size_bytes / 1e9:.4g} GB", None, why_not)


def _bound_or_not(tier: DaxTier, probe: Probe) -> tuple[DaxTier, str, str]:
    """The tier; or, where pages may not be bound, without fast nodes; why it cannot be used; why it was changed."""
    refused = probe(tier)
    if not refused:
        return tier, "", ""
    unbound = tier.model_copy(update={"fast_nodes": None})
    why_not = probe(unbound)
    return (tier, why_not, "") if why_not else (unbound, "", f", beside memory that cannot be bound: {refused}")


_WITHOUT_DAX = (
    "mounted without dax: files would be in the page cache, which is ordinary memory: sudo umount {folder}, then mount "
    "with -o dax=always"
)


def _devices(beside: _Beside, devices: Path, probe: Probe) -> Iterator[SlowMemory]:
    system = beside.system
    for name in system.dax_devices:
        file, near = devices / name, beside.near_device(name)
        why_not = beside.barred
        if not why_not and not file.exists():
            why_not = f"/dev/{name} is not there: a container must be given it (docker run --device /dev/{name})"
        if not why_not and not os.access(file, os.R_OK | os.W_OK):
            why_not = f"this process may not write to /dev/{name}: sudo chown $USER /dev/{name}"
        found = f"{system.dax_device_bytes(name) / 1e9:.4g} GB"
        tier = DaxTier(kind="dax", path=f"/dev/{name}", fast_nodes=near[:1])
        if not why_not:
            tier, why_not, said = _bound_or_not(tier, probe)
            found += said
        shown, others = None if why_not else tier, near[1:] if tier.fast_nodes else ()
        yield SlowMemory(f"DAX device {name}", found, shown, why_not, "runs overwrite its contents", others)


def _size(total_bytes: int, free_bytes: int) -> str:
    return f"{total_bytes / 1e9:.4g} GB, {free_bytes / 1e9:.4g} GB free"
