"""Slurm: which nodes of a cluster a machine file means, and what of its node a job was given."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from autotm.model.cores import parse_cpu_list

_SCONTROL_S = 20.0
"""A busy controller answers within seconds."""


class SlurmNode(BaseModel):
    """The kind of node that a machine file describes; where a key is left out, the profile or the cluster decides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: str | None = Field(None, description="partition that has such nodes")
    account: str | None = Field(None, description="account that pays for them")
    constraint: str | None = Field(None, description="feature that tells these nodes from others of the partition")
    gres: str | None = Field(
        None,
        pattern=r"^[a-zA-Z0-9_]+(:[a-zA-Z0-9_.]+)?(:\d+)?$",
        description="generic resource of such a node that jobs that measure ask for, as sbatch's --gres takes it. Left "
        "out, machines of kind cuda ask for gpu:1, others for none",
    )
    cpus: int | None = Field(
        None,
        ge=1,
        description="CPUs of such a node as Slurm counts them (sinfo -o %c); jobs that measure ask for all of them. "
        "Left out, they ask for as many as kernels have threads",
    )
    shared: bool = Field(
        default=False, description="whether to measure on a node where other jobs may run too; records state it"
    )


@dataclass(frozen=True)
class Allocation:
    """A Slurm job's share of the node that it runs on.

    Attributes:
        job: its number.
        node: the node's name.
        cpus: how many CPUs of the node it has, as Slurm counts them.
        node_cpus: how many the node has.
        numbers: which CPUs it has, as Slurm numbers them; empty where Slurm does not tell.
        is_shared: whether other jobs may run there at the same time.
    """

    job: str
    node: str
    cpus: int
    node_cpus: int
    numbers: tuple[int, ...]
    is_shared: bool

    @classmethod
    def read(cls, environment: Mapping[str, str], ask: Callable[..., str]) -> Allocation | None:
        """Read the allocation from a job's environment, and `ask` Slurm `show job -d JOB` and `show node NODE`.

        Return None outside of jobs, and in the shell of `salloc` on a node that it did not allocate.
        """
        job, node = environment.get("SLURM_JOB_ID"), environment.get("SLURMD_NODENAME")
        if not job or not node:
            return None
        about_job, about_node = ask("show", "job", "-d", job), ask("show", "node", node)
        node_cpus = int(_value("CPUTot", about_node) or os.cpu_count() or 1)
        cpus = int(environment.get("SLURM_CPUS_ON_NODE") or 1)
        lists = re.findall(r"\bCPU_IDs=(\S+)", about_job)
        numbers = tuple(parse_cpu_list(lists[0])) if len(lists) == 1 else ()
        sharing = _value("OverSubscribe", about_job)
        # NO: the job or its partition is exclusive. OK: CPUs are the job's alone, the node's others may be anyone's.
        has_all = max(cpus, len(numbers)) >= node_cpus and sharing != "YES"
        return cls(job, node, max(cpus, len(numbers)), node_cpus, numbers, not (sharing == "NO" or has_all))


@cache
def allocation() -> Allocation | None:
    """Return the allocation of the Slurm job that this process is part of; None outside of jobs."""
    return Allocation.read(os.environ, _scontrol)


def keep_to_allocation() -> None:
    """Hold this process, and those that it starts, on the CPUs of its job.

    Slurm does that itself where it is set up to (task/affinity or task/cgroup); elsewhere a job with 2 of 24 CPUs would
    compile in 24 processes.
    """
    allowed = sorted(os.sched_getaffinity(0))
    count = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if not count.isdigit() or len(allowed) <= int(count):
        return
    ours = allocation()
    if ours is None or len(allowed) <= ours.cpus:
        return
    # Slurm may count in another order than Linux: these are as many CPUs as ours, and no other job's.
    numbers = [cpu for cpu in ours.numbers if cpu in allowed]
    os.sched_setaffinity(0, numbers if len(numbers) == ours.cpus else allowed[: ours.cpus])


def _scontrol(*arguments: str) -> str:
    """Return the output of `scontrol`; empty if it cannot be run or fails."""
    try:
        done = subprocess.run(
            ["scontrol", "-o", *arguments], capture_output=True, text=True, timeout=_SCONTROL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _value(key: str, text: str) -> str | None:
    match = re.search(rf"\b{key}=(\S+)", text)
    return match[1] if match else None
