"""The commands `optane ...`: Optane memory from one mode to the other, without losing anybody's data."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from autotm.cli.command import Answer, answering
from autotm.model.errors import AutotmError, BadInputError, unknown_name

# Running the system's tools: those that only look, and the steps of a change.

_LOOK_S = 60.0
PACKAGES = {
    "ipmctl": "ipmctl", "ndctl": "ndctl", "findmnt": "util-linux", "lsblk": "util-linux", "blkid": "util-linux",
    "mkfs.ext4": "e2fsprogs", "mount": "mount", "install": "coreutils",
}  # fmt: skip
"""The Debian package of each tool."""


@dataclass(frozen=True)
class Step:
    """A command that changes the machine.

    Attributes:
        command: program and arguments; `{device}` stands for the block device that an earlier step makes.
        why: what it does, in words.
        device_of: finds that block device in what the command writes; None where it makes none.
    """

    command: tuple[str, ...]
    why: str
    device_of: Callable[[str], str] | None = None

    @property
    def text(self) -> str:
        """As one would type it."""
        return shlex.join(self.command).replace("'{device}'", "DEVICE").replace("{device}", "DEVICE")


def look(*command: str, empty: Sequence[int] = ()) -> str:
    """What a tool that changes nothing writes; nothing where it ends with a status of `empty`.

    Raises:
        BadInputError: the tool is not installed.
        AutotmError: it fails.
    """
    require_tools(command[0])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LOOK_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise AutotmError(f"{shlex.join(command)}: no answer within {_LOOK_S:.0f} s; nothing was changed") from None
    if done.returncode in empty:
        return ""
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "without a word").splitlines()[-1]
        raise AutotmError(
            f"{shlex.join(command)}: exit status {done.returncode}: {said}; nothing was changed. Most of these tools "
            "must run as root: sudo"
        )
    return done.stdout


def require_tools(*names: str) -> None:
    """Raise where a tool is missing.

    Raises:
        BadInputError: names the tool and its package.
    """
    for name in names:
        if shutil.which(name) is None:
            raise BadInputError(f"{name} is not installed: apt-get install {PACKAGES.get(name, name)}")


def require_root() -> None:
    """Raise for whoever may not change the machine.

    Raises:
        BadInputError: this process is not root's.
    """
    if os.geteuid() != 0:
        raise BadInputError("--execute changes the machine's memory, which only root may do: run it with sudo")


def run_steps(steps: Sequence[Step]) -> list[str]:
    """Run one after the other, and stop at the first that fails.

    Returns:
        what was run, as one would type it.

    Raises:
        BadInputError: not root, or a tool is missing; before the first step.
        AutotmError: a step fails; names it and what was done before it.
    """
    require_root()
    require_tools(*dict.fromkeys(step.command[0] for step in steps))
    device = ""
    ran: list[str] = []
    for step in steps:
        command = [part.replace("{device}", device) for part in step.command]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "without a word").splitlines()[-1]
            before = "; ".join(ran) or "nothing"
            raise AutotmError(f"{shlex.join(command)}: exit status {done.returncode}: {said}. Done before it: {before}")
        if step.device_of:
            device = step.device_of(done.stdout)
        ran.append(shlex.join(command))
    return ran


# What is known of a machine's Optane modules, regions, namespaces and file systems; looking changes nothing.

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


# Which steps lead from a machine's state to the one that was asked for; none where it is there already.

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


# The commands `optane status`, `optane app-direct`, `optane memory-mode` and `optane file-system`.

log = logging.getLogger("autotm")

_GIB = 1 << 30


@click.group()
def optane() -> None:
    """What changes the machine only tells its steps, unless --execute is given; nothing that holds data is touched.

    Never run on Optane modules: tried with made-up answers of ipmctl, ndctl, findmnt, lsblk and blkid.
    """


def _executing(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--execute", is_flag=True, help="Run the steps (as root); without it they are only told.")(
        function
    )


def _of_socket(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option(
        "--destroy",
        "destroys",
        multiple=True,
        metavar="NAMESPACE",
        help="An empty namespace that may go, e.g. namespace1.0.",
    )(function)
    return click.option("--socket", type=click.IntRange(min=0), required=True, help="Whose modules.")(function)


@optane.command("status")
@answering
def status() -> Answer:
    """Modules, the goal of the next boot, regions, namespaces, and what they hold. Changes nothing."""
    state = read_state()
    return Answer(asdict(state), _text(state))


@optane.command("app-direct")
@_of_socket
@_executing
@answering
def app_direct(*, socket: int, destroys: tuple[str, ...], execute: bool) -> Answer:
    """All of a socket's modules as persistent memory, 1LM (the artifact's change_1lm). Then reboot."""
    steps = change_goal(read_state(), socket, memory_mode=False, destroys=destroys)
    return _done(
        steps,
        execute,
        f"socket {socket} is in App Direct mode, or will be after the next boot",
        "reboot, then: autotm optane file-system",
    )


@optane.command("memory-mode")
@_of_socket
@_executing
@answering
def memory_mode(*, socket: int, destroys: tuple[str, ...], execute: bool) -> Answer:
    """All of a socket's modules as memory behind a DRAM cache, 2LM (the artifact's change_2lm). Then reboot."""
    steps = change_goal(read_state(), socket, memory_mode=True, destroys=destroys)
    return _done(
        steps,
        execute,
        f"socket {socket} is in memory mode, or will be after the next boot",
        "reboot; then memory_mode: true in the machine file",
    )


@optane.command("file-system")
@click.option("--region", required=True, help="All of whose memory, e.g. region1.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Where it is mounted; an empty folder, or none yet.",
)
@_executing
@answering
def file_system(*, region: str, folder: Path, execute: bool) -> Answer:
    """A region in App Direct mode as a file system with DAX (the artifact's setup_1lm), and in it public/, for all."""
    steps = make_file_system(read_state(), region, folder)
    answer = _done(
        steps, execute, f"{folder} has the memory of {region} already", f"slow memory's folder: {folder / 'public'}"
    )
    if execute and steps:
        left = make_file_system(read_state(), region, folder)
        if left:
            raise AutotmError(f"{folder}: all steps ran, but findmnt does not show {region} there; look at dmesg")
    return answer


def _done(steps: Sequence[Step], execute: bool, already: str, then: str) -> Answer:
    """Tell the steps, or run them and tell what was run."""
    if not steps:
        return Answer({"steps": [], "executed": False}, f"{already}: nothing to do")
    if execute:
        ran = run_steps(steps)
        return Answer({"steps": ran, "executed": True}, "\n".join([*ran, f"done; next: {then}"]))
    told = [f"# {step.why}\n{step.text}" for step in steps]
    log.info("only told, nothing was changed; --execute runs it")
    return Answer({"steps": [step.text for step in steps], "executed": False}, "\n".join([*told, f"# next: {then}"]))


def _of_module(module: Module) -> str:
    return (
        f"module {module.name} socket {module.socket}: {module.memory_gib:g} GiB memory mode, "
        f"{module.app_direct_gib:g} GiB App Direct"
    )


def _text(state: State) -> str:
    lines = [_of_module(module) for module in state.modules] or ["no Optane modules"]
    lines += [f"after the next boot: {_of_module(module)}" for module in state.goals] or [
        "no goal waits for the next boot"
    ]
    for region in state.regions:
        where = "unknown socket" if region.socket is None else f"socket {region.socket}"
        lines.append(f"{region.name} {where}: {region.size_bytes / _GIB:.1f} GiB")
        lines += [
            f"  {each.name} {each.mode} {each.block_device}: {each.holds or 'empty'}" for each in region.namespaces
        ]
    return "\n".join(lines)
