"""Which hardware threads share a core, a socket, a memory node; and which of them kernels are pinned to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotm.model.files import BadInputError

_SYSFS = Path("/sys/devices/system")


@dataclass(frozen=True, order=True)
class HardwareThread:
    """A place where one thread runs.

    Attributes:
        socket: of the package that holds it.
        core: the lowest number among the hardware threads of its physical core.
        cpu: its number, as the system counts.
        numa_node: of the memory next to it.
    """

    socket: int
    core: int
    cpu: int
    numa_node: int


@dataclass(frozen=True)
class Topology:
    """The hardware threads that this process may use; tests read others than this machine's."""

    threads: tuple[HardwareThread, ...]

    @classmethod
    def of(cls, cpus: Iterable[int], sysfs: Path = _SYSFS) -> Topology:
        """Read from Linux; where it does not tell, a thread is a core of its own, on socket 0 and node 0."""
        nodes = {
            cpu: int(folder.name.removeprefix("node"))
            for folder in sysfs.glob("node/node[0-9]*")
            for cpu in parse_cpu_list(_text(folder / "cpulist", ""))
        }
        found = []
        for cpu in sorted(cpus):
            folder = sysfs / "cpu" / f"cpu{cpu}" / "topology"
            siblings = parse_cpu_list(_text(folder / "thread_siblings_list", str(cpu))) or [cpu]
            # Some virtual machines and boards say -1.
            socket = max(0, int(_text(folder / "physical_package_id", "0")))
            found.append(HardwareThread(socket, min(siblings), cpu, nodes.get(cpu, 0)))
        return cls(tuple(found))

    @property
    def cores(self) -> dict[int, tuple[int, ...]]:
        """Hardware threads by physical core, socket after socket."""
        found: dict[int, list[int]] = {}
        for thread in sorted(self.threads):
            found.setdefault(thread.core, []).append(thread.cpu)
        return {core: tuple(cpus) for core, cpus in found.items()}

    def within(self, where: str, *, socket: int | None = None, numa_node: int | None = None) -> Topology:
        """The part on a socket, on a memory node, or on both.

        Raises:
            BadInputError: this process may use nothing there; says what it may use.
        """
        kept = self.threads
        for key, wanted in (("socket", socket), ("numa_node", numa_node)):
            if wanted is not None:
                known = sorted({getattr(thread, key) for thread in kept})
                kept = tuple(thread for thread in kept if getattr(thread, key) == wanted)
                if not kept:
                    raise BadInputError(
                        f"{where}: {key}: {wanted} is not allowed: this process may use cores of {key} "
                        f"{', '.join(map(str, known))}"
                    )
        return Topology(kept)

    def next_to(self, where: str, fast_nodes: Sequence[int]) -> Topology:
        """The part beside these memory nodes.

        Raises:
            BadInputError: this process may use no core there; says where it may.
        """
        kept = tuple(thread for thread in self.threads if thread.numa_node in fast_nodes)
        if not kept:
            known = ", ".join(map(str, sorted({thread.numa_node for thread in self.threads})))
            raise BadInputError(
                f"{where}: slow_tier.fast_nodes: {list(fast_nodes)} is not allowed: kernels run next to fast "
                f"memory, and this process may use cores of node {known}"
            )
        return Topology(kept)

    def require_next_to(self, where: str, fast_nodes: Sequence[int]) -> None:
        """Raise where a thread is elsewhere.

        Raises:
            BadInputError: names those threads.
        """
        if away := [thread.cpu for thread in self.threads if thread.numa_node not in fast_nodes]:
            raise BadInputError(
                f"{where}: cpus: {away} are not next to slow_tier.fast_nodes {list(fast_nodes)}; leave cpus out, "
                "or name cores of these nodes"
            )

    def pinned(self, where: str, threads: int | None, threads_per_core: int) -> tuple[int, ...]:
        """Hardware threads for `threads` kernel threads, core after core, `threads_per_core` on each; None fills all.

        Raises:
            BadInputError: no core has so many hardware threads, or there are too few cores; says how many there are.
        """
        cores = [cpus[:threads_per_core] for cpus in self.cores.values() if len(cpus) >= threads_per_core]
        if not cores:
            most = max((len(cpus) for cpus in self.cores.values()), default=0)
            raise BadInputError(
                f"{where}: threads_per_core: {threads_per_core} is not allowed: the cores that this process may use "
                f"have {most} hardware thread{'s' if most > 1 else ''} each"
            )
        places = [cpu for core in cores for cpu in core]
        count = len(places) if threads is None else threads
        if count > len(places):
            raise BadInputError(
                f"{where}: threads: {count} is not allowed: {len(cores)} physical cores are usable, "
                f"{threads_per_core} thread{'s' if threads_per_core > 1 else ''} each; give auto or 1 to {len(places)}"
                + self._hint(count, threads_per_core)
            )
        return tuple(places[:count])

    def spare(self, used: Iterable[int]) -> tuple[int, ...]:
        """The best hardware threads beside `used`: next to its memory nodes rather than not, then on idle cores."""
        taken = {thread for thread in self.threads if thread.cpu in set(used)}
        nodes, cores = {thread.numa_node for thread in taken}, {thread.core for thread in taken}

        def drawbacks(thread: HardwareThread) -> tuple[bool, bool]:
            return thread.numa_node not in nodes, thread.core in cores

        free = sorted(set(self.threads) - taken)
        fewest = min(map(drawbacks, free), default=None)
        return tuple(thread.cpu for thread in free if drawbacks(thread) == fewest)

    def _hint(self, threads: int, threads_per_core: int) -> str:
        shared = [cpus[: threads_per_core + 1] for cpus in self.cores.values() if len(cpus) > threads_per_core]
        enough = threads <= sum(map(len, shared))
        return f", or threads_per_core: {threads_per_core + 1} in the machine file" if enough else ""


def usable_cpus() -> tuple[int, ...]:
    """Hardware threads this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def described(cpus: Sequence[int]) -> dict[str, Any]:
    """Where threads pinned to `cpus` sit, for provenance: most on one core, sockets, memory nodes."""
    topology = Topology.of(cpus)
    return {
        "threads_per_core": max(len(found) for found in topology.cores.values()),
        "sockets": sorted({thread.socket for thread in topology.threads}),
        "numa_nodes": sorted({thread.numa_node for thread in topology.threads}),
    }


def parse_cpu_list(text: str) -> list[int]:
    """Linux's lists, e.g. `0-3,8,10-11`."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _text(file: Path, otherwise: str) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return otherwise
