"""The machine: memories, cores, topology, and what a result says of them."""

from autotm.model.machine.cores import PATIENCE_S, TICK_NS, Round, Watch, lost_ns
from autotm.model.machine.machine import EmulatedTier, Machine, load_machine
from autotm.model.machine.provenance import cpu_signature, provenance, versions
from autotm.model.machine.slurm import keep_to_allocation

__all__ = [
    "PATIENCE_S",
    "TICK_NS",
    "EmulatedTier",
    "Machine",
    "Round",
    "Watch",
    "cpu_signature",
    "keep_to_allocation",
    "load_machine",
    "lost_ns",
    "provenance",
    "versions",
]
