"""The machine: memories, cores, topology, and what a result says of them."""

from autotm.model.machine.c_compiler import find_compiler
from autotm.model.machine.cgroup import cpu_quota
from autotm.model.machine.cores import PATIENCE_S, TICK_NS, Round, Watch, lost_ns
from autotm.model.machine.machine import MODELLED_MACHINE, Machine, MachineFile, load_machine
from autotm.model.machine.provenance import commit, cpu_model, cpu_signature, installed_version, provenance, versions
from autotm.model.machine.runnable import SWITCHES, cannot_run, is_switched, kernel_lacks, require_runnable
from autotm.model.machine.slow_memory import slow_memory_facts, slow_memory_text
from autotm.model.machine.slow_tier import (
    AnyTier,
    CudaTier,
    DaxTier,
    EmulatedTier,
    ModelledTier,
    NumaTier,
    Products,
    deciding,
)
from autotm.model.machine.slurm import keep_to_allocation
from autotm.model.machine.system_memory import MemoryNode, Mount, SystemMemory
from autotm.model.machine.topology import Topology, usable_cpus

__all__ = [
    "MODELLED_MACHINE",
    "PATIENCE_S",
    "SWITCHES",
    "TICK_NS",
    "AnyTier",
    "CudaTier",
    "DaxTier",
    "EmulatedTier",
    "Machine",
    "MachineFile",
    "MemoryNode",
    "ModelledTier",
    "Mount",
    "NumaTier",
    "Products",
    "Round",
    "SystemMemory",
    "Topology",
    "Watch",
    "cannot_run",
    "commit",
    "cpu_model",
    "cpu_quota",
    "cpu_signature",
    "deciding",
    "find_compiler",
    "installed_version",
    "is_switched",
    "keep_to_allocation",
    "kernel_lacks",
    "load_machine",
    "lost_ns",
    "provenance",
    "require_runnable",
    "slow_memory_facts",
    "slow_memory_text",
    "usable_cpus",
    "versions",
]
