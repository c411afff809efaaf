"""What a machine has (cores, memories, GPUs, packages), what of it autotm can use, and why not the rest."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import yaml

from autotm.kernels.vendor import VENDORS, Vendor, VendorMissingError
from autotm.memory.gpu.facts import GpuFacts, gpu_facts
from autotm.memory.gpu.opening import PAPER_BYTES, GpuRefusedError, measured_context, require_gpu
from autotm.memory.linux.pools import DaxPool, NodePool, refusal
from autotm.model.cores import Topology, usable_cpus
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import write_atomically
from autotm.model.graph import Tier
from autotm.model.machine import DaxTier, MachineFile, NumaTier, kernel_lacks
from autotm.model.provenance import cpu_model
from autotm.model.system import MemoryNode, SystemMemory, cpu_quota
from autotm.study.columns import columns
from autotm.study.setup import compiler_path

# One thing that a machine has or lacks.


class Use(StrEnum):
    """What a finding means for a study here."""

    USED = "used"
    USABLE = "usable"
    UNUSED = "not used"
    MISSING = "missing"
    CARE = "take care"


@dataclass(frozen=True)
class Finding:
    """One thing that a machine has or lacks.

    Attributes:
        what: the thing.
        found: what there is of it.
        use: whether autotm uses it; `usable` where a machine file must name it; `missing` where it cannot work without.
        why: the reason, or the remedy; may be empty.
    """

    what: str
    found: str
    use: Use
    why: str = ""


# Programs, packages and room on disks.

_PATIENCE_S = 20.0


def compiler() -> str | None:
    """The compiler that kernels are linked with, and its version; None where there is none."""
    path = compiler_path()
    if path is None:
        return None
    told = _output(path, "--version")
    return told.splitlines()[0] if told else path


def package(name: str) -> str | None:
    """Its version; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def room_for_files(folder: Path) -> int | str:
    """Free bytes where the folder is or would be; in words, why nothing can be written there."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    if not there.is_dir():
        return f"{there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written"
    return shutil.disk_usage(there).free


def _output(*command: str) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


# What of a machine could be slow memory, with the lines of a machine file for it, or why it cannot.

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


def probe_here(tier: NumaTier | DaxTier) -> str | None:
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


# GPUs: what their driver tells, whether a machine of kind cuda could be one of them, and NVIDIA's libraries there.


def gpu_findings(
    root: Path,
    told: Callable[[], list[GpuFacts]] = gpu_facts,
    measured: Callable[[GpuFacts], tuple[int, int]] = measured_context,
) -> Iterator[Finding]:
    """A line for each GPU, and one for those who share it; why there is none.

    Args:
        root: where /proc is.
        told: what the driver tells; raises where there is none.
        measured: CUDA's number of a GPU, and what a context takes of it.
    """
    try:
        found = told()
    except AutotmError as error:
        seen = sorted(path.name for path in (root / "proc/driver/nvidia/gpus").glob("*"))
        yield Finding("GPU", ", ".join(seen) or "none", Use.UNUSED, str(error))
        return
    for index, facts in enumerate(found):
        what = "GPU" if len(found) == 1 else f"GPU {index}"
        yield _gpu(what, facts, measured)
        if facts.processes:
            pids = ", ".join(str(process.pid) for process in facts.processes)
            yield Finding(
                f"{what}'s processes", pids, Use.CARE, "runs are refused beside others: end them (nvidia-smi)"
            )


def vendor_findings(
    gpus: Sequence[Finding], libraries: Mapping[str, Callable[[], Vendor]] = VENDORS
) -> Iterator[Finding]:
    """A line for each library whose algorithms plans may choose, where there is a GPU to ask it for.

    Args:
        gpus: what was found of GPUs; the last usable one is current.
        libraries: each opens one on the GPU that is current.
    """
    if not any(found.use is Use.USABLE for found in gpus):
        return
    for name, opened in libraries.items():
        try:
            version = opened().version
        except VendorMissingError as error:
            yield Finding(name, "not installed", Use.UNUSED, str(error))
        except AutotmError as error:
            yield Finding(name, "cannot be used", Use.UNUSED, str(error))
        else:
            yield Finding(name, version, Use.USABLE, "its algorithms beside our own (profile: implementations: all)")


def _gpu(what: str, facts: GpuFacts, measured: Callable[[GpuFacts], tuple[int, int]]) -> Finding:
    said = (
        f"{facts.name}, {facts.architecture}, {facts.total_bytes / 1e9:.4g} GB, {facts.free_bytes / 1e9:.4g} GB free, "
        f"driver {facts.driver} (CUDA {facts.cuda[0]}.{facts.cuda[1]})"
    )
    try:
        require_gpu(facts, 0, alone=False)
        index, overhead_bytes = measured(facts)
    except GpuRefusedError as error:
        return Finding(what, said, Use.UNUSED, str(error))
    except AutotmError as error:
        return Finding(what, said, Use.UNUSED, f"it cannot be opened: {error}")
    said += f"; a context takes {overhead_bytes / 1e9:.3g} GB (measured)"
    why = f"fast memory, in a machine file: slow_tier: {{kind: cuda, device_index: {index}}}"
    if facts.free_bytes - overhead_bytes < PAPER_BYTES:
        why += f"; less than the {PAPER_BYTES / 1e9:.3g} GB that the paper's plans were made for"
    return Finding(what, said, Use.USABLE, why)


# Everything that is looked at on a machine, in the order in which it is told.

_EXTRAS = {
    "cuda-bindings": ("machines of kind cuda", "pip install 'autotm[cuda]'"),
    "torch": ("modules of PyTorch", "pip install 'autotm[torch]'"),
    "onnx": ("ONNX files", "pip install 'autotm[onnx]'"),
    "xgboost-cpu": ("autotm tune", "make setup-tune"),
    "snakemake-executor-plugin-slurm": ("clusters with Slurm", "pip install 'autotm[slurm]'"),
}


def findings(results: Path, root: Path = Path("/"), probe: Probe = probe_here) -> list[Finding]:
    """Look at this machine.

    Args:
        results: the folder that files would go to.
        root: where /sys, /proc and /dev are; tests look at machines that are not there.
        probe: tries a memory out.
    """
    memories, gpus = SystemMemory(root), list(gpu_findings(root))
    return [
        *_cores(root),
        *_memory(memories, fast_nodes(root), found_slow(root, probe)),
        *_policies(memories),
        *_settings(memories),
        _compiler(),
        _tvm(),
        *gpus,
        *vendor_findings(gpus),
        *_extras(),
        _disk(results),
    ]


def fast_nodes(root: Path = Path("/")) -> tuple[int, ...]:
    """The memory nodes next to cores that this process may use, that of the first core first."""
    threads = Topology.of(usable_cpus(), root / "sys/devices/system").threads
    with_memory = {node.number for node in SystemMemory(root).nodes}
    found = tuple(dict.fromkeys(thread.numa_node for thread in threads))
    return tuple(node for node in found if node in with_memory) or found[:1]


def found_slow(root: Path = Path("/"), probe: Probe = probe_here) -> list[SlowMemory]:
    """What of this machine is slow memory, or might be."""
    return slow_memories(SystemMemory(root), fast_nodes(root), probe, root / "dev")


def _cores(root: Path) -> Iterator[Finding]:
    topology = Topology.of(usable_cpus(), root / "sys/devices/system")
    cores, threads = len(topology.cores), len(topology.threads)
    sockets = len({thread.socket for thread in topology.threads})
    found = f"{cores} physical, {threads} hardware threads, {sockets} socket{'s' if sockets > 1 else ''}"
    yield Finding("cores", found, Use.USED, "a kernel thread each, unless the machine file says otherwise")
    quota = cpu_quota(root)
    if quota is not None and quota < threads:
        yield Finding(
            "CPU quota", f"{quota:.3g} cores", Use.CARE, f"a container allows less than the {threads} threads it shows"
        )
    load = _words(root / "proc/loadavg")
    if load and float(load[0]) > cores / 2:
        yield Finding(
            "load", f"{load[0]} in the last minute", Use.CARE, "others hold cores: measured times would be long"
        )


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []


def _memory(memories: SystemMemory, fast_nodes: Sequence[int], slow: Sequence[SlowMemory]) -> Iterator[Finding]:
    for node in memories.nodes:
        found = f"{node.total_bytes / 1e9:.4g} GB, {node.free_bytes / 1e9:.4g} GB free, beside cores"
        name = f"memory node {node.number}"
        if node.number in fast_nodes:
            use = Use.USED if node.number == fast_nodes[0] else Use.USABLE
            yield Finding(name, found, use, f"fast memory, in a machine file: fast_nodes: [{node.number}]")
        elif node.cpus:
            why = f"not as fast memory: this process may not use its cores {node.cpus} (cpuset, taskset)"
            yield Finding(name, found, Use.UNUSED, why)
    for one in slow:
        if one.tier is None:
            yield Finding(one.what, one.found, Use.UNUSED, f"not as slow memory: {one.why_not}")
        else:
            care = f"; {one.caution}" if one.caution else ""
            yield Finding(one.what, one.found, Use.USABLE, f"as slow memory, in a machine file: {one.line}{care}")
    if not slow:
        why = (
            "one memory node, no DAX folder, no DAX device: slow memory is emulated (slow_tier: {kind: emulated, ...})"
        )
        yield Finding("second memory", "none", Use.UNUSED, why)
    if memories.limit_bytes is not None:
        yield Finding(
            "memory limit", f"{memories.limit_bytes / 1e9:.4g} GB", Use.CARE, "of this container, service or job"
        )


def _policies(memories: SystemMemory) -> Iterator[Finding]:
    """What Linux can do by itself, as a rival of plans, where there are two nodes for it to do it with."""
    if len(memories.nodes) < 2:  # noqa: PLR2004 - a fast and a slow one
        return
    for name in ("linux-preferred", "linux-interleave", "linux-weighted-interleave", "linux-balancing"):
        lacking = kernel_lacks(name, memories)
        use = Use.UNUSED if lacking else Use.USABLE
        yield Finding(f"optimizer {name}", "absent" if lacking else "present", use, lacking or "on memory nodes")


def _settings(memories: SystemMemory) -> Iterator[Finding]:
    yield Finding("transparent huge pages", memories.huge_pages or "none", Use.USED, "as the system gives them")
    if memories.reserved_huge_pages:
        yield Finding(
            "reserved huge pages", str(memories.reserved_huge_pages), Use.USABLE, "huge_pages: reserved of kind numa"
        )
    if memories.balances:
        yield Finding("NUMA balancing", "on", Use.CARE, "pages move by themselves: sudo sysctl kernel.numa_balancing=0")
    if memories.demotes:
        why = "pages leave their node: echo false | sudo tee /sys/kernel/mm/numa/demotion_enabled"
        yield Finding("page demotion", "on", Use.CARE, why)
    governor = memories.governor
    if governor not in {"", "performance"}:
        why = "clocks follow the load, and times with them: sudo cpupower frequency-set -g performance"
        yield Finding("clock governor", governor, Use.CARE, why)


def _compiler() -> Finding:
    found = compiler()
    if found is None:
        return Finding("C compiler", "none", Use.MISSING, "kernels are linked with one: sudo apt-get install g++")
    return Finding("C compiler", found, Use.USED)


def _tvm() -> Finding:
    version = package("apache-tvm")
    if version is None:
        return Finding("TVM", "none", Use.MISSING, "make setup, or pip install autotm, brings it")
    return Finding("TVM", version, Use.USED)


def _extras() -> Iterator[Finding]:
    for name, (purpose, remedy) in _EXTRAS.items():
        version = package(name)
        if version is None:
            yield Finding(name, "not installed", Use.UNUSED, f"for {purpose}: {remedy}")
        else:
            yield Finding(name, version, Use.USED, f"for {purpose}")


def _disk(results: Path) -> Finding:
    free = room_for_files(results)
    if isinstance(free, str):
        return Finding(f"folder {results}", free, Use.MISSING, "files go there: name another with --results")
    return Finding(f"folder {results}", f"{free / 1e9:.4g} GB free", Use.USED)


# The findings for a terminal, and a first machine file.

DEVICE = "optane-dcpmm"


def findings_text(found: Sequence[Finding]) -> str:
    """A line for each."""
    return columns([("", "found", "", ""), *((one.what, one.found, str(one.use), one.why) for one in found)], left=4)


def write_machine_file(path: Path, slow: Sequence[SlowMemory]) -> None:
    """Write a machine file for this computer: all its cores, and the first of `slow` that can be used, or emulated.

    Devices are left to people: a run overwrites what is in them.

    Raises:
        BadInputError: there is a file of that name.
    """
    if path.exists():
        raise BadInputError(f"{path}: there is such a machine; give another name, or remove the file")
    usable = next(((one, one.tier) for one in slow if one.tier is not None and not one.caution), None)
    tier: dict[str, object] = {"kind": "emulated", "device": DEVICE, "share": "balanced"}
    memory = "persistent memory emulated beside its DRAM"
    if usable is not None:
        memory = f"{usable[0].what} as slow memory"
        tier = {"kind": usable[1].kind} | usable[1].model_dump(mode="json", exclude_defaults=True)
    contents = {"description": f"{cpu_model()}, with {memory}.", "threads": "auto", "slow_tier": tier}
    MachineFile.model_validate(contents)
    text = yaml.safe_dump(contents, sort_keys=False, width=1000)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
