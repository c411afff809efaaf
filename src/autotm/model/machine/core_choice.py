"""Which cores a machine file gives its kernels, and what that is on this computer."""

from __future__ import annotations

from dataclasses import dataclass

from autotm.model.files import BadInputError
from autotm.model.machine.topology import Topology, usable_cpus

Pinned = tuple[tuple[int, ...], tuple[int, ...]]
"""Hardware threads for kernels, and those that are left."""


@dataclass(frozen=True)
class CoreChoice:
    """What a machine file says of cores.

    Attributes:
        source: the file.
        cpus: the hardware threads to pin to, the first ones first; None = chosen by what follows.
        threads_per_core: kernel threads on a physical core.
        socket: only cores of this one.
        numa_node: only cores next to this memory node.
        fast_nodes: only cores next to these memory nodes, which are fast.
    """

    source: str
    cpus: tuple[int, ...] | None = None
    threads_per_core: int = 1
    socket: int | None = None
    numa_node: int | None = None
    fast_nodes: tuple[int, ...] | None = None

    def here(self, threads: int | None, asked_in: object) -> Pinned:
        """The hardware threads of this computer for `threads` kernel threads, or for as many as there can be.

        Raises:
            BadInputError: this process may not use such cores, or not as many.
        """
        usable = usable_cpus()
        if self.cpus is None:
            topology = Topology.of(usable).within(self.source, socket=self.socket, numa_node=self.numa_node)
            if self.fast_nodes is not None:
                topology = topology.next_to(self.source, self.fast_nodes)
            cpus = topology.pinned(self.source, None, self.threads_per_core)
            if threads:
                cpus = topology.pinned(str(asked_in), threads, self.threads_per_core)
            return cpus, topology.spare(cpus)
        if twice := sorted({cpu for cpu in self.cpus if self.cpus.count(cpu) > 1}):
            raise BadInputError(f"{self.source}: cpus: {twice} appear twice; a thread needs a place of its own")
        if absent := sorted(set(self.cpus) - set(usable)):
            raise BadInputError(
                f"{self.source}: cpus: this process may not use {absent}; give cores among {list(usable)}"
            )
        if self.fast_nodes is not None:
            Topology.of(self.cpus).require_next_to(self.source, self.fast_nodes)
        if not self.cpus or (threads or 0) > len(self.cpus):
            raise BadInputError(
                f"{asked_in}: threads: {threads or 'auto'} is not allowed: {self.source} names {len(self.cpus)} cpus; "
                f"give auto or 1 to {len(self.cpus)}, or name more"
            )
        count = threads or len(self.cpus)
        return self.cpus[:count], self.cpus[count:]
