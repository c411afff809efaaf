"""The cores, memories, GPUs and packages of a machine: which of them autotm can use, and why not the others."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import yaml

from autotm.memory.gpu.opening import PAPER_BYTES, GpuFacts, GpuRefusedError, gpu_facts, measured_context, require_gpu
from autotm.memory.linux.pools import DaxPool, NodePool, refusal
from autotm.model.cores import Topology, usable_cpus
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import write_atomically
from autotm.model.graph import Tier
from autotm.model.machine import DaxTier, MachineFile, NumaTier, kernel_lacks
from autotm.model.provenance import cpu_model, hmat_text, installed_version
from autotm.model.system import SystemMemory
from autotm.study.columns import columns
from autotm.study.setup import compiler_path


class Use(StrEnum):
    """The meaning of a finding for a study on this machine."""

    USED = "used"
    USABLE = "usable"
    UNUSED = "not used"
    MISSING = "missing"
    CARE = "take care"


@dataclass(frozen=True)
class Finding:
    """A resource that a machine has or lacks.

    Attributes:
        what: name of the resource.
        found: its kind or amount on the machine.
        use: whether autotm uses it; `usable` where a machine file must name it; `missing` where autotm requires it.
        why: the reason, or the remedy; may be empty.
    """

    what: str
    found: str
    use: Use
    why: str = ""


Probe = Callable[[NumaTier | DaxTier], str | None]
"""Tries to open a memory; returns the reason why it cannot be used, or None where it can."""


@dataclass(frozen=True)
class SlowMemory:
    """A memory that is, or might be, slower than that next to the cores; `what` and `found` as in `Finding`.

    Attributes:
        tier: its entry in a machine file; None where it cannot be used as it is.
        why_not: the reason and the remedy; empty where it can be used.
        caution: the effect of its use on others.
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
        """The memory's line in a machine file, with alternatives; empty where it cannot be used."""
        if self.tier is None:
            return ""
        fields = ", ".join(f"{key}: {value}" for key, value in _contents(self.tier).items())
        instead = " or ".join(f"[{node}]" for node in self.other_fast_nodes)
        return f"slow_tier: {{{fields}}}" + (f", or fast_nodes: {instead}" if instead else "")


def _contents(tier: NumaTier | DaxTier) -> dict[str, object]:
    """Return the keys and values of a tier in a machine file."""
    return {"kind": tier.kind} | tier.model_dump(mode="json", exclude_defaults=True)


def probe_here(tier: NumaTier | DaxTier) -> str | None:
    """Return a `Probe` of this machine: opens pools as a run would, of a page of a node, and of nothing behind DAX."""
    system = SystemMemory()
    try:
        if isinstance(tier, NumaTier):
            NodePool(Tier.SLOW, mmap.PAGESIZE, tier.slow_nodes, "none", system).close()
        else:
            DaxPool(Path(tier.path), 0, stand_in=False, system=system).close()
        if tier.fast_nodes is not None:
            NodePool(Tier.FAST, mmap.PAGESIZE, tier.fast_nodes, "none", system).close()
    except AutotmError as error:
        return str(error)
    return None


def fast_nodes(root: Path = Path("/")) -> tuple[int, ...]:
    """Return the memory nodes next to cores that this process may use, that of the first core first."""
    threads = Topology.of(usable_cpus(), root / "sys/devices/system").threads
    with_memory = {node.number for node in SystemMemory(root).nodes}
    nodes = tuple(dict.fromkeys(thread.numa_node for thread in threads))
    return tuple(node for node in nodes if node in with_memory) or nodes[:1]


def slow_memories(root: Path = Path("/"), probe: Probe = probe_here) -> list[SlowMemory]:
    """Return all memories of this machine that are, or might be, slower than one next to its cores."""
    search = _Search(SystemMemory(root), fast_nodes(root), probe)
    return [*search.nodes(), *search.file_systems(), *search.devices(root / "dev")]


@dataclass(frozen=True)
class _Search:
    """The search for slow memories; `fast_nodes` are next to cores that kernels may run on."""

    system: SystemMemory
    fast_nodes: tuple[int, ...]
    probe: Probe

    @property
    def barred(self) -> str:
        """Why none of the fast nodes can be fast memory; empty where one can."""
        reasons = [refusal(self.system, node) for node in self.system.nodes_named(self.fast_nodes)]
        return (reasons[0] or "") if reasons and all(reasons) else ""

    def nodes(self) -> Iterator[SlowMemory]:
        """Yield every memory node for which another node has cores; the nearest of these is fast memory."""
        system = self.system
        for node in system.nodes:
            others = [fast for fast in self.fast_nodes if fast != node.number]
            if not others:
                continue
            near, *farther = sorted(others, key=lambda fast: system.distance(fast, node.number) or 0)
            cores = f"beside cores {node.cpus}" if node.cpus else "no cores (CXL, persistent or far memory)"
            facts = [f"{node.total_bytes / 1e9:.4g} GB, {node.free_bytes / 1e9:.4g} GB free", cores]
            if (distance := system.distance(near, node.number)) is not None:
                facts.append(f"distance {distance} from node {near}")
            if node.hmat:
                facts.append(f"HMAT {hmat_text(node.hmat)}")
            tier = NumaTier(kind="numa", fast_nodes=(near,), slow_nodes=(node.number,))
            why_not = refusal(system, node) or self.barred or self.probe(tier) or ""
            name, shown = f"memory node {node.number}", None if why_not else tier
            yield SlowMemory(name, ", ".join(facts), shown, why_not, other_fast_nodes=tuple(farther))

    def file_systems(self) -> Iterator[SlowMemory]:
        """Yield every mounted file system on persistent memory, then persistent memory that is not mounted."""
        system = self.system
        mounts = {mount.folder: mount for mount in system.mounts}
        on_memory = {mount.device: mount for mount in mounts.values() if Path(mount.device).name in system.memory_disks}
        for mount in {mount.folder: mount for mount in (*on_memory.values(), *mounts.values())}.values():
            if mount.device not in on_memory and not mount.is_dax:
                continue
            value = f"{mount.file_system} on {mount.device} ({mount.options})"
            without_dax = (
                "mounted without dax: files would be in the page cache, which is ordinary memory: sudo umount "
                f"{mount.folder}, then mount with -o dax=always"
            )
            device, why_not = Path(mount.device).name, "" if mount.is_dax else without_dax
            yield self._dax(f"folder {mount.folder}", value, mount.folder, device, why_not)
        for name, size_bytes in system.memory_disks.items():
            if f"/dev/{name}" not in on_memory and not system.holds_mounts(name):
                why_not = (
                    f"not mounted: make a file system if it holds no data (sudo mkfs.ext4 /dev/{name}), then sudo "
                    f"mount -o dax=always /dev/{name} FOLDER; or turn it into a memory node or device with ndctl and "
                    "daxctl"
                )
                yield SlowMemory(f"persistent memory {name}", f"{size_bytes / 1e9:.4g} GB", None, why_not)

    def devices(self, folder: Path) -> Iterator[SlowMemory]:
        """Yield every DAX device; their files are in `folder`."""
        for name in self.system.dax_devices:
            file, why_not = folder / name, ""
            if not file.exists():
                why_not = f"/dev/{name} is not there: a container must be given it (docker run --device /dev/{name})"
            elif not os.access(file, os.R_OK | os.W_OK):
                why_not = f"this process may not write to /dev/{name}: sudo chown $USER /dev/{name}"
            value = f"{self.system.dax_device_bytes(name) / 1e9:.4g} GB"
            one = self._dax(f"DAX device {name}", value, f"/dev/{name}", name, why_not)
            yield replace(one, caution="runs overwrite its contents")

    def _dax(self, item: str, value: str, path: str, device: str, why_not: str) -> SlowMemory:
        own = self.system.device_node(device)
        near = tuple(sorted(self.fast_nodes, key=lambda fast: fast != own))
        tier, why_not = DaxTier(kind="dax", path=path, fast_nodes=near[:1]), self.barred or why_not
        if not why_not and (refused := self.probe(tier)):
            # A container may forbid binding pages to nodes, and still allow DAX without it.
            unbound = tier.model_copy(update={"fast_nodes": None})
            why_not = self.probe(unbound) or ""
            if not why_not:
                tier, value = unbound, f"{value}, beside memory that cannot be bound: {refused}"
        others = near[1:] if tier.fast_nodes else ()
        return SlowMemory(item, value, None if why_not else tier, why_not, other_fast_nodes=others)


def gpu_findings(root: Path) -> Iterator[Finding]:
    """Yield a finding for each GPU and one for those who share it, or why there is none; `root` holds /proc."""
    try:
        gpus = gpu_facts()
    except AutotmError as error:
        seen = sorted(path.name for path in (root / "proc/driver/nvidia/gpus").glob("*"))
        yield Finding("GPU", ", ".join(seen) or "none", Use.UNUSED, str(error))
        return
    for index, facts in enumerate(gpus):
        item = "GPU" if len(gpus) == 1 else f"GPU {index}"
        yield _gpu(item, facts)
        if facts.processes:
            pids, why = ", ".join(map(str, facts.processes)), "end them (nvidia-smi)"
            yield Finding(f"{item}'s processes", pids, Use.CARE, f"runs are refused beside others: {why}")


def _gpu(item: str, facts: GpuFacts) -> Finding:
    value = (
        f"{facts.name}, {facts.architecture}, {facts.total_bytes / 1e9:.4g} GB, {facts.free_bytes / 1e9:.4g} GB free, "
        f"driver {facts.driver} (CUDA {facts.cuda[0]}.{facts.cuda[1]})"
    )
    try:
        require_gpu(facts, 0, alone=False)
        index, overhead_bytes = measured_context(facts)
    except GpuRefusedError as error:
        return Finding(item, value, Use.UNUSED, str(error))
    except AutotmError as error:
        return Finding(item, value, Use.UNUSED, f"it cannot be opened: {error}")
    value += f"; a context takes {overhead_bytes / 1e9:.3g} GB (measured)"
    why = f"fast memory, in a machine file: slow_tier: {{kind: cuda, device_index: {index}}}"
    if facts.free_bytes - overhead_bytes < PAPER_BYTES:
        why += f"; less than the {PAPER_BYTES / 1e9:.3g} GB that the paper's plans were made for"
    return Finding(item, value, Use.USABLE, why)


_PATIENCE_S = 20.0
"""A compiler that takes longer to print its version hangs."""
_EXTRAS = {
    "cuda-bindings": ("machines of kind cuda", "pip install 'autotm[cuda]'"),
    "torch": ("modules of PyTorch", "pip install 'autotm[torch]'"),
    "onnx": ("ONNX files", "pip install 'autotm[onnx]'"),
    "snakemake-executor-plugin-slurm": ("clusters with Slurm", "pip install 'autotm[slurm]'"),
}


def findings(results: Path, root: Path = Path("/"), probe: Probe = probe_here) -> list[Finding]:
    """Look at this machine, or one whose /sys, /proc and /dev are below `root`; files would go to `results`."""
    memories = SystemMemory(root)
    return [
        *_cores(root),
        *_memory(memories, fast_nodes(root), slow_memories(root, probe)),
        *_policies(memories),
        *_settings(memories),
        *_compilers(),
        *gpu_findings(root),
        *_extras(),
        _disk(results),
    ]


def _cores(root: Path) -> Iterator[Finding]:
    topology = Topology.of(usable_cpus(), root / "sys/devices/system")
    cores, threads = len(topology.cores), len(topology.threads)
    sockets = len({thread.socket for thread in topology.threads})
    value = f"{cores} physical, {threads} hardware threads, {sockets} socket{'s' if sockets > 1 else ''}"
    yield Finding("cores", value, Use.USED, "a kernel thread each, unless the machine file says otherwise")
    quota = SystemMemory(root).cpu_quota
    if quota is not None and quota < threads:
        why = f"a container allows less than the {threads} threads it shows"
        yield Finding("CPU quota", f"{quota:.3g} cores", Use.CARE, why)
    with contextlib.suppress(OSError):
        load, *_ = (root / "proc/loadavg").read_text(encoding="utf-8").split() or ["0"]
        if float(load) > cores / 2:
            why = "others hold cores: measured times would be long"
            yield Finding("load", f"{load} in the last minute", Use.CARE, why)


def _memory(memories: SystemMemory, fast_nodes: Sequence[int], slow: Sequence[SlowMemory]) -> Iterator[Finding]:
    for node in memories.nodes:
        value = f"{node.total_bytes / 1e9:.4g} GB, {node.free_bytes / 1e9:.4g} GB free, beside cores"
        name = f"memory node {node.number}"
        if node.number in fast_nodes:
            use = Use.USED if node.number == fast_nodes[0] else Use.USABLE
            yield Finding(name, value, use, f"fast memory, in a machine file: fast_nodes: [{node.number}]")
        elif node.cpus:
            why = f"not as fast memory: this process may not use its cores {node.cpus} (cpuset, taskset)"
            yield Finding(name, value, Use.UNUSED, why)
    for one in slow:
        if one.tier is None:
            yield Finding(one.what, one.found, Use.UNUSED, f"not as slow memory: {one.why_not}")
        else:
            care = f"; {one.caution}" if one.caution else ""
            yield Finding(one.what, one.found, Use.USABLE, f"as slow memory, in a machine file: {one.line}{care}")
    if not slow:
        why = "one memory node, no DAX folder, no DAX device: slow memory is emulated"
        yield Finding("second memory", "none", Use.UNUSED, f"{why} (slow_tier: {{kind: emulated, ...}})")
    if (limit := memories.memory_limit) is not None:
        yield Finding(
            "memory limit", f"{limit.limit_bytes / 1e9:.4g} GB", Use.CARE, "of this container, service or job"
        )


def _policies(memories: SystemMemory) -> Iterator[Finding]:
    """Yield the policies by which Linux itself can place pages, where there are two nodes for it to place them on."""
    if len(memories.nodes) < 2:  # noqa: PLR2004 - a fast and a slow one
        return
    for name in ("linux-preferred", "linux-interleave", "linux-weighted-interleave", "linux-balancing"):
        lacking = kernel_lacks(name, memories)
        use = Use.UNUSED if lacking else Use.USABLE
        yield Finding(f"optimizer {name}", "absent" if lacking else "present", use, lacking or "on memory nodes")


def _settings(memories: SystemMemory) -> Iterator[Finding]:
    yield Finding("transparent huge pages", memories.huge_pages or "none", Use.USED, "as the system gives them")
    if reserved := memories.reserved_huge_pages:
        yield Finding("reserved huge pages", str(reserved), Use.USABLE, "huge_pages: reserved of kind numa")
    if memories.numa_balancing not in {"", "0"}:
        yield Finding("NUMA balancing", "on", Use.CARE, "pages move by themselves: sudo sysctl kernel.numa_balancing=0")
    if memories.demotes:
        why = "pages leave their node: echo false | sudo tee /sys/kernel/mm/numa/demotion_enabled"
        yield Finding("page demotion", "on", Use.CARE, why)
    governor = memories.setting("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or ""
    if governor not in {"", "performance"}:
        why = "clocks follow the load, and times with them: sudo cpupower frequency-set -g performance"
        yield Finding("clock governor", governor, Use.CARE, why)


def _compilers() -> Iterator[Finding]:
    if (path := compiler_path()) is None:
        yield Finding("C compiler", "none", Use.MISSING, "kernels are linked with one: sudo apt-get install g++")
    else:
        yield Finding("C compiler", (_output(path, "--version").splitlines() or [path])[0], Use.USED)
    if (version := installed_version("apache-tvm")) is None:
        yield Finding("TVM", "none", Use.MISSING, "make setup, or pip install autotm, brings it")
    else:
        yield Finding("TVM", version, Use.USED)


def _output(*command: str) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


def _extras() -> Iterator[Finding]:
    for name, (purpose, remedy) in _EXTRAS.items():
        if (version := installed_version(name)) is None:
            yield Finding(name, "not installed", Use.UNUSED, f"for {purpose}: {remedy}")
        else:
            yield Finding(name, version, Use.USED, f"for {purpose}")


def _disk(results: Path) -> Finding:
    """Return the free bytes where the folder is or would be, or why nothing can be written there."""
    there = next((path for path in (results, *results.absolute().parents) if path.exists()), Path("/"))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Finding(f"folder {results}", f"{shutil.disk_usage(there).free / 1e9:.4g} GB free", Use.USED)
    value = f"{there} cannot be written" if there.is_dir() else f"{there} is no folder"
    return Finding(f"folder {results}", value, Use.MISSING, "files go there: name another with --results")


_DEVICE = "optane-dcpmm"
"""The device that a first machine file emulates: that of the paper."""


def findings_text(findings: Sequence[Finding]) -> str:
    """Return a line for each finding."""
    return columns([("", "found", "", ""), *((one.what, one.found, str(one.use), one.why) for one in findings)], left=4)


def write_machine_file(path: Path, slow: Sequence[SlowMemory]) -> None:
    """Write a machine file for this computer: all its cores, and the first of `slow` that can be used, or emulated.

    Devices are left out: a run overwrites what is in them, so a person must name them.

    Raises:
        BadInputError: there is a file of that name.
    """
    if path.exists():
        raise BadInputError(f"{path}: there is such a machine; give another name, or remove the file")
    emulated: dict[str, object] = {"kind": "emulated", "device": _DEVICE, "share": "balanced"}
    usable = ((f"{one.what} as slow memory", _contents(one.tier)) for one in slow if one.tier and not one.caution)
    memory, tier = next(usable, ("persistent memory emulated beside its DRAM", emulated))
    contents = {"description": f"{cpu_model()}, with {memory}.", "threads": "auto", "slow_tier": tier}
    MachineFile.model_validate(contents)
    text = yaml.safe_dump(contents, sort_keys=False, width=1000)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
