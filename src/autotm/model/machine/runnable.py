"""Which optimizers can run on a machine: real slow memory is no cache, and a kernel follows the policies that it has.

Sources: Documentation/admin-guide/sysctl/kernel.rst (numa_balancing); Documentation/ABI/testing/sysfs-kernel-mm-numa
and sysfs-kernel-mm-mempolicy-weighted-interleave.
"""

from __future__ import annotations

from autotm.model.files import BadInputError
from autotm.model.machine.machine import Machine
from autotm.model.machine.slow_tier import AnyTier, CudaTier, DaxTier, EmulatedTier, NumaTier
from autotm.model.machine.system_memory import SystemMemory

SWITCHES = {"proc/sys/kernel/numa_balancing": "2", "sys/kernel/mm/numa/demotion_enabled": "1"}
"""What NUMA balancing of tiered memory needs of the machine: files below the root, and what they must hold."""

_CACHED, _LINUX = "memory-mode", "linux-"
_ON_GPUS = frozenset({"managed-memory", "lru-paging", "swap-all", "recompute", "save-on-cpu"})
_WEIGHTED, _BALANCING = "linux-weighted-interleave", "linux-balancing"


def cannot_run(machine: Machine, optimizer: str, system: SystemMemory | None = None) -> str | None:
    """Why programs of an optimizer cannot run on a machine's slow memory, and what helps; None where they can.

    Args:
        machine: of which only what its file says counts where its jobs run elsewhere (Slurm).
        optimizer: by name.
        system: the machine's memories, if not this computer's.
    """
    tier = machine.slow_tier
    if optimizer in _ON_GPUS:
        on_gpu, why = isinstance(tier, CudaTier), f"that is for GPUs, slow memory here is of kind {tier.kind}"
        return None if on_gpu else f"{why}; take another optimizer, or a machine of kind cuda"
    if isinstance(tier, EmulatedTier):
        return None
    if optimizer == _CACHED:
        return f"fast memory is no cache of slow memory of kind {tier.kind}; {_ELSEWHERE}"
    return _of_linux(machine, tier, optimizer, system) if optimizer.startswith(_LINUX) else None


def _of_linux(machine: Machine, tier: AnyTier, optimizer: str, system: SystemMemory | None) -> str | None:
    if not isinstance(tier, NumaTier):
        where = "memory behind DAX" if isinstance(tier, DaxTier) else f"slow memory of kind {tier.kind}"
        return f"Linux places no pages in {where}; {_ELSEWHERE}"
    if both := sorted(set(tier.fast_nodes) & set(tier.slow_nodes)):
        return f"node {both[0]} is fast and slow (stand_in), which leaves Linux nothing to choose; {_ELSEWHERE}"
    if tier.huge_pages == "reserved":
        return "Linux places no huge pages that are set aside by these policies; huge_pages: transparent or none"
    return None if machine.cores is not None else kernel_lacks(optimizer, system or SystemMemory())


def kernel_lacks(optimizer: str, system: SystemMemory) -> str | None:
    """Why the kernel of this computer cannot follow a policy, and what helps; None where it can."""
    if optimizer == _WEIGHTED and not system.knows_weights:
        return (
            "this kernel has no /sys/kernel/mm/mempolicy/weighted_interleave, Linux 6.9 is the first that has; "
            f"{_ELSEWHERE}"
        )
    if optimizer != _BALANCING:
        return None
    for name, wanted in SWITCHES.items():
        text = system.setting(name)
        if text is None:
            return f"this kernel has no /{name}: it needs NUMA balancing and demotion, Linux 6.1 or later; {_ELSEWHERE}"
        if not is_switched(name, text) and not system.may_set(name):
            return (
                f"/{name} is {text}, it needs {wanted}, and this process may not write it; run as root: it is set for "
                "each run, and put back after it"
            )
    return None


def is_switched(name: str, text: str) -> bool:
    """Whether one of `SWITCHES` that holds `text` is on; NUMA balancing has bits, of which 2 is for tiered memory."""
    if name.endswith("numa_balancing"):
        return text.isdigit() and bool(int(text) & 2)
    return text in {"true", "1"}


def require_runnable(machine: Machine, optimizer: str) -> None:
    """Refuse what `cannot_run`.

    Raises:
        BadInputError: names optimizer and machine, and says why.
    """
    if reason := cannot_run(machine, optimizer):
        raise BadInputError(f"{optimizer} cannot run on config/machines/{machine.name}.yaml: {reason}")


_ELSEWHERE = "take another optimizer, or a machine whose slow memory is emulated"
