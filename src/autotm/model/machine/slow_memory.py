"""What results say of slow memory that is not emulated: which nodes or file system, how far, what the firmware says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotm.model.machine.slow_tier import AnyTier, DaxTier, ModelledTier, NumaTier
from autotm.model.machine.system_memory import SystemMemory


def slow_memory_facts(tier: AnyTier, system: SystemMemory | None = None) -> dict[str, Any]:
    """For provenance, as JSON; empty where slow memory is emulated. What the system does not tell is null.

    Of a modelled GPU the device file; of a real one its memories say more, where they are opened.

    `distance` is in Linux's units (10 is local), `hmat` what the firmware says of accesses from the nearest cores.
    """
    here = system or SystemMemory()
    match tier:
        case NumaTier():
            pairs = [(fast, slow) for fast in tier.fast_nodes for slow in tier.slow_nodes]
            distances = [found for found in (here.distance(*pair) for pair in pairs) if found is not None]
            found: dict[str, Any] = {
                "fast_nodes": list(tier.fast_nodes),
                "slow_nodes": list(tier.slow_nodes),
                "distance": max(distances, default=None),
                "hmat": {str(node.number): node.hmat for node in here.nodes_named(tier.slow_nodes) if node.hmat},
            }
        case DaxTier():
            path = Path(tier.path)
            device = path.name if path.is_char_device() else ""
            mount = None if device else here.mount_of(path)
            found = {
                "fast_nodes": None if tier.fast_nodes is None else list(tier.fast_nodes),
                "path": tier.path,
                "device": device or (mount.device if mount else None),
                "file_system": mount.file_system if mount else None,
                "mount_options": mount.options if mount else None,
                "device_node": here.device_node(device or Path(mount.device if mount else "none").name),
            }
        case ModelledTier():
            return {"kind": tier.kind, "device": tier.device}
        case _:
            return {}
    return {
        "kind": tier.kind,
        "stand_in": tier.stand_in,
        **found,
        "huge_pages": tier.huge_pages,
        "transparent_huge_pages": here.huge_pages or None,
        "numa_balancing": here.numa_balancing or None,
        "demotion": here.demotes,
    }


def slow_memory_text(source: Mapping[str, Any]) -> str:
    """From the provenance of a file, a few words for captions; empty where slow memory is emulated.

    Of a GPU they say what else a reader must know, if its results are not exact.
    """
    facts = source.get("slow_memory") or {}
    if facts.get("kind") == "dax":
        where = ", ".join(str(facts[key]) for key in ("device", "file_system", "mount_options") if facts.get(key))
        return f"{'files in' if facts['stand_in'] else 'DAX at'} {facts['path']} ({where})"
    if facts.get("kind") == "modelled":
        return f"GPU {facts['device']}, a model"
    if products := source.get("products"):
        return f"of the host of a GPU, whose contractions round their factors to {products}"
    if facts.get("kind") != "numa":
        return ""
    nodes = facts["slow_nodes"]
    said = [f"memory node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"]
    if facts.get("distance") is not None:
        said.append(f"distance {facts['distance']}")
    said += [f"HMAT of node {node}: {_hmat_text(hmat)}" for node, hmat in facts.get("hmat", {}).items()]
    return ", ".join(said)


def _hmat_text(hmat: Mapping[str, int]) -> str:
    units = {
        "read_mb_per_s": "MB/s read",
        "write_mb_per_s": "MB/s written",
        "read_ns": "ns read",
        "write_ns": "ns write",
    }
    return " ".join(f"{hmat[key]} {unit}" for key, unit in units.items() if key in hmat)
