"""What is known of a machine's Optane modules, regions, namespaces and file systems; looking changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotm.cli.machine.optane.tools import look
from autotm.model.files import AutotmError

_NODES, _CPUS = Path("sys/devices/system/node"), Path("sys/devices/system/cpu")
_SHOW = ("ipmctl", "show", "-units", "GiB")
_NOTHING_FOUND = 2
"""Exit status of blkid on a device without any signature."""


@dataclass(frozen=True)
class Mount:
    """A mounted file system."""

    source: str
    folder: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Namespace:
    """A namespace of a region, and why it may hold something.

    Attributes:
        name: e.g. namespace1.0.
        mode: fsdax, devdax, sector or raw.
        block_device: e.g. pmem1; empty where it is none.
        signature: what stands on it (the type of a file system, of a partition table, ...); empty where nothing does.
        label: of that file system.
        used_by: folders that it is mounted on, swap, and devices that are made of it.
    """

    name: str
    mode: str
    block_device: str
    signature: str
    label: str
    used_by: tuple[str, ...]

    @property
    def holds(self) -> str:
        """Why it must not be destroyed, in words; empty where it may be."""
        if self.used_by:
            return f"is in use: {', '.join(self.used_by)}"
        if not self.block_device:
            return f"is {self.mode}, whose contents no tool can tell"
        return f"holds data: {self.signature}" if self.signature else ""


@dataclass(frozen=True)
class Region:
    """An interleave set of modules; `socket` is None where the system does not tell."""

    name: str
    size_bytes: int
    socket: int | None
    namespaces: tuple[Namespace, ...]


@dataclass(frozen=True)
class Module:
    """How much of a module is memory behind a DRAM cache, and how much persistent memory."""

    name: str
    socket: int
    memory_gib: float
    app_direct_gib: float

    def is_in(self, *, memory_mode: bool) -> bool:
        """Whether all of it is memory, or none of it."""
        return self.memory_gib > 0 == self.app_direct_gib if memory_mode else self.app_direct_gib > 0 == self.memory_gib


@dataclass(frozen=True)
class State:
    """All of it.

    Attributes:
        modules: with what is in effect now.
        goals: the same as it will be after the next boot, of those modules that have a goal waiting for it.
        regions: with their namespaces.
        mounts: all mounted file systems.
    """

    modules: tuple[Module, ...]
    goals: tuple[Module, ...]
    regions: tuple[Region, ...]
    mounts: tuple[Mount, ...]


def read_state(root: Path = Path("/")) -> State:
    """Ask ipmctl, ndctl, findmnt, lsblk and blkid; `root` holds /sys.

    Raises:
        BadInputError: one of them is not installed.
        AutotmError: one of them fails, or writes what cannot be read.
    """
    mounts = tuple(_mounts(_json("findmnt", "--json", "--list", "--output", "SOURCE,TARGET,FSTYPE,OPTIONS")))
    found = _json("ndctl", "list", "--regions", "--namespaces", "--idle")
    listed = found.get("regions", found) if isinstance(found, dict) else found
    regions = [
        each for each in (listed if isinstance(listed, list) else [listed]) if each.get("type", "pmem") == "pmem"
    ]
    return State(tuple(_modules()), tuple(_goals()), tuple(_region(each, root) for each in regions if each), mounts)


def _json(*command: str) -> Any:
    text = look(*command).strip()
    try:
        return json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise AutotmError(f"{' '.join(command)}: wrote no JSON ({error}); nothing was changed") from None


def _mounts(found: Mapping[str, Any]) -> Iterator[Mount]:
    for each in found.get("filesystems", ()):
        yield Mount(each["source"] or "", each["target"], each["fstype"], tuple((each["options"] or "").split(",")))


def _modules() -> Iterator[Module]:
    text = look(*_SHOW, "-d", "SocketID,MemoryCapacity,AppDirectCapacity", "-dimm")
    for name, block in re.findall(r"---DimmID=(\S+?)---\n(.*?)(?=\n---|\Z)", text, re.DOTALL):
        values = dict(re.findall(r"(\w+)=(.*\S)", block))
        try:
            yield Module(
                name,
                int(values["SocketID"], 0),
                _gib(values["MemoryCapacity"]),
                _gib(values["AppDirectCapacity"]),
            )
        except (KeyError, ValueError) as error:
            raise AutotmError(f"ipmctl show -dimm: cannot read module {name} ({error}); nothing was changed") from None


def _goals() -> Iterator[Module]:
    """Rows of a table whose head names its columns; where no goal waits, ipmctl says so in a sentence."""
    rows = [[cell.strip() for cell in line.split("|")] for line in look(*_SHOW, "-goal").splitlines() if "|" in line]
    for row in rows[1:]:
        values = dict(zip(rows[0], row, strict=False))
        try:
            app_direct = sum(_gib(values[name]) for name in ("AppDirect1Size", "AppDirect2Size"))
            yield Module(values["DimmID"], int(values["SocketID"], 0), _gib(values["MemorySize"]), app_direct)
        except (KeyError, ValueError) as error:
            raise AutotmError(f"ipmctl show -goal: cannot read {row} ({error}); nothing was changed") from None


def _gib(text: str) -> float:
    number, unit = text.split()
    if unit != "GiB":
        raise ValueError(f"{text!r} is not in GiB, which was asked for")
    return float(number)


def _region(found: Mapping[str, Any], root: Path) -> Region:
    namespaces = tuple(_namespace(each) for each in found.get("namespaces", ()))
    return Region(found["dev"], int(found.get("size", 0)), _socket(found.get("numa_node"), root), namespaces)


def _namespace(found: Mapping[str, Any]) -> Namespace:
    device = found.get("blockdev", "")
    signature, label = "", ""
    used_by: tuple[str, ...] = ()
    if device:
        said = dict(
            line.split("=", 1)
            for line in look("blkid", "-p", "-o", "export", f"/dev/{device}", empty=(_NOTHING_FOUND,)).splitlines()
            if "=" in line
        )
        signature, label = said.get("TYPE") or said.get("PTTYPE") or said.get("USAGE", ""), said.get("LABEL", "")
        used_by = tuple(_users(_json("lsblk", "--json", "--output", "NAME,MOUNTPOINT", f"/dev/{device}"), device))
    return Namespace(found["dev"], found.get("mode", "unknown"), device, signature, label, used_by)


def _users(found: Mapping[str, Any], device: str) -> Iterator[str]:
    for each in found.get("blockdevices", found.get("children", ())):
        if each["name"] != device:
            yield f"/dev/{each['name']}"
        if each.get("mountpoint"):
            yield str(each["mountpoint"])
        yield from _users({"children": each.get("children", ())}, device)


def _socket(node: int | None, root: Path) -> int | None:
    """The socket of a memory node; None where it has no cores to tell by."""
    try:
        first = re.match(r"\d+", (root / _NODES / f"node{node}" / "cpulist").read_text(encoding="utf-8"))
        if first is None:
            return None
        return int((root / _CPUS / f"cpu{first[0]}" / "topology" / "physical_package_id").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
