"""Everything that is looked at on a machine, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from autotm.model.machine import Topology, usable_cpus
from autotm.study.doctor.memories import Memories
from autotm.study.doctor.tools import compiler, gpus, package, room_for_files


class Use(StrEnum):
    """What a finding means for a study here."""

    USED = "used"
    UNUSED = "not used"
    MISSING = "missing"
    CARE = "take care"


@dataclass(frozen=True)
class Finding:
    """One thing that a machine has or lacks.

    Attributes:
        what: the thing.
        found: what there is of it.
        use: whether autotm uses it; `missing` where it cannot work without.
        why: the reason, or the remedy; may be empty.
    """

    what: str
    found: str
    use: Use
    why: str = ""


_EXTRAS = {
    "torch": ("modules of PyTorch", "pip install 'autotm[torch]'"),
    "onnx": ("ONNX files", "pip install 'autotm[onnx]'"),
    "xgboost-cpu": ("autotm tune", "make setup-tune"),
    "snakemake-executor-plugin-slurm": ("clusters with Slurm", "pip install 'autotm[slurm]'"),
}


def findings(results: Path, root: Path = Path("/")) -> list[Finding]:
    """Look at this machine.

    Args:
        results: the folder that files would go to.
        root: where /sys and /proc are; tests look at machines that are not there.
    """
    memories = Memories(root)
    return [
        *_cores(root),
        *_memory(memories),
        *_settings(memories),
        _compiler(),
        _tvm(),
        *_gpus(root),
        *_extras(),
        _disk(results),
    ]


def _cores(root: Path) -> Iterator[Finding]:
    topology = Topology.of(usable_cpus(), root / "sys/devices/system")
    cores, threads = len(topology.cores), len(topology.threads)
    sockets = len({thread.socket for thread in topology.threads})
    found = f"{cores} physical, {threads} hardware threads, {sockets} socket{'s' if sockets > 1 else ''}"
    yield Finding("cores", found, Use.USED, "a kernel thread each, unless the machine file says otherwise")
    quota = _quota(root)
    if quota is not None and quota < threads:
        yield Finding(
            "CPU quota", f"{quota:.3g} cores", Use.CARE, f"a container allows less than the {threads} threads it shows"
        )
    load = _words(root / "proc/loadavg")
    if load and float(load[0]) > cores / 2:
        yield Finding(
            "load", f"{load[0]} in the last minute", Use.CARE, "others hold cores: measured times would be long"
        )


def _quota(root: Path) -> float | None:
    limit = _words(root / "sys/fs/cgroup/cpu.max")
    return None if len(limit) < len(("quota", "period")) or limit[0] == "max" else float(limit[0]) / float(limit[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []


def _memory(memories: Memories) -> Iterator[Finding]:
    for node in memories.nodes:
        found = f"{node.total_bytes / 1e9:.4g} GB, {node.free_bytes / 1e9:.4g} GB free"
        if node.cpus:
            yield Finding(f"memory node {node.number}", f"{found}, beside cores", Use.USED, "fast memory")
        else:
            why = (
                f"memory without cores (CXL, persistent or remote memory), distance {node.distance}: a slow tier here; "
                "this version of autotm only emulates slow memory"
            )
            yield Finding(f"memory node {node.number}", f"{found}, no cores", Use.UNUSED, why)
    if memories.limit_bytes is not None:
        yield Finding("memory limit", f"{memories.limit_bytes / 1e9:.4g} GB", Use.CARE, "of this container")
    for mount in memories.dax_mounts:
        yield Finding(f"DAX file system {mount}", "mounted", Use.UNUSED, "as a memory node without cores")
    for device in memories.dax_devices:
        yield Finding(f"DAX device {device}", "there", Use.UNUSED, "as a memory node without cores")


def _settings(memories: Memories) -> Iterator[Finding]:
    yield Finding("transparent huge pages", memories.huge_pages or "none", Use.USED, "as the system gives them")
    if memories.reserved_huge_pages:
        yield Finding(
            "reserved huge pages", str(memories.reserved_huge_pages), Use.UNUSED, "memory that nobody else gets"
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


def _gpus(root: Path) -> Iterator[Finding]:
    found = gpus(root)
    for gpu in found:
        yield Finding("GPU", gpu, Use.UNUSED, "this version of autotm places tensors in host memories only")
    if not found:
        yield Finding("GPU", "none", Use.UNUSED, "no NVIDIA driver answers")


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
