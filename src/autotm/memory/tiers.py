"""A pool in each of the two memories of a machine, the copies between them, and what slow operands cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy.typing as npt

from autotm.memory.copies import AsyncCopy, AsyncCopyEngine, CopyEngine, measured_methods
from autotm.memory.pool import Pool
from autotm.model.cache import PagedTraffic
from autotm.model.graph import OpClass, Tier
from autotm.model.links import CopyCurve
from autotm.model.machine import Machine


class Tiers(AbstractContextManager["Tiers"]):
    """A fast and a slow pool with the engines that move tensors between them; a context manager that frees both.

    Both are memories of their own, real or stand-ins: kernels and copies take what they take, nothing is waited for.
    A kind that emulates slow memory overrides that.

    Args:
        fast: the pool in fast memory.
        slow: the pool in slow memory.
        machine: says which cores copy while a step waits, and which beside kernels.
        more_fast: makes more fast memory of a size, as the fast pool was made; by default a plain pool.

    Attributes:
        waits_are_known: whether slow operands cost nothing but the wait of `kernel_delay_ns`, known without timing.
        waits_are_additive: whether the waits for a kernel's slow operands add up; elsewhere each configuration has a
            wait of its own.
    """

    waits_are_known: ClassVar[bool] = False
    waits_are_additive: bool = True

    def __init__(
        self, fast: Pool, slow: Pool, machine: Machine, more_fast: Callable[[int], Pool] | None = None
    ) -> None:
        self.fast = fast
        self.slow = slow
        self._machine = machine
        self._more_fast = more_fast or functools.partial(Pool, Tier.FAST)
        self._engine = CopyEngine(machine.cpus)
        self.copy_as_measured(())
        self._async_copy_engines: dict[Tier, AsyncCopyEngine] = {}
        self._outside: list[Pool] = []

    def copy_as_measured(self, curves: Sequence[CopyCurve]) -> None:
        """Let copies from now on take the method that was fastest for their size; without curves, as caches suggest."""
        self._methods = {tier: measured_methods(curves, tier, len(self._machine.cpus)) for tier in Tier}

    def outside(self, size_bytes: int) -> Pool:
        """Make a pool of fast memory for what no plan places; it lives as long as its views.

        Raises:
            AutotmError: the system does not give the memory.
        """
        pool = self._more_fast(size_bytes)
        self._outside.append(pool)
        return pool

    @property
    def bound_pools(self) -> tuple[Pool, ...]:
        """Pools whose memory is chosen, not left to Linux."""
        return (self.fast, self.slow, *self._outside)

    def check(self) -> None:
        """Make sure that all memory still is where it was opened; called before what was measured is kept.

        Raises:
            AutotmError: some is not, so that what was measured tells nothing.
        """
        for pool in (self.fast, self.slow, *self._outside):
            pool.check()

    def pool(self, tier: Tier) -> Pool:
        """Return the pool that plays `tier`."""
        return self.fast if tier is Tier.FAST else self.slow

    def copy(self, destination_view: npt.NDArray[Any], source_view: npt.NDArray[Any], destination: Tier) -> None:
        """Move bytes, blocking: return when those of the source are in the view of the other pool, `destination`."""
        self._engine.copy(destination_view, source_view, self._methods[destination].method(source_view.nbytes))

    def async_copy(
        self, destination_view: npt.NDArray[Any], source_view: npt.NDArray[Any], destination: Tier, deadline: int
    ) -> AsyncCopy:
        """Prepare an asynchronous move: of those under way, the one with the earliest deadline is served first.

        The first one to each tier starts the engine's thread.
        """
        if destination not in self._async_copy_engines:
            pace_ns = functools.partial(self.asynchronous_move_ns, destination)
            name = f"autotm-to-{destination}"
            self._async_copy_engines[destination] = AsyncCopyEngine(name, self._machine.copying_cpus, pace_ns)
        stores = self._methods[destination].stores_alone(source_view.nbytes)
        return AsyncCopy(self._async_copy_engines[destination], destination_view, source_view, deadline, stores)

    def asynchronous_move_ns(self, destination: Tier, size_bytes: int) -> int:
        """Return the least nanoseconds that bytes for `destination` occupy the engine; 0 for real memory."""
        del destination, size_bytes
        return 0

    def kernel_delay_ns(
        self, op_class: OpClass, slow_read_bytes: tuple[int, ...], slow_write_bytes: tuple[int, ...]
    ) -> int:
        """Return the nanoseconds to wait after a kernel for its slow operands; 0 where they really are slow.

        Depends on nothing but its arguments, so that executors compute it before they run. A workspace is written and
        read: it stands in both tuples.
        """
        del op_class, slow_read_bytes, slow_write_bytes
        return 0

    def cache_delay_ns(self, op_class: OpClass, fetched_bytes: int, written_bytes: int, own_bytes: int) -> int:
        """Return the nanoseconds to wait after a kernel for its misses in a cache of slow memory, and for the cache.

        Bytes that are fetched and written back cost what slow operands do; `own_bytes` are what the cache reads and
        writes in fast memory for itself. 0 for real memory, of which none is such a cache.
        """
        del op_class, fetched_bytes, written_bytes, own_bytes
        return 0

    def paged_delay_ns(self, op_class: OpClass, traffic: PagedTraffic) -> int:
        """Return the nanoseconds to wait after a kernel for slow and moving pages; 0 where they really are slow."""
        del op_class, traffic
        return 0

    def close(self) -> None:
        """End the threads that copy and free both pools."""
        self._engine.close()
        for engine in self._async_copy_engines.values():
            engine.close()
        self.fast.close()
        self.slow.close()

    def __exit__(self, *_: object) -> None:
        self.close()
