"""Where a file comes from: versions, machine, threads, seed, time, load, and how real its slow memory was."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from autotm.model.machine.machine import Machine
from autotm.model.machine.slurm import allocation
from autotm.model.machine.topology import described

_PACKAGES = ("autotm", "apache-tvm", "apache-tvm-ffi", "highspy", "pyomo", "numpy", "pandas", "snakemake")


@cache
def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def cpu_signature() -> str:
    """Name, family, model and stepping: two virtual machines may share a name and differ in the chip."""
    parts = [cpu_model()]
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return parts[0]
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    fields = {key.strip(): value.strip() for key, value in pairs}
    return " ".join(parts + [f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields])


@cache
def versions() -> dict[str, str]:
    """Installed versions of what shapes a result; absent packages are left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def commit() -> str | None:
    """Commit of the checkout autotm runs from, with `+` when it has changes; None outside a checkout."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "-C", here, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        )
        dirty = subprocess.run(
            ["git", "-C", here, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def provenance(machine: Machine, seed: int, **extra: Any) -> dict[str, Any]:
    """The provenance block of a file written now; `extra` adds what only that file knows."""
    job = allocation()
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
        "seed": seed,
        "started": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "load_1min": round(os.getloadavg()[0], 2),
        **extra,
    }
