"""A pool in a file without a name, on a file system that is memory, or in a device that is memory."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

from autotm.memory.linux.calls import is_dax
from autotm.memory.linux.lock import hold, release
from autotm.memory.pool import Pool
from autotm.model.files import AutotmError, BadInputError
from autotm.model.machine import SystemMemory
from autotm.model.step import Tier

_MAP_SHARED_VALIDATE, _MAP_SYNC = 0x03, 0x80000
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
            what = "is neither a folder nor a DAX device" if path.exists() else "does not exist"
            raise BadInputError(f"{_KEY}: {path} {what}; give a folder on a file system with DAX, or /dev/daxX.Y")
        try:
            self._lock: tuple[int, int] | None = hold(path)
        except OSError as error:
            raise BadInputError(f"{_KEY}: {path}: {error.strerror}") from None
        self._file, self._device_end = -1, 0
        try:
            self._file = self._opened()
            super().__init__(Tier.PMEM, size_bytes, huge_pages=False)
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
        room_bytes = free.f_bavail * free.f_frsize
        if size_bytes > room_bytes:
            raise self._too_large(size_bytes, f"{room_bytes / 1e9:.3f} GB are free in {self._path}")
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
        """As `Pool.close`; others may have the folder or device then."""
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
    """Size of a device, or of the file system of a folder, in use or not; 0 where nothing is there."""
    if path.is_char_device():
        return system.dax_device_bytes(path.name)
    if not path.is_dir():
        return 0
    there = os.statvfs(path)
    return there.f_blocks * there.f_frsize
