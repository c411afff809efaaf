"""Everything that is looked at on a machine, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from autotm.model.machine import SystemMemory, Topology, cpu_quota, kernel_lacks, usable_cpus
from autotm.study.doctor.finding import Finding, Use
from autotm.study.doctor.gpus import gpu_findings, vendor_findings
from autotm.study.doctor.slow_memories import Probe, SlowMemory, here, slow_memories
from autotm.study.doctor.tools import compiler, package, room_for_files

_EXTRAS = {
    "cuda-bindings": ("machines of kind cuda", "pip install 'autotm[cuda]'"),
    "torch": ("modules of PyTorch", "pip install 'autotm[torch]'"),
    "onnx": ("ONNX files", "pip install 'autotm[onnx]'"),
    "xgboost-cpu": ("autotm tune", "make setup-tune"),
    "snakemake-executor-plugin-slurm": ("clusters with Slurm", "pip install 'autotm[slurm]'"),
}


def findings(results: Path, root: Path = Path("/"), probe: Probe = here) -> list[Finding]:
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


def found_slow(root: Path = Path("/"), probe: Probe = here) -> list[SlowMemory]:
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
