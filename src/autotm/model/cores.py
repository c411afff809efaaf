"""Cores of this computer: which of them kernels are pinned to, and how a measurement stays undisturbed there.

Topology: which hardware threads share a core, a socket, a memory node.
"""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Generic, TypeVar

from autotm.model.errors import BadInputError

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
            for cpu in parse_cpu_list(read_text(folder / "cpulist"))
        }
        threads = []
        for cpu in sorted(cpus):
            folder = sysfs / "cpu" / f"cpu{cpu}" / "topology"
            siblings = parse_cpu_list(read_text(folder / "thread_siblings_list", str(cpu))) or [cpu]
            # Some virtual machines and boards say -1.
            socket = max(0, int(read_text(folder / "physical_package_id", "0")))
            threads.append(HardwareThread(socket, min(siblings), cpu, nodes.get(cpu, 0)))
        return cls(tuple(threads))

    @property
    def cores(self) -> dict[int, tuple[int, ...]]:
        """Hardware threads by physical core, socket after socket."""
        by_core: dict[int, list[int]] = {}
        for thread in sorted(self.threads):
            by_core.setdefault(thread.core, []).append(thread.cpu)
        return {core: tuple(cpus) for core, cpus in by_core.items()}

    def within(
        self,
        where: str,
        *,
        socket: int | None = None,
        numa_node: int | None = None,
        fast_nodes: tuple[int, ...] | None = None,
    ) -> Topology:
        """Return the part on a socket, on a memory node, next to fast memory nodes, or all of it.

        Raises:
            BadInputError: this process may use nothing there; says what it may use.
        """
        threads = self.threads
        for key, unit, why, wanted in (
            ("socket", "socket", "", socket),
            ("numa_node", "numa_node", "", numa_node),
            ("slow_tier.fast_nodes", "numa_node", "kernels run next to fast memory, and ", fast_nodes),
        ):
            if wanted is not None:
                allowed = [wanted] if isinstance(wanted, int) else [*wanted]
                known = ", ".join(map(str, sorted({getattr(thread, unit) for thread in threads})))
                threads = tuple(thread for thread in threads if getattr(thread, unit) in allowed)
                if not threads:
                    shown = wanted if isinstance(wanted, int) else allowed
                    raise BadInputError(
                        f"{where}: {key}: {shown} is not allowed: {why}this process may use cores of {unit} {known}"
                    )
        return Topology(threads)

    def pinned(self, where: str, threads: int | None, threads_per_core: int) -> tuple[int, ...]:
        """Choose cores for `threads` kernel threads, core by core, `threads_per_core` on each; None fills all.

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
            more = threads_per_core + 1
            enough = count <= sum(more for cpus in self.cores.values() if len(cpus) >= more)
            hint = f", or threads_per_core: {more} in the machine file" if enough else ""
            each = f"{threads_per_core} thread{'s' if threads_per_core > 1 else ''} each"
            raise BadInputError(
                f"{where}: threads: {count} is not allowed: {len(cores)} physical cores are usable, {each}; give auto "
                f"or 1 to {len(places)}{hint}"
            )
        return tuple(places[:count])

    def spare(self, used: Iterable[int]) -> tuple[int, ...]:
        """Return the best hardware threads besides `used`: first those next to its memory nodes, then idle cores."""
        taken = {thread for thread in self.threads if thread.cpu in set(used)}
        nodes, cores = {thread.numa_node for thread in taken}, {thread.core for thread in taken}

        def drawbacks(thread: HardwareThread) -> tuple[bool, bool]:
            return thread.numa_node not in nodes, thread.core in cores

        free = sorted(set(self.threads) - taken)
        fewest = min(map(drawbacks, free), default=None)
        return tuple(thread.cpu for thread in free if drawbacks(thread) == fewest)


def usable_cpus() -> tuple[int, ...]:
    """Return the hardware threads that this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def described(cpus: Sequence[int]) -> dict[str, Any]:
    """Return where threads pinned to `cpus` sit, for provenance: most on one core, sockets, memory nodes."""
    topology = Topology.of(cpus)
    return {
        "threads_per_core": max(len(cpus) for cpus in topology.cores.values()),
        "sockets": sorted({thread.socket for thread in topology.threads}),
        "numa_nodes": sorted({thread.numa_node for thread in topology.threads}),
    }


def parse_cpu_list(text: str) -> list[int]:
    """Read Linux's lists, e.g. `0-3,8,10-11`."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def read_text(file: Path, otherwise: str = "") -> str:
    """Return the text of a file of the system; `otherwise` where it cannot be read as UTF-8 text."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return otherwise


Pinned = tuple[tuple[int, ...], tuple[int, ...]]
"""Hardware threads for kernels, and those that are left."""


@dataclass(frozen=True)
class CoreChoice:
    """The choice of cores in a machine file.

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
        """Return the hardware threads of this computer for `threads` kernel threads, or for as many as there can be.

        Raises:
            BadInputError: this process may not use such cores, or not as many.
        """
        usable = usable_cpus()
        if self.cpus is None:
            topology = Topology.of(usable).within(
                self.source, socket=self.socket, numa_node=self.numa_node, fast_nodes=self.fast_nodes
            )
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
        near = self.fast_nodes
        if near and (away := [one.cpu for one in Topology.of(self.cpus).threads if one.numa_node not in near]):
            raise BadInputError(
                f"{self.source}: cpus: {away} are not next to slow_tier.fast_nodes {list(near)}; leave cpus "
                "out, or name cores of these nodes"
            )
        if not self.cpus or (threads or 0) > len(self.cpus):
            raise BadInputError(
                f"{asked_in}: threads: {threads or 'auto'} is not allowed: {self.source} names {len(self.cpus)} cpus; "
                f"give auto or 1 to {len(self.cpus)}, or name more"
            )
        count = threads or len(self.cpus)
        return self.cpus[:count], self.cpus[count:]


T = TypeVar("T")

DISTURBED = 0.1
"""A timing is disturbed if others took more than this share of its cores' time. Snakemake always takes a little."""
PATIENCE_S = 30.0
"""Longer than a neighbour's burst of work, short beside what a study measures."""
_AS_LONG = 3
"""Where good rounds have taken long, disturbed ones are repeated for so many times as long."""
TICK_NS = 10_000_000
"""The grain in which Linux tells what the hypervisor took."""

_PROC = "/proc"
_STEAL_FIELD = 8  # of a line of /proc/stat, the name of the CPU being the first (proc_stat(5))


def lost_ns(cpus: Sequence[int]) -> int:
    """Return the nanoseconds that this process waited for `cpus`, held by other processes or by the hypervisor.

    Meaningful as a difference over a stretch of time; the hypervisor's part comes in steps of `TICK_NS`. 0 where Linux
    does not count.
    """
    threads = os.scandir(f"{_PROC}/self/task")
    schedules = (_counters(f"{thread.path}/schedstat").split() for thread in threads)
    waited_ns = sum(int(fields[1]) for fields in schedules if len(fields) > 1)
    wanted = {f"cpu{cpu}".encode() for cpu in cpus}
    rows = (line.split() for line in _counters(f"{_PROC}/stat").splitlines() if line.split(b" ", 1)[0] in wanted)
    ticks = sum(int(fields[_STEAL_FIELD]) for fields in rows if len(fields) > _STEAL_FIELD)
    return waited_ns + ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def _counters(path: str) -> bytes:
    """Return what the system counts in a file; nothing where it does not.

    Read twice a round, which may take a millisecond: pathlib takes five times as long.
    """
    try:
        with io.FileIO(path) as file:
            return file.readall()
    except OSError:
        return b""


@dataclass(frozen=True, slots=True)
class Round(Generic[T]):
    """Result of a round, nanoseconds of its cores' time that others took, and nanoseconds of wall time."""

    result: T
    lost_ns: int
    wall_ns: int


class Watch:
    """Judges rounds of one measurement, and ends it when others disturb it for too long.

    Attributes:
        disturbed: labels of the measurements that kept results of disturbed rounds.
    """

    def __init__(self, cpus: Sequence[int], patience_s: float) -> None:
        """Watch over rounds on `cpus`.

        Disturbed ones may take `patience_s` seconds together, or three times as long as the good ones, if that is more.
        """
        self._cpus = tuple(cpus)
        self._patience_ns = patience_s * 1e9
        self._good_ns = self._disturbed_ns = 0
        self.disturbed: list[str] = []

    def judge(self, lost: int, wall_ns: int) -> bool:
        """Return whether a round of `wall_ns` counts although others took `lost` nanoseconds of its cores' time."""
        is_good = lost <= DISTURBED * len(self._cpus) * wall_ns
        if is_good:
            self._good_ns += wall_ns
        else:
            self._disturbed_ns += wall_ns
        return is_good

    def timed(self, run: Callable[[], T]) -> Round[T]:
        """Run a round."""
        lost, start_ns = lost_ns(self._cpus), perf_counter_ns()
        result = run()
        wall_ns = perf_counter_ns() - start_ns
        return Round(result, lost_ns(self._cpus) - lost, wall_ns)

    def rounds(self, run: Callable[[], T], count: int, label: str) -> list[T]:
        """Call `run` until `count` rounds are good, and return their results.

        If patience ends first, return the results of all rounds, and add `label` to `disturbed`.
        """
        return self.until(run, lambda results: len(results) >= count, label)

    def until(self, run: Callable[[], T], is_enough: Callable[[Sequence[T]], bool], label: str) -> list[T]:
        """Call `run` until `is_enough` accepts the results of the good rounds, and return these results.

        If patience ends first, return the results of all rounds, and add `label` to `disturbed`. `is_enough` is asked
        before each round.
        """
        good: list[T] = []
        every: list[T] = []
        while not is_enough(good):
            if self.is_over and is_enough(every):
                self.disturbed.append(label)
                return every
            timed = self.timed(run)
            every.append(timed.result)
            if self.judge(timed.lost_ns, timed.wall_ns):
                good.append(timed.result)
        return good

    @property
    def is_over(self) -> bool:
        """Whether disturbed rounds are no longer repeated."""
        return self._disturbed_ns >= max(self._patience_ns, _AS_LONG * self._good_ns)


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """Turn garbage collection off inside the `with` block: it would interrupt kernels at random."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
