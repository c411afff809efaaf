"""Which steps lead from a machine's state to the one that was asked for; none where it is there already."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotm.cli.machine.optane.state import Mount, Namespace, Region, State
from autotm.cli.machine.optane.tools import Step
from autotm.model.files import AutotmError, BadInputError, unknown_name

LABEL = "autotm-optane"
"""Of file systems that `make_file_system` made: those it knows again."""
_BLOCK_BYTES, _STRIDE_BLOCKS = 4096, 512
"""Extents begin at 2 MiB, so that huge pages map them."""


def change_goal(state: State, socket: int, *, memory_mode: bool, destroys: Sequence[str] = ()) -> list[Step]:
    """Steps that have a socket's modules in memory mode (2LM), or all persistent (1LM), from the next boot on.

    Namespaces of the socket are in the way: one that is named in `destroys` goes, if it is empty and not in use.

    Raises:
        BadInputError: no such socket or namespace, a namespace that was not named, or one that holds something.
    """
    modules = [module for module in state.modules if module.socket == socket]
    if not modules:
        known = sorted({module.socket for module in state.modules})
        raise BadInputError(f"socket {socket} has no Optane modules; sockets that have: {known or 'none'}")
    will_be = {module.name: module for module in (*modules, *state.goals) if module.socket == socket}
    if all(module.is_in(memory_mode=memory_mode) for module in will_be.values()):
        return []
    # A region whose socket is not known may be this one's.
    regions = [region for region in state.regions if region.socket in {socket, None}]
    there = {namespace.name: namespace for region in regions for namespace in region.namespaces}
    for name in destroys:
        if name not in there:
            raise BadInputError(f"--destroy: {unknown_name('namespace', name, there)}")
    for namespace in there.values():
        _require_empty(namespace)
        if namespace.name not in destroys:
            raise BadInputError(
                f"{namespace.name} is in the way, though it is empty: name it with --destroy {namespace.name}"
            )
    goal = ("MemoryMode=100",) if memory_mode else ("MemoryMode=0", "PersistentMemoryType=AppDirect")
    what = "memory behind a DRAM cache (2LM)" if memory_mode else "persistent memory (1LM)"
    return [
        *(Step(("ndctl", "destroy-namespace", "--force", name), f"destroy {name}, which is empty") for name in there),
        Step(
            ("ipmctl", "create", "-f", "-goal", "-socket", str(socket), *goal),
            f"from the next boot on, all of socket {socket}'s modules are {what}; the BIOS must be set to it too",
        ),
    ]


def make_file_system(state: State, region_name: str, folder: Path) -> list[Step]:
    """Steps that have a region's memory as an ext4 file system with DAX on `folder`.

    Raises:
        BadInputError: no such region, its namespaces are in use or hold data, or the folder is not an empty one.
    """
    if not folder.is_absolute():
        raise BadInputError(f"{folder}: give the whole path, from / on")
    regions = {region.name: region for region in state.regions}
    if region_name not in regions:
        raise unknown_name("region", region_name, regions)
    namespace = _only(regions[region_name])
    on_folder = [mount for mount in state.mounts if mount.folder == str(folder)]
    if namespace and on_folder and on_folder[-1].source == f"/dev/{namespace.block_device}":
        return _mounted(on_folder[-1])
    _require_free(folder, on_folder)
    return [*_to_device(region_name, namespace), *_to_mount(folder)]


def _only(region: Region) -> Namespace | None:
    """The region's namespace, if it has one; two are somebody else's.

    Raises:
        BadInputError: there are several, or it is no fsdax one.
    """
    if len(region.namespaces) > 1:
        names = ", ".join(namespace.name for namespace in region.namespaces)
        raise BadInputError(f"{region.name} has several namespaces ({names}): decide yourself which may go (ndctl)")
    namespace = region.namespaces[0] if region.namespaces else None
    if namespace and namespace.mode != "fsdax":
        raise BadInputError(
            f"{namespace.name} of {region.name} is {namespace.mode}, not fsdax: remove it yourself (ndctl)"
        )
    return namespace


def _mounted(mount: Mount) -> list[Step]:
    if not {"dax", "dax=always"} & set(mount.options):
        raise BadInputError(f"{mount.folder}: mounted without DAX; umount {mount.folder}, and ask again")
    return []


def _require_free(folder: Path, on_folder: Sequence[Mount]) -> None:
    if on_folder:
        raise BadInputError(f"{folder}: {on_folder[-1].source} is mounted there; take another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInputError(f"{folder}: not an empty folder; take another one")


def _require_empty(namespace: Namespace) -> None:
    if namespace.holds:
        raise BadInputError(
            f"{namespace.name} {namespace.holds}. Nothing was changed: save what is needed, then unmount and remove it "
            "yourself (umount, wipefs, ndctl destroy-namespace)"
        )


def _to_device(region: str, namespace: Namespace | None) -> Iterator[Step]:
    """Up to a file system that is not mounted, its block device found."""
    if namespace is None:
        command = ("ndctl", "create-namespace", "--region", region, "--mode", "fsdax")
        yield Step(command, f"all of {region} as one block device with DAX", _block_device)
    elif namespace.signature == "ext4" and namespace.label == LABEL and not namespace.used_by:
        yield Step(
            ("ndctl", "list", "--namespace", namespace.name), f"{namespace.name} has its file system", _block_device
        )
        return
    else:
        _require_empty(namespace)
        yield Step(("ndctl", "list", "--namespace", namespace.name), f"{namespace.name} is empty", _block_device)
    options = ("-b", str(_BLOCK_BYTES), "-E", f"stride={_STRIDE_BLOCKS}", "-L", LABEL)
    yield Step(("mkfs.ext4", "-q", *options, "{device}"), "a file system whose extents huge pages can map")


def _to_mount(folder: Path) -> Iterator[Step]:
    yield Step(("install", "-d", str(folder)), "the folder, if it is not there")
    yield Step(("mount", "-o", "dax", "{device}", str(folder)), "mount it with DAX; not in /etc/fstab")
    yield Step(("install", "-d", "-m", "1777", str(folder / "public")), "where everybody may write")


def _block_device(text: str) -> str:
    """The device in what ndctl writes of a namespace.

    Raises:
        AutotmError: it names none.
    """
    try:
        found = json.loads(text)
        return f"/dev/{(found[0] if isinstance(found, list) else found)['blockdev']}"
    except (json.JSONDecodeError, KeyError, IndexError, TypeError):
        raise AutotmError(f"ndctl names no block device: {text.strip()[:200]}; look at ndctl list") from None
