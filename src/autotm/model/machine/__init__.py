"""The machine: memories, cores, topology, and what a result says of them."""

from autotm.model.machine.cores import PATIENCE_S, TICK_NS, Round, Watch, lost_ns
from autotm.model.machine.machine import EmulatedTier, Machine, MachineFile, load_machine
from autotm.model.machine.provenance import cpu_model, cpu_signature, provenance, versions
from autotm.model.machine.slurm import keep_to_allocation
from autotm.model.machine.topology import Topology, usable_cpus

__all__ = [
    "PATIENCE_S",
    "TICK_NS",
    "EmulatedTier",
    "Machine",
    "MachineFile",
    "Round",
    "Topology",
    "Watch",
    "cpu_model",
    "cpu_signature",
    "keep_to_allocation",
    "load_machine",
    "lost_ns",
    "provenance",
    "usable_cpus",
    "versions",
]
