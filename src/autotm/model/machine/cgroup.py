"""What a container, a service or a job may take: limits of this process's control group and of those around it.

Sources: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, scheduler/sched-bwc.rst; cgroups(7).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FIRST, _SECOND = 1, 2
"""Versions of control groups; a system may have both."""
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 says the greatest number that it can write where nothing limits."""


@dataclass(frozen=True)
class MemoryLimit:
    """The tightest limit of all groups around a process; `left_bytes` of another one, if that has less left."""

    limit_bytes: int
    left_bytes: int


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """What the process may take and may still take; None where nothing limits it. Caches of files count as free.

    Args:
        root: where /proc and /sys are.
    """
    found = []
    for folder, version in _groups(root, "memory"):
        limit_file, taken_file = _MEMORY_FILES[version]
        limit, taken = _number(folder / limit_file), _number(folder / taken_file)
        if limit is None or limit >= _NO_LIMIT_BYTES:
            continue
        found.append((limit, max(0, limit - (taken or 0) + _cache_bytes(folder, version))))
    if not found:
        return None
    limit = min(limit for limit, _ in found)
    return MemoryLimit(limit, min(limit, *(left for _, left in found)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores whose time the process may take; None where nothing limits it."""
    found = []
    for folder, version in _groups(root, "cpu"):
        if version == _FIRST:
            words = [_text(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        else:
            words = _text(folder / "cpu.max").split()
        if len(words) == len(("quota", "period")) and all(word.isdigit() for word in words):
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


_MEMORY_FILES = {
    _FIRST: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    _SECOND: ("memory.max", "memory.current"),
}


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """The folders of the process's group and of all around it, with the version of each."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, name = line.split(":", 2)
        version = _SECOND if number == "0" and not controllers else _FIRST
        if version == _FIRST and controller not in controllers.split(","):
            continue
        for mounted in _mounted(root, controller, version):
            # A container may be told its name as others see it, and shown its own group as the whole.
            inner = mounted / name.strip("/")
            folder = inner if inner.is_dir() else mounted
            yield folder, version
            while folder != mounted:
                folder = folder.parent
                yield folder, version


def _mounted(root: Path, controller: str, version: int) -> Iterator[Path]:
    for line in _text(root / "proc/mounts").splitlines():
        _, folder, kind, options, *_ = line.split()
        is_second = version == _SECOND
        if kind == ("cgroup2" if is_second else "cgroup") and (is_second or controller in options.split(",")):
            yield root / folder.strip("/")


def _cache_bytes(folder: Path, version: int) -> int:
    name = "inactive_file" if version == _SECOND else "total_inactive_file"
    told = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines())
    text = told.get(name, "0")
    return int(text) if text.isdigit() else 0


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
