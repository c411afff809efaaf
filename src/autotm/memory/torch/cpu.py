"""A CPU in the place of a device: ordinary memory, and threads that copy beside operators."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from autotm.memory.torch.timing import require_host_memory
from autotm.model.files import AutotmError


class Cpu:
    """Ordinary memory plays both parts: nothing of its times says anything about a GPU."""

    granularity_bytes = 64

    def __init__(self) -> None:
        self.torch = torch.device("cpu")
        self.name = "CPU, ordinary memory in the place of device memory"

    def copies(self) -> ThreadCopies:
        """A thread a direction."""
        return ThreadCopies()

    def host_pool(self, size_bytes: int) -> torch.Tensor:
        """Ordinary memory."""
        require_host_memory(size_bytes)
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu")

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """By the processor's clock."""
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - begun

    def peak(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """As PyTorch's allocator reports to its profiler; threads that it does not know of allocate nothing here."""
        profiler = torch.autograd
        config = profiler.ProfilerConfig(
            profiler.ProfilerState.CPU,
            False,
            True,
            False,
            False,
            False,
            torch._C._profiler._ExperimentalConfig(),  # noqa: SLF001
        )
        profiler._enable_profiler_legacy(config)  # noqa: SLF001 - the public one takes milliseconds and writes to stderr
        try:
            found = call()
        finally:
            threads = profiler._disable_profiler_legacy()  # noqa: SLF001
        used = peak = 0
        for events in threads:
            for event in events:
                if event.kind() == "memory_alloc":
                    used += event.cpu_memory_usage()
                    peak = max(peak, used)
        return found, peak


@dataclass(eq=False)
class _Copy:
    destination: torch.Tensor
    source: torch.Tensor
    done: threading.Event = field(default_factory=threading.Event)
    begun_s: float = 0.0
    ended_s: float = 0.0
    error: BaseException | None = None


class ThreadCopies:
    """On a CPU: a thread a direction. Operators hold the calling thread, so nothing is asked before it is done.

    Args:
        before_copy: called by the thread before each copy; tests put copies off with it.
    """

    def __init__(self, before_copy: Callable[[], None] | None = None) -> None:
        self._before_copy = before_copy
        self._queues = {name: queue.SimpleQueue[_Copy | None]() for name in ("inward", "outward")}
        self._under_way: set[_Copy] = set()
        self._threads = [
            threading.Thread(target=self._serve, args=(work,), name=f"autotm-{name}", daemon=True)
            for name, work in self._queues.items()
        ]
        for thread in self._threads:
            thread.start()

    def start_inward(self, destination: torch.Tensor, source: torch.Tensor) -> _Copy:
        """Hand the copy to the thread towards the device."""
        return self._start("inward", destination, source)

    def start_outward(self, destination: torch.Tensor, source: torch.Tensor) -> _Copy:
        """Hand the copy to the thread towards the host."""
        return self._start("outward", destination, source)

    def wait(self, copy: _Copy) -> None:
        """Hold the calling thread until the copy is complete."""
        copy.done.wait()
        self._under_way.discard(copy)
        if copy.error is not None:
            raise AutotmError(f"offload: a copy of {copy.source.numel()} bytes failed: {copy.error}") from copy.error

    def drain(self) -> None:
        """Hold the calling thread until both threads wait for work; what failed has no one left to be told."""
        for copy in self._under_way:
            copy.done.wait()
        self._under_way.clear()

    def seconds(self, copy: _Copy) -> float:
        """By the processor's clock."""
        return copy.ended_s - copy.begun_s

    def close(self) -> None:
        """End the threads."""
        for work in self._queues.values():
            work.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self, name: str, destination: torch.Tensor, source: torch.Tensor) -> _Copy:
        copy = _Copy(destination, source)
        self._under_way.add(copy)
        self._queues[name].put(copy)
        return copy

    def _serve(self, work: queue.SimpleQueue[_Copy | None]) -> None:
        while (copy := work.get()) is not None:
            try:
                if self._before_copy is not None:
                    self._before_copy()
                copy.begun_s = time.perf_counter()
                # One thread and no lock of Python's: PyTorch's own copy would take the cores that operators use.
                ctypes.memmove(copy.destination.data_ptr(), copy.source.data_ptr(), copy.source.numel())
            except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits for the copy
                copy.error = error
            copy.ended_s = time.perf_counter()
            copy.done.set()
