"""The memories of a machine, and what the system does to their pages, as Linux tells."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_KIB = 1024


@dataclass(frozen=True)
class Node:
    """A memory node.

    Attributes:
        number: as the system counts.
        cpus: hardware threads next to it, as a list such as `0-3`; empty where there are none.
        distance: from the first node, in the system's units: 10 is local.
    """

    number: int
    total_bytes: int
    free_bytes: int
    cpus: str
    distance: int


class Memories:
    """Reads /sys and /proc below `root`; what is not there is none."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    @cached_property
    def nodes(self) -> list[Node]:
        """Nodes with memory, by number; one of all memory where the system does not tell."""
        folders = (self._root / "sys/devices/system/node").glob("node[0-9]*")
        numbers = sorted(int(folder.name.removeprefix("node")) for folder in folders)
        found = [self._node(number) for number in numbers]
        if not found:
            info = self._text("proc/meminfo")
            return [Node(0, _size(info, "MemTotal"), _size(info, "MemAvailable"), "all", 10)]
        return [node for node in found if node.total_bytes]

    def _node(self, number: int) -> Node:
        folder = f"sys/devices/system/node/node{number}"
        info, distances = self._text(f"{folder}/meminfo"), self._text(f"{folder}/distance").split()
        sizes = _size(info, "MemTotal"), _size(info, "MemFree")
        return Node(number, *sizes, self._text(f"{folder}/cpulist"), int(distances[0]) if distances else 0)

    @cached_property
    def limit_bytes(self) -> int | None:
        """What a container may take; None where nothing limits it."""
        limit = self._text("sys/fs/cgroup/memory.max")
        return int(limit) if limit.isdigit() else None

    @cached_property
    def dax_mounts(self) -> list[str]:
        """File systems whose pages are the memory itself."""
        mounts = (line.split() for line in self._text("proc/mounts").splitlines())
        return [words[1] for words in mounts if re.search(r"(^|,)dax(=always)?(,|$)", words[3])]

    @cached_property
    def dax_devices(self) -> list[str]:
        """Devices that give memory without a file system."""
        return sorted(path.name for path in (self._root / "sys/bus/dax/devices").glob("*"))

    @cached_property
    def huge_pages(self) -> str:
        """Whether the system gives huge pages by itself: `always`, `madvise` or `never`."""
        found = re.search(r"\[(\w+)\]", self._text("sys/kernel/mm/transparent_hugepage/enabled"))
        return found[1] if found else ""

    @cached_property
    def reserved_huge_pages(self) -> int:
        """How many are set aside."""
        found = re.search(r"HugePages_Total:\s*(\d+)", self._text("proc/meminfo"))
        return int(found[1]) if found else 0

    @cached_property
    def balances(self) -> bool:
        """Whether the system moves pages between nodes by itself."""
        return self._text("proc/sys/kernel/numa_balancing") not in {"", "0"}

    @cached_property
    def demotes(self) -> bool:
        """Whether it moves pages that are little used to slower nodes."""
        return self._text("sys/kernel/mm/numa/demotion_enabled") in {"true", "1"}

    @cached_property
    def governor(self) -> str:
        """What sets the clock of the first core; empty where nothing is told."""
        return self._text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def _size(info: str, name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+) kB", info)
    return int(found[1]) * _KIB if found else 0
