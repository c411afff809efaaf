"""The two memories of a machine, opened: a pool in each, the copies between them, and what slow operands cost."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy.typing as npt

from autotm.memory import kinds
from autotm.memory.async_copy import AsyncCopy, CopyEngine
from autotm.memory.pool import Pool
from autotm.model.files import unknown_name
from autotm.model.machine import Machine
from autotm.model.measurement import Links
from autotm.model.step import OpClass, Tier


class Tiers(ABC):
    """A fast and a slow pool with the engines that move tensors between them; a context manager that frees both.

    `copying_cpus` are the cores that threads which copy beside kernels may use.
    """

    def __init__(self, fast: Pool, slow: Pool, copying_cpus: tuple[int, ...]) -> None:
        self.fast = fast
        self.slow = slow
        self._copying_cpus = copying_cpus
        self._async_copy_engines: dict[Tier, CopyEngine] = {}

    def pool(self, tier: Tier) -> Pool:
        """The pool that plays `tier`."""
        return self.fast if tier is Tier.DRAM else self.slow

    @abstractmethod
    def copy(self, destination_view: npt.NDArray[Any], source_view: npt.NDArray[Any], destination: Tier) -> None:
        """Blocking move: returns when the bytes of `source_view` are in `destination_view`, which is in `destination`.

        Raises:
            AutotmError: sizes differ, or a view is not contiguous.
        """

    def async_copy(
        self, destination_view: npt.NDArray[Any], source_view: npt.NDArray[Any], destination: Tier, deadline: int
    ) -> AsyncCopy:
        """Asynchronous move, prepared: of those under way, the one with the earliest deadline is served first.

        The first one to each tier starts the engine's thread.

        Raises:
            AutotmError: sizes differ, or a view is not contiguous.
        """
        if destination not in self._async_copy_engines:
            pace_ns = functools.partial(self.asynchronous_move_ns, destination)
            self._async_copy_engines[destination] = CopyEngine(f"autotm-to-{destination}", self._copying_cpus, pace_ns)
        return self._async_copy_engines[destination].prepare(destination_view, source_view, deadline)

    def asynchronous_move_ns(self, destination: Tier, size_bytes: int) -> int:
        """Nanoseconds for which bytes on their way to `destination` occupy the engine at least; 0 for real memory."""
        del destination, size_bytes
        return 0

    waits_are_known: ClassVar[bool] = False
    """Whether slow operands cost nothing but the wait of `kernel_delay_ns`, which is known without timing."""

    @abstractmethod
    def kernel_delay_ns(
        self, op_class: OpClass, slow_read_bytes: tuple[int, ...], slow_write_bytes: tuple[int, ...]
    ) -> int:
        """Nanoseconds to wait after a kernel for what its slow operands would have cost; 0 where they really are slow.

        Depends on nothing but its arguments, so that executors compute it before they run. A workspace is written and
        read: it stands in both tuples.
        """

    def cache_delay_ns(self, op_class: OpClass, fetched_bytes: int, written_bytes: int) -> int:
        """Nanoseconds to wait after a kernel for what it misses in a cache of slow memory.

        Bytes that are fetched and written back cost what slow operands do; 0 where the machine has such a cache itself.
        """
        return self.kernel_delay_ns(op_class, (fetched_bytes,), (written_bytes,))

    def close(self) -> None:
        """End the threads that copy beside kernels and free both pools."""
        for engine in self._async_copy_engines.values():
            engine.close()
        self.fast.close()
        self.slow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def tier_kinds() -> tuple[str, ...]:
    """Kinds of slow tier that a machine file can choose: one module each in `autotm.memory.kinds`."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(kinds.__path__)))


def open_tiers(
    machine: Machine,
    links: Links | None,
    fast_bytes: int,
    slow_bytes: int,
    devices_dir: Path,
    *,
    stretch: float | None = None,
) -> Tiers:
    """Allocate and touch both pools of `machine`.

    Args:
        machine: says what plays slow memory, and which cores copy.
        links: calibration results; None only where nothing is stretched or `stretch` is given.
        fast_bytes: size of the pool in fast memory.
        slow_bytes: size of the pool in slow memory.
        devices_dir: folder of the device files (`config/devices`).
        stretch: factor on emulated delays in place of the one in `links`; for calibration, which has no links yet.

    Raises:
        BadInputError: unknown kind or device, a faulty device file, or missing calibration results.
        AutotmError: the system does not give the memory.
    """
    kind = machine.slow_tier.kind
    if kind not in tier_kinds():
        raise unknown_name("kind of slow tier", kind, tier_kinds())
    module = importlib.import_module(f"{kinds.__name__}.{kind}")
    opened: Tiers = module.open_kind(machine, links, fast_bytes, slow_bytes, devices_dir, stretch=stretch)
    return opened
