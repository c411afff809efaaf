"""Facts about this computer, read from Linux: memory nodes, mounts, huge pages, and limits of control groups.

The module also finds the C compiler.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autotm.model.cores import parse_cpu_list, read_text
from autotm.model.errors import AutotmError

_CGROUP_V1, _CGROUP_V2 = 1, 2
"""Versions of control groups; a system may have both."""
_MEMORY_FILES = {
    _CGROUP_V1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    _CGROUP_V2: ("memory.max", "memory.current", "inactive_file"),
}
"""Limit, what is taken, and which line of `memory.stat` tells how much of that are caches of files."""
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 says the greatest number that it can write where nothing limits."""
_KIB = 1024
_SECTOR_BYTES = 512
_PAGE_BYTES = mmap.PAGESIZE
_RESERVE_BYTES = 32 << 20
_RESERVE_SHARE = 0.02
"""Share of a node that is left free: once the last pages are taken, the kernel kills processes."""
_SAID = {
    "read_bandwidth": "read_mb_per_s", "write_bandwidth": "write_mb_per_s",
    "read_latency": "read_ns", "write_latency": "write_ns",
}  # fmt: skip
"""Properties of a node in the firmware's table (ACPI HMAT): the name that Linux uses, and the name in records."""


@dataclass(frozen=True)
class MemoryNode:
    """A memory node.

    Attributes:
        number: as the system counts.
        total_bytes, free_bytes: of its memory; what caches of files could give back counts as free.
        cpus: hardware threads next to it, as a list such as `0-3`; empty where there are none.
        distances: to each node, by the order of their numbers, in the system's units: 10 is local.
        hmat: what the firmware tells of accesses from the nearest cores; empty where it tells nothing.
        free_huge_pages: of the default size, set aside and not in use.
    """

    number: int
    total_bytes: int
    free_bytes: int
    cpus: str
    distances: tuple[int, ...]
    hmat: dict[str, int]
    free_huge_pages: int

    @property
    def bindable_bytes(self) -> int:
        """Bytes that can be bound to the node without reaching the system's emergency reserve."""
        return max(0, self.free_bytes - _RESERVE_BYTES - int(_RESERVE_SHARE * self.total_bytes))


@dataclass(frozen=True)
class Mount:
    """A mounted file system, with its folder and options."""

    folder: str
    device: str
    file_system: str
    options: str

    @property
    def is_dax(self) -> bool:
        """Whether it is mounted for direct access; with `dax=inode` some files may have it all the same."""
        return bool(re.search(r"(^|,)dax(=always)?(,|$)", self.options))


@dataclass(frozen=True)
class MemoryLimit:
    """The tightest memory limit of all control groups around a process, and the least that any of them has left."""

    limit_bytes: int
    left_bytes: int


class SystemMemory:
    """Reads /sys and /proc below `root`, tests others than this machine's; what is not there is none."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def _text(self, path: str) -> str:
        return read_text(self._root / path)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of all memory nodes, with memory or without, ascending; empty if the system does not list them."""
        folders = (self._root / "sys/devices/system/node").glob("node[0-9]*")
        return tuple(sorted(int(folder.name.removeprefix("node")) for folder in folders))

    @property
    def nodes(self) -> list[MemoryNode]:
        """Nodes with memory, by number, as they are now; one of all memory where the system does not tell."""
        info = self._text("proc/meminfo")
        total, free = (_KIB * _count(info, name) for name in ("MemTotal", "MemAvailable"))
        if not self.numbers:
            return [MemoryNode(0, total, free, "all", (10,), {}, _count(info, "HugePages_Free"))]
        nodes = [node for node in map(self._node, self.numbers) if node.total_bytes]
        # Linux tells of one node twice. In a virtual machine whose memory grew, what it tells by node may lag behind.
        if len(nodes) == 1 and total > nodes[0].total_bytes:
            return [replace(nodes[0], total_bytes=total, free_bytes=free)]
        return nodes

    def nodes_named(self, numbers: Iterable[int]) -> list[MemoryNode]:
        """Return the memory nodes with these numbers."""
        wanted = set(numbers)
        return [node for node in self.nodes if node.number in wanted]

    def _node(self, number: int) -> MemoryNode:
        folder = f"sys/devices/system/node/node{number}"
        info = self._text(f"{folder}/meminfo")
        free = sum(_count(info, name) for name in ("MemFree", "Active\\(file\\)", "Inactive\\(file\\)"))
        firmware = {ours: self._text(f"{folder}/access0/initiators/{theirs}") for theirs, ours in _SAID.items()}
        return MemoryNode(
            number,
            _KIB * _count(info, "MemTotal"),
            _KIB * free,
            self._text(f"{folder}/cpulist"),
            tuple(map(int, self._text(f"{folder}/distance").split())),
            {name: value for name, text in firmware.items() if (value := _number(text))},
            _count(info, "HugePages_Free"),
        )

    def distance(self, one: int, other: int) -> int | None:
        """Return the distance between two nodes in the system's units (10 is local); None if it does not tell."""
        distances = next((node.distances for node in map(self._node, self.numbers) if node.number == one), ())
        place = self.numbers.index(other) if other in self.numbers else len(distances)
        return distances[place] if place < len(distances) else None

    @property
    def allowed_nodes(self) -> tuple[int, ...] | None:
        """Numbers of the nodes whose memory this process may use (cpuset); None if the system does not tell."""
        match = re.search(r"Mems_allowed_list:\s*(\S+)", self._text("proc/self/status"))
        return tuple(parse_cpu_list(match[1])) if match else None

    # Limits of a container, a service or a job: those of this process's control group and of the groups around it.
    # Sources: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, scheduler/sched-bwc.rst; cgroups(7).

    @property
    def memory_limit(self) -> MemoryLimit | None:
        """How much memory this process may use and how much of that is left; None if no control group limits it.

        Caches of files count as free.
        """
        limits, left = [], []
        for folder, version in self._control_groups("memory"):
            limit_file, taken_file, cached = _MEMORY_FILES[version]
            limit = _number(read_text(folder / limit_file))
            if limit is None or limit >= _NO_LIMIT_BYTES:
                continue
            statistics = dict(line.split(maxsplit=1) for line in read_text(folder / "memory.stat").splitlines())
            taken = (_number(read_text(folder / taken_file)) or 0) - (_number(statistics.get(cached, "")) or 0)
            limits.append(limit)
            left.append(max(0, limit - taken))
        return MemoryLimit(min(limits), min(limits + left)) if limits else None

    @property
    def cpu_quota(self) -> float | None:
        """Cores whose time the process may take; None where nothing limits it."""
        quotas = []
        for folder, version in self._control_groups("cpu"):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == _CGROUP_V1 else ("cpu.max",)
            words = " ".join(read_text(folder / name) for name in names).split()
            if len(words) == len(("quota", "period")) and all(word.isdigit() for word in words):
                quotas.append(int(words[0]) / int(words[1]))
        return min(quotas, default=None)

    def _control_groups(self, controller: str) -> Iterator[tuple[Path, int]]:
        """Yield the folders of the process's group and of all around it, with the version of each."""
        for group in self._text("proc/self/cgroup").splitlines():
            number, controllers, name = group.split(":", 2)
            version = _CGROUP_V2 if number == "0" and not controllers else _CGROUP_V1
            if version == _CGROUP_V1 and controller not in controllers.split(","):
                continue
            for mount in self.mounts:
                is_other = version == _CGROUP_V1 and controller not in mount.options.split(",")
                if is_other or mount.file_system != ("cgroup" if version == _CGROUP_V1 else "cgroup2"):
                    continue
                mounted = self._root / mount.folder.strip("/")
                # A container may be told its name as others see it, and shown its own group as the whole.
                inner = mounted / name.strip("/")
                folder = inner if inner.is_dir() else mounted
                yield folder, version
                while folder != mounted:
                    folder = folder.parent
                    yield folder, version

    @property
    def mounts(self) -> list[Mount]:
        """Mounted file systems; a later one hides an earlier one in the same folder."""
        fields = (line.split() for line in self._text("proc/mounts").splitlines())
        # Blanks and the like are written as octal numbers.
        return [
            Mount(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), folder), device, kind, options)
            for device, folder, kind, options, *_ in fields
        ]

    def mount_of(self, path: Path) -> Mount | None:
        """Return the file system that a folder is on; None where the system does not tell."""
        parents = {str(path.resolve()), *(str(parent) for parent in path.resolve().parents)}
        holding = [mount for mount in self.mounts if mount.folder in parents]
        longest = max((len(mount.folder) for mount in holding), default=0)
        return next((mount for mount in reversed(holding) if len(mount.folder) == longest), None)

    @property
    def dax_devices(self) -> list[str]:
        """Devices that give memory without a file system, and are not in use as a memory node."""
        devices = sorted((self._root / "sys/bus/dax/devices").glob("*"))
        return [path.name for path in devices if (path / "driver").resolve().name != "kmem"]

    @property
    def memory_disks(self) -> dict[str, int]:
        """Bytes of each block device that is persistent memory, by name, such as `pmem0` or a part of it."""
        disks = sorted((self._root / "sys/class/block").glob("pmem*"))
        sectors = {path.name: _number(read_text(path / "size")) for path in disks}
        return {name: number * _SECTOR_BYTES for name, number in sectors.items() if number is not None}

    def holds_mounts(self, disk: str) -> bool:
        """Return whether a file system of the block device, or of a part of it, is mounted."""
        return any(re.fullmatch(rf"/dev/{disk}(p\d+)?", mount.device) for mount in self.mounts)

    def dax_device_bytes(self, name: str) -> int:
        """Return the size of a device in `dax_devices`; 0 where the system does not tell."""
        return _number(self._text(f"sys/bus/dax/devices/{name}/size")) or 0

    def dax_device_align_bytes(self, name: str) -> int:
        """Return the alignment of a device in `dax_devices`: bytes that each mapped piece must be a multiple of."""
        return _number(self._text(f"sys/bus/dax/devices/{name}/align")) or 2 << 20

    def device_node(self, name: str) -> int | None:
        """Return the node next to a DAX device or a block device of persistent memory; None where it is unknown."""
        places = (f"sys/bus/dax/devices/{name}/numa_node", f"sys/class/block/{name}/device/numa_node")
        return next((node for place in places if (node := _number(self._text(place))) is not None), None)

    @property
    def huge_pages(self) -> str:
        """Whether the system gives huge pages by itself: `always`, `madvise` or `never`."""
        match = re.search(r"\[(\w+)\]", self._text("sys/kernel/mm/transparent_hugepage/enabled"))
        return match[1] if match else ""

    @property
    def huge_page_bytes(self) -> int:
        """Size of the huge pages that are set aside."""
        return _KIB * _count(self._text("proc/meminfo"), "Hugepagesize") or 2 << 20

    @property
    def reserved_huge_pages(self) -> int:
        """Number of huge pages that are set aside."""
        return _count(self._text("proc/meminfo"), "HugePages_Total")

    @property
    def numa_balancing(self) -> str:
        """The setting under which the system moves pages between nodes by itself: `0` is off; empty where it cannot."""
        return self._text("proc/sys/kernel/numa_balancing")

    @property
    def demotes(self) -> bool:
        """Whether the system moves pages that are little used to slower nodes."""
        return self._text("sys/kernel/mm/numa/demotion_enabled") in {"true", "1"}

    def setting(self, name: str) -> str | None:
        """Return the content of a file of settings, by its path below the root; None if the kernel has no such file."""
        return self._text(name) if (self._root / name).exists() else None

    def may_set(self, name: str) -> bool:
        """Return whether this process may write a file of settings, by its path below the root."""
        return os.access(self._root / name, os.W_OK)

    @property
    def knows_weights(self) -> bool:
        """Whether the kernel can interleave pages by weight."""
        return (self._root / "sys/kernel/mm/mempolicy/weighted_interleave").is_dir()

    def listed_bytes(self, node: int) -> int:
        """Return the most bytes of a node in a processor's lists of free pages, which Linux does not count as free."""
        pages = 0
        for zone in re.split(r"^Node ", self._text("proc/zoneinfo"), flags=re.MULTILINE):
            if zone.startswith(f"{node}, "):
                lists = zone.partition("pagesets")[2]
                pages += max((int(high) for high in re.findall(r"\bhigh(?:_max)?:\s+(\d+)", lists)), default=0)
        return pages * _PAGE_BYTES

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """Bytes promoted to faster and demoted to slower nodes since the system started, of all processes together."""
        counters = dict(line.split() for line in self._text("proc/vmstat").splitlines())
        promoted = int(counters.get("pgpromote_success", 0))
        demoted = sum(int(count) for name, count in counters.items() if name.startswith("pgdemote_"))
        return promoted * _PAGE_BYTES, demoted * _PAGE_BYTES


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _count(info: str, name: str) -> int:
    """Return the number in a line of a meminfo file: KiB, or for `HugePages_...` pages; 0 without such a line."""
    match = re.search(rf"\b{name}:\s*(\d+)", info)
    return int(match[1]) if match else 0


def find_compiler() -> str:
    """Return the C compiler that links kernels and compiles copies: $CC, or the first of the usual ones.

    Raises:
        AutotmError: there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if compiler := shutil.which(name):
            return compiler
    raise AutotmError(
        "no C compiler found to link kernels with (looked for $CC, cc, gcc, clang); install one: "
        "apt-get install gcc, or conda install c-compiler"
    )
