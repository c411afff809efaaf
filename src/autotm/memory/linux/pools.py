"""Pools of real memories: pages bound to memory nodes and checked, and files or devices that are memory."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path

from autotm.memory.linux.system_calls import NOWHERE, bind, is_dax, lock, pages_by_node
from autotm.memory.pool import Pool
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import Tier
from autotm.model.machine import DaxTier, NumaTier
from autotm.model.system import MemoryNode, SystemMemory


def check_capacity(file: str, tier: NumaTier | DaxTier, there_bytes: int, slow_bytes: int) -> None:
    """Refuse what is not there.

    Args:
        file: the machine file, for messages.
        tier: of that file.
        there_bytes: slow memory that the machine has, in use or not.
        slow_bytes: what a run needs of it.

    Raises:
        BadInputError: the file allows more than there is.
        AutotmError: the run needs more than the file allows.
    """
    allowed_bytes = tier.capacity_bytes
    if allowed_bytes is None:
        return
    if allowed_bytes > there_bytes:
        raise BadInputError(
            f"{file}: slow_tier.capacity: {tier.capacity} is more than there is, {there_bytes / 1e9:.3f} GB"
        )
    if slow_bytes > allowed_bytes:
        raise AutotmError(
            f"{slow_bytes / 1e9:.3f} GB of slow memory are needed, {file} allows {tier.capacity} (slow_tier.capacity); "
            "take a smaller scale or batch, or raise it"
        )


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
        self._require_free_bytes(whole_bytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_HUGETLB if self._are_reserved else 0)
        try:
            return mmap.mmap(-1, whole_bytes, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise self._too_large(whole_bytes, str(error)) from None

    def _touch(self) -> None:
        bind(self._whole.ctypes.data, self._whole.size, self.nodes)
        for start in range(0, self._whole.size, _AT_ONCE_BYTES):
            part = self._whole[start : start + _AT_ONCE_BYTES]
            self._require_free_bytes(part.size)
            part[:: mmap.PAGESIZE] = 0

    def _require_free_bytes(self, size_bytes: int) -> None:
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
        free_bytes = sum(node.bindable_bytes for node in nodes)
        limit = self._system.memory_limit
        if limit is not None and limit.left_bytes < free_bytes:
            free_bytes, where = limit.left_bytes, "this container's limit"
        if size_bytes > free_bytes:
            raise self._too_large(size_bytes, f"{where} has room for {free_bytes / 1e9:.3f} GB")

    def pages_by_node(self) -> dict[str, int]:
        """Count pages by the number of their memory node."""
        return pages_by_node(self._whole.ctypes.data, self._whole.size)

    def keep(self) -> None:
        """Lock every page, so that no demotion takes it away, while that is switched on."""
        lock(self._whole.ctypes.data, self._whole.size)

    def check(self) -> None:
        """Make sure that every page is on the pool's nodes.

        Raises:
            AutotmError: some are not, so that what was measured since tells nothing; or the system does not tell.
        """
        pages = self.pages_by_node()
        if away := {place: count for place, count in pages.items() if place not in map(str, self.nodes)}:
            listed = ", ".join(f"{n} {place if place == NOWHERE else f'on node {place}'}" for place, n in away.items())
            raise AutotmError(
                f"{self.tier} pool: {sum(away.values())} of {sum(pages.values())} pages are not on node "
                f"{', '.join(map(str, self.nodes))} ({listed}): something moved them, or took their memory away; what "
                "was measured meanwhile is refused. Look for page demotion, cpusets, swap and memory that was "
                "taken offline (autotm doctor), then run again"
            )


_MAP_HUGETLB = 0x40000  # include/uapi/asm-generic/mman-common.h


def check_nodes(system: SystemMemory, key: str, nodes: Sequence[int]) -> list[MemoryNode]:
    """Return the memory nodes with these numbers.

    Args:
        system: this machine's memories.
        key: of the machine file, for messages.
        nodes: as it names them.

    Raises:
        BadInputError: one does not exist, has no memory, is not for this process, or loses pages by itself.
    """
    there = system.nodes_named(nodes)
    if absent := sorted(set(nodes) - {node.number for node in there}):
        known = ", ".join(str(node.number) for node in system.nodes)
        fault = "has no memory" if absent[0] in system.numbers else "does not exist"
        raise BadInputError(f"{key}: node {absent[0]} {fault} on this machine; nodes with memory: {known}")
    for node in there:
        if reason := refusal(system, node):
            raise BadInputError(f"{key}: node {node.number}: {reason}")
    return there


def refusal(system: SystemMemory, node: MemoryNode) -> str | None:
    """Return why pages cannot be bound to an existing node and stay there; None where they can."""
    allowed = system.allowed_nodes
    if allowed is not None and node.number not in allowed:
        return (
            f"this process may take memory of node {', '.join(map(str, allowed))} only (cpuset.mems of its cgroup); "
            "start it elsewhere, or allow the node"
        )
    return demotion(system)


def demotion(system: SystemMemory) -> str | None:
    """Return why pages in fast memory do not stay there; None where they do."""
    if system.demotes and len(system.nodes) > 1:
        return (
            "Linux moves little used pages to slower nodes, even bound ones; switch that off for the study: "
            "echo false | sudo tee /sys/kernel/mm/numa/demotion_enabled"
        )
    return None


# A folder or device for one process alone; the lock ends with the process, however that ends.

_held: dict[tuple[int, int], tuple[int, int]] = {}
"""Open file that holds the lock, and this process's number of pools there, by device and inode."""


def hold(path: Path) -> tuple[int, int]:
    """Lock `path`, which is there, against other processes; gives what `release` takes.

    Raises:
        BadInputError: another process has it; names that.
        OSError: it cannot be opened.
    """
    file = os.open(path, os.O_RDONLY)
    status = os.fstat(file)
    key = status.st_dev, status.st_ino
    if key in _held:
        os.close(file)
        file, count = _held[key]
        _held[key] = file, count + 1
        return key
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        owner = _owner(status)
        raise BadInputError(
            f"slow_tier.path: {path} is in use by another run{f' (process {owner})' if owner else ''}; two runs would "
            "disturb one another: wait for it, or give this one another folder or device"
        ) from None
    _held[key] = file, 1
    return key


def release(key: tuple[int, int]) -> None:
    """Give up what `hold` gave; the lock ends with the last."""
    file, count = _held.pop(key)
    if count > 1:
        _held[key] = file, count - 1
    else:
        os.close(file)


def _owner(status: os.stat_result) -> str | None:
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(rf"FLOCK\s+\S+\s+\S+\s+(\d+)\s+{place}\s", locks)
    return match[1] if match else None


# A pool in a file without a name, on a file system that is memory, or in a device that is memory.

_MAP_SHARED_VALIDATE, _MAP_SYNC = 0x03, 0x80000  # include/uapi/linux/mman.h, asm-generic/mman-common.h
_KEY = "slow_tier.path"

_device_ends: dict[Path, list[int]] = {}
"""Where the pools that this process has in a device end, in bytes from its start."""


class DaxPool(Pool):
    """`size_bytes` of a folder's file system, or of a device; no other process has a pool there meanwhile.

    In a folder it is a file that never has a name (O_TMPFILE): it is gone with the pool, however the process ends,
    and nothing that others made is ever touched. A device has no files: a pool overwrites its contents.

    Args:
        path: a folder on a file system with DAX, or a device such as /dev/dax0.0.
        size_bytes: may be 0.
        stand_in: take any file system.
        system: this machine's memories.

    Raises:
        BadInputError: no such folder or device, no permission, no DAX there, or another run is there.
        AutotmError: it does not give the memory.
    """

    def __init__(self, path: Path, size_bytes: int, *, stand_in: bool, system: SystemMemory) -> None:
        self._path = path
        self._stand_in = stand_in
        self._system = system
        self._is_device = path.is_char_device()
        if not self._is_device and not path.is_dir():
            fault = "is neither a folder nor a DAX device" if path.exists() else "does not exist"
            raise BadInputError(f"{_KEY}: {path} {fault}; give a folder on a file system with DAX, or /dev/daxX.Y")
        try:
            self._lock: tuple[int, int] | None = hold(path)
        except OSError as error:
            raise BadInputError(f"{_KEY}: {path}: {error.strerror}") from None
        self._file, self._device_end = -1, 0
        try:
            self._file = self._opened()
            super().__init__(Tier.SLOW, size_bytes, huge_pages=False)
        except BaseException:
            self._let_go()
            raise

    def _opened(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | (0 if self._is_device else os.O_TMPFILE), 0o600)
        except PermissionError:
            remedy = f"sudo chown $USER {self._path}" if self._is_device else "give one where it may"
            raise BadInputError(f"{_KEY}: this process may not write to {self._path}; {remedy}") from None
        except OSError as error:
            if error.errno in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL} and not self._is_device:
                raise BadInputError(
                    f"{_KEY}: the file system of {self._path} has no files without a name (O_TMPFILE), which alone "
                    "never outlive a run; ext4, xfs and tmpfs have them"
                ) from None
            raise BadInputError(f"{_KEY}: {self._path}: {error.strerror}") from None

    def _mapped(self, size_bytes: int) -> mmap.mmap:
        return self._mapped_device(size_bytes) if self._is_device else self._mapped_file(size_bytes)

    def _mapped_file(self, size_bytes: int) -> mmap.mmap:
        has_dax = is_dax(self._file)
        if not has_dax and not self._stand_in:
            mount = self._system.mount_of(self._path)
            options = f" ({mount.file_system} at {mount.folder}, {mount.options})" if mount else ""
            raise BadInputError(
                f"{_KEY}: files in {self._path} do not have DAX{options}: they would be in the page cache, which is "
                "ordinary memory; mount with -o dax=always on persistent memory, or set stand_in: true to try autotm "
                "without slow memory"
            )
        free = os.statvfs(self._path)
        free_bytes = free.f_bavail * free.f_frsize
        if size_bytes > free_bytes:
            raise self._too_large(size_bytes, f"{free_bytes / 1e9:.3f} GB are free in {self._path}")
        if not has_dax:
            self._require_available(size_bytes)
        try:
            os.posix_fallocate(self._file, 0, size_bytes)
            flags = _MAP_SHARED_VALIDATE | _MAP_SYNC if has_dax else mmap.MAP_SHARED
            return mmap.mmap(self._file, size_bytes, flags=flags)
        except OSError as error:
            raise self._too_large(size_bytes, f"{self._path}: {error.strerror}") from None

    def _mapped_device(self, size_bytes: int) -> mmap.mmap:
        name = self._path.name
        there_bytes, align_bytes = self._system.dax_device_bytes(name), self._system.dax_device_align_bytes(name)
        if not there_bytes:
            raise BadInputError(f"{_KEY}: {self._path} is no DAX device; give one such as /dev/dax0.0, or a folder")
        whole_bytes = -(-size_bytes // align_bytes) * align_bytes
        if not self.size_bytes:
            # Only asked for, not used: the contents stay.
            return mmap.mmap(-1, size_bytes)
        first = max((end for end in _device_ends.get(self._path, ())), default=0)
        if whole_bytes > there_bytes - first:
            raise self._too_large(whole_bytes, f"{self._path} has {(there_bytes - first) / 1e9:.3f} GB left")
        try:
            mapping = mmap.mmap(self._file, whole_bytes, flags=_MAP_SHARED_VALIDATE | _MAP_SYNC, offset=first)
        except OSError as error:
            raise BadInputError(f"{_KEY}: {self._path}: {error.strerror}") from None
        self._device_end = first + whole_bytes
        _device_ends.setdefault(self._path, []).append(self._device_end)
        return mapping

    def check(self) -> None:
        """Make sure that the file is as large as it was, and still memory.

        Raises:
            AutotmError: it is not, so that what was measured since tells nothing.
        """
        if self._is_device:
            same = self._system.dax_device_bytes(self._path.name) > 0
        else:
            same = os.fstat(self._file).st_size >= self.size_bytes and (self._stand_in or is_dax(self._file))
        if not same:
            raise AutotmError(
                f"{self.tier} pool: {self._path} changed while it was in use; what was measured meanwhile is refused: "
                "look for what else uses it, then run again"
            )

    def close(self) -> None:
        """Close the pool as `Pool.close` does; others may have the folder or device then."""
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._device_end:
            _device_ends[self._path].remove(self._device_end)
            self._device_end = 0
        if self._lock is not None:
            release(self._lock)
            self._lock = None


def dax_bytes(path: Path, system: SystemMemory) -> int:
    """Return the size of a device, or of the file system of a folder, in use or not; 0 where nothing is there."""
    if path.is_char_device():
        return system.dax_device_bytes(path.name)
    if not path.is_dir():
        return 0
    there = os.statvfs(path)
    return there.f_blocks * there.f_frsize
