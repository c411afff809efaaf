"""Provenance of a file: versions, machine, threads, seed, time, load, and what its slow memory is.

Of slow memory: nodes or file system, distance, and the figures that firmware states.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

from autotm.model.cores import described
from autotm.model.machine import AnyTier, DaxTier, Machine, ModelledTier, NumaTier
from autotm.model.slurm import allocation
from autotm.model.system import SystemMemory


def slow_memory_facts(tier: AnyTier, system: SystemMemory | None = None) -> dict[str, Any]:
    """Return its provenance, as JSON; empty where slow memory is emulated. What the system does not tell is null.

    Of a modelled GPU the device file; of a real one its memories say more, where they are opened.

    `distance` is in Linux's units (10 is local), `hmat` what the firmware says of accesses from the nearest cores.
    """
    here = system or SystemMemory()
    match tier:
        case NumaTier():
            pairs = [(fast, slow) for fast in tier.fast_nodes for slow in tier.slow_nodes]
            distances = [distance for distance in (here.distance(*pair) for pair in pairs) if distance is not None]
            facts: dict[str, Any] = {
                "fast_nodes": list(tier.fast_nodes),
                "slow_nodes": list(tier.slow_nodes),
                "distance": max(distances, default=None),
                "hmat": {str(node.number): node.hmat for node in here.nodes_named(tier.slow_nodes) if node.hmat},
            }
        case DaxTier():
            path = Path(tier.path)
            device = path.name if path.is_char_device() else ""
            mount = None if device else here.mount_of(path)
            facts = {
                "fast_nodes": None if tier.fast_nodes is None else list(tier.fast_nodes),
                "path": tier.path,
                "device": device or (mount.device if mount else None),
                "file_system": mount.file_system if mount else None,
                "mount_options": mount.options if mount else None,
                "device_node": here.device_node(device or Path(mount.device if mount else "none").name),
            }
        case ModelledTier():
            return {"kind": tier.kind, "device": tier.device}
        case _:
            return {}
    return {
        "kind": tier.kind,
        "stand_in": tier.stand_in,
        **facts,
        "huge_pages": tier.huge_pages,
        "transparent_huge_pages": here.huge_pages or None,
        "numa_balancing": here.numa_balancing or None,
        "demotion": here.demotes,
    }


def slow_memory_text(source: Mapping[str, Any]) -> str:
    """Return words for captions from a file's provenance; empty where slow memory is emulated.

    Of a GPU they say what else a reader must know, if its results are not exact.
    """
    facts = source.get("slow_memory") or {}
    if facts.get("kind") == "dax":
        where = ", ".join(str(facts[key]) for key in ("device", "file_system", "mount_options") if facts.get(key))
        return f"{'files in' if facts['stand_in'] else 'DAX at'} {facts['path']} ({where})"
    if facts.get("kind") == "modelled":
        return f"GPU {facts['device']}, a model"
    if products := source.get("products"):
        return f"of the host of a GPU, whose contractions round their factors to {products}"
    if facts.get("kind") != "numa":
        return ""
    nodes = facts["slow_nodes"]
    said = [f"memory node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"]
    if facts.get("distance") is not None:
        said.append(f"distance {facts['distance']}")
    said += [f"HMAT of node {node}: {hmat_text(hmat)}" for node, hmat in facts.get("hmat", {}).items()]
    return ", ".join(said)


def hmat_text(hmat: Mapping[str, int]) -> str:
    """Return what the firmware says of accesses to a memory node, with units."""
    units = {
        "read_mb_per_s": "MB/s read",
        "write_mb_per_s": "MB/s written",
        "read_ns": "ns read",
        "write_ns": "ns write",
    }
    return " ".join(f"{hmat[key]} {unit}" for key, unit in units.items() if key in hmat)


_PACKAGES = ("autotm", "apache-tvm", "apache-tvm-ffi", "highspy", "pyomo", "numpy", "pandas", "snakemake")


class _Always(TypedDict):
    autotm_commit: str | None
    versions: dict[str, str]
    cpu_model: str
    kernel_release: str
    machine: str
    machine_file_hash: str
    threads: int
    cpus: list[int]
    copying_cpus: list[int]
    threads_per_core: int
    sockets: list[int]
    numa_nodes: list[int]
    tier_reality: str
    seed: int
    started: str
    load_1min: float


class Provenance(_Always, total=False):
    """Where a file comes from.

    Attributes:
        autotm_commit: of the checkout that autotm ran from, with `+` where it had changes; null outside a checkout.
        versions: of what shapes a result, by package.
        cpu_model: name, family, model and stepping of the processor.
        kernel_release: of Linux.
        machine: the machine file's name and the threads, as in paths.
        machine_file_hash: of the machine file's text.
        threads: that run kernels.
        cpus: the hardware threads they were pinned to.
        copying_cpus: those for copies beside kernels.
        threads_per_core: most of `cpus` on one physical core.
        sockets, numa_nodes: that `cpus` are on.
        tier_reality: `real`, `emulated` or `modelled` slow memory, or ordinary memory that is its `stand-in`.
        slow_memory: where it is not emulated: its kind; nodes, their `distance` (Linux's: 10 is local) and what the
            firmware says of each (`hmat`: MB/s and ns); path, device, file system and mount options; huge pages as
            asked for, and what Linux is set to do with them, with pages of other nodes and with little used ones.
        products: where the machine file lets contractions on a GPU round their factors: what to, `tf32` or `bf16`.
        seed: of weights, data and the solver.
        started: date and time, UTC.
        load_1min: the system's load then.
        sizes: of a network: what its function was called with.
        network_file, network_function, network_file_hash: of one's own network.
        schedules: of a graph: where the schedule of each kernel comes from, by symbol.
        extrapolated: of a modelled graph: the batches that it was extrapolated from, and the errors that this had.
        configurations: of a profile: `additive` or `full`.
        options_hash, library_hash: of a profile: of how kernels were timed, and of their machine code.
        context: of a profile: hash of what all its timings share.
        gpu: of what was measured on one: its name.
        options: how it was solved, run or timed, as in the config.
        gpu_driver: of a record from one: version of NVIDIA's driver.
        plan_file: of a program: the plan that it was made from.
        plan_hash, program_hash: of a record.
        draws: of a study of sensitivity: how often kernel times were drawn.
        repeats: of a timing study.
    """

    slow_memory: dict[str, Any]
    products: str
    sizes: dict[str, Any]
    network_file: str
    network_function: str
    network_file_hash: str
    schedules: dict[str, str]
    extrapolated: dict[str, Any]
    configurations: str
    options_hash: str
    library_hash: str
    context: str
    gpu: str
    options: dict[str, Any]
    gpu_driver: str
    plan_file: str
    plan_hash: str
    program_hash: str
    draws: int
    repeats: int


def cpu_model() -> str:
    """Return the processor's name as the kernel gives it."""
    return _cpu_fields().get("model name") or platform.processor() or platform.machine()


def cpu_signature() -> str:
    """Return name, family, model and stepping: two virtual machines may share a name and differ in the chip."""
    fields = _cpu_fields()
    parts = [f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    return " ".join([cpu_model(), *parts])


@cache
def _cpu_fields() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


@cache
def versions() -> dict[str, str]:
    """Return the installed versions of what shapes a result; absent packages are left out."""
    installed = {package: installed_version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), **{name: text for name, text in installed.items() if text is not None}}


def installed_version(package: str) -> str | None:
    """Return the version of a package without importing it; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """Return the commit of the checkout autotm runs from, with `+` when it has changes; None outside a checkout.

    Nothing of the checkout is written or locked: one that is ended meanwhile would leave the lock behind.
    """
    git = ("git", "--no-optional-locks", "-C", str(Path(__file__).parent))
    try:
        head, changes = (
            subprocess.run([*git, *arguments], capture_output=True, text=True, check=True).stdout.strip()
            for arguments in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changes else "")


def provenance(machine: Machine, seed: int, **extra: Any) -> dict[str, Any]:
    """Return the provenance block of a file written now; `extra` adds what only that file knows."""
    job, slow_memory = allocation(), slow_memory_facts(machine.slow_tier)
    return {
        "autotm_commit": commit(),
        "versions": versions(),
        "cpu_model": cpu_signature(),
        "kernel_release": platform.release(),
        "machine": machine.slug,
        "machine_file_hash": machine.file_hash,
        "threads": machine.threads,
        "cpus": list(machine.cpus),
        "copying_cpus": list(machine.copying_cpus),
        **(described(machine.cpus) if machine.cpus else {}),
        **({"slurm": {"job": job.job, "node": job.node, "is_shared": job.is_shared}} if job else {}),
        "tier_reality": machine.tier_reality,
        **({"slow_memory": slow_memory} if slow_memory else {}),
        **({"products": machine.products} if machine.products != "float32" else {}),
        "seed": seed,
        "started": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "load_1min": round(os.getloadavg()[0], 2),
        **extra,
    }
