"""Devices of PyTorch, a GPU or a CPU in its place: copies beside operators, pinned memory, clocks, peaks."""

from __future__ import annotations

import ctypes
import queue
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch

from autotm.memory.gpu.links import links_of
from autotm.memory.linux.pools import NodePool, check_nodes
from autotm.memory.torch_arena import has_arenas
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import OpClass, Tier
from autotm.model.links import Links
from autotm.model.system import SystemMemory

_LEAST_REPEATS, _MOST_REPEATS = 3, 100
"""Repeats of a call: quartiles need three; more than a hundred tell nothing new of a short call."""
_SHORT_S = 2e-5
"""Calls shorter than this are timed several at once: a pair of events by itself takes microseconds."""

# A device and its streams of copies: a GPU, or a CPU on which ordinary memory and threads take their places.


class Device(ABC):
    """A device that PyTorch computes on, and its streams of copies.

    Attributes:
        name: what records of measurements call the device.
        torch: the device as PyTorch names it.
        granularity_bytes: its allocator rounds sizes up to multiples of this.
        generator_bytes: of its memory that it takes to let a random operator draw the same numbers again.
        tier_reality: whether the slower memory is `real` or a `stand-in`.
        uses_slow_memory: whether operators can read and write the slower memory.
    """

    name: str
    torch: torch.device
    granularity_bytes: int
    tier_reality: str = "real"
    uses_slow_memory = False
    generator_bytes = 0

    @property
    def has_arenas(self) -> bool:
        """Whether tensors can have places in an arena (`torch_arena.py`); else the device's allocator chooses them."""
        return False

    @abstractmethod
    def copies(self) -> Copies:
        """Return a new stream of copies for each direction."""

    def host_bytes(self) -> int:
        """Return the host memory that is available, within the limit of a container or a job."""
        limit = SystemMemory().memory_limit
        available = psutil.virtual_memory().available
        return available if limit is None else min(available, limit.left_bytes)

    def host_pool(self, size_bytes: int) -> torch.Tensor:
        """Allocate host memory, pinned where the device is a GPU.

        Raises:
            AutotmError: the system does not pin it.
        """
        is_pinned = self.torch.type == "cuda"
        try:  # Once: pinning takes milliseconds and holds up the device.
            return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
        except RuntimeError as error:
            if not is_pinned:
                raise
            raise AutotmError(
                f"offload: the system does not pin {size_bytes} bytes of host memory: {error}; raise `ulimit -l`, or "
                "give a larger budget"
            ) from error

    @abstractmethod
    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """Return the seconds that this many calls take, one after another."""

    def median_ns(self, call: Callable[[], object], least_s: float) -> tuple[int, int, int, int, int]:
        """Return the least, median and quartiles (lower, upper) of repeated calls in nanoseconds, and their number."""
        first = self.seconds(call, 1)
        # Calls shorter than the clock's own cost are timed several at once.
        together = max(1, min(1000, int(_SHORT_S / max(first, 1e-7))))
        times: list[float] = []
        while len(times) < _LEAST_REPEATS or (sum(times) * together < least_s and len(times) < _MOST_REPEATS):
            times.append(self.seconds(call, together) / together)
        lower, middle, upper = statistics.quantiles(times, n=4)
        least, middle, lower, upper = (max(1, round(each * 1e9)) for each in (min(times), middle, lower, upper))
        return least, middle, lower, upper, len(times)

    @abstractmethod
    def peak(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """Return the call's result, and the bytes by which allocations at their peak exceeded those before the call."""


class Copies(ABC):
    """Two streams of copies, one for each direction. Each makes its copies in the order in which they are started.

    A copy begins after all that was asked of the device before it was started. What is asked after `wait` comes after
    the copy.
    """

    @abstractmethod
    def start(self, tier: Tier, destination: torch.Tensor, source: torch.Tensor) -> Any:
        """Begin to copy `source`, whole, into `tier` from the other tier; return the copy, for `wait` and `seconds`."""

    @abstractmethod
    def wait(self, copy: Any) -> None:
        """Order all work that is asked of the device from now on after the copy.

        Raises:
            AutotmError: the copy failed.
        """

    @abstractmethod
    def drain(self) -> None:
        """Hold the calling thread until no copy is under way."""

    @abstractmethod
    def seconds(self, copy: Any) -> float:
        """Return the seconds that a complete copy took, from its beginning."""

    def close(self) -> None:
        """End the streams of copies, after the copies under way."""
        self.drain()


class Cuda(Device):
    """An NVIDIA GPU."""

    granularity_bytes = 512

    def __init__(self, device: torch.device) -> None:
        self.torch = device
        self.name = torch.cuda.get_device_name(device)

    def copies(self) -> CudaCopies:
        """Return copies with a stream for each direction."""
        return CudaCopies(self.torch)

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """Return the seconds of the calls, by events of the device."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(self.torch)
        start.record(stream)
        for _ in range(calls):
            call()
        end.record(stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def peak(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """Return the call's result and peak bytes, as PyTorch's allocator counts them."""
        torch.cuda.synchronize(self.torch)
        torch.cuda.reset_peak_memory_stats(self.torch)
        before = torch.cuda.memory_allocated(self.torch)
        result = call()
        torch.cuda.synchronize(self.torch)
        return result, torch.cuda.max_memory_allocated(self.torch) - before


_Events = tuple[torch.cuda.Event, torch.cuda.Event]
"""Recorded before and after a copy."""


class CudaCopies(Copies):
    """Copies on two CUDA streams. The stream that is current at `start` and at `wait` is that of the operators.

    Memory goes back to PyTorch's allocator on that stream, after it has waited for the copies that use it, so that it
    may be used again at once: `record_stream` is not needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = {tier: torch.cuda.Stream(device) for tier in Tier}

    def start(self, tier: Tier, destination: torch.Tensor, source: torch.Tensor) -> _Events:
        """Queue the copy on the stream of its direction."""
        stream = self._streams[tier]
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            begun.record(stream)
            destination.copy_(source, non_blocking=True)
            ended.record(stream)
        return begun, ended

    def wait(self, copy: _Events) -> None:
        """Make the operators' stream wait until the copy is complete."""
        torch.cuda.current_stream(self._device).wait_event(copy[1])

    def drain(self) -> None:
        """Hold the calling thread until both streams stand still."""
        for stream in self._streams.values():
            stream.synchronize()

    def seconds(self, copy: _Events) -> float:
        """Return the seconds of a copy, by the device's clock."""
        begun, ended = copy
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3


class Cpu(Device):
    """A CPU and a memory node of Linux. Without a node ordinary memory plays both parts: times say nothing of a GPU.

    Args:
        node: number of the node whose memory is the slower one, such as CXL memory or another socket's.

    Raises:
        BadInputError: there is no such node with memory, or its pages do not stay there.
    """

    granularity_bytes = 64

    def __init__(self, node: int | None = None) -> None:
        self.torch = torch.device("cpu")
        self.generator_bytes = 2 * torch.get_rng_state().numel()  # The state before, and the one of the first run.
        self.name = "CPU, ordinary memory in the place of device memory"
        self._node = node
        self.tier_reality = "stand-in" if node is None else "real"
        self.uses_slow_memory = node is not None
        if node is not None:
            check_nodes(SystemMemory(), "offload: slow", [node])
            self.name = f"CPU, and memory node {node} in the place of the host's memory"

    @property
    def has_arenas(self) -> bool:
        """Whether there is a compiler for the allocator, and nobody else's is in its place."""
        return has_arenas()

    def host_bytes(self) -> int:
        """Return the memory of the node that is free; without a node, that of the system."""
        available = super().host_bytes()
        if self._node is None:
            return available
        return min(available, *(node.bindable_bytes for node in SystemMemory().nodes_named([self._node])))

    def host_pool(self, size_bytes: int) -> torch.Tensor:
        """Allocate memory of the node, and see to it that every page is there; or without a node ordinary memory."""
        if self._node is None:
            return super().host_pool(size_bytes)
        pool = NodePool(Tier.SLOW, size_bytes, [self._node], "transparent", SystemMemory())
        return torch.from_numpy(pool.view(0, (size_bytes,), np.uint8))

    def copies(self) -> ThreadCopies:
        """Return copies with a thread for each direction."""
        return ThreadCopies()

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """Return the seconds of the calls, by the processor's clock."""
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - begun

    def peak(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """Return the call's result and peak bytes by PyTorch's profiler; threads that it misses allocate nothing."""
        profiler = torch.autograd
        more = torch._C._profiler._ExperimentalConfig()  # noqa: SLF001
        config = profiler.ProfilerConfig(profiler.ProfilerState.CPU, False, True, False, False, False, more)
        profiler._enable_profiler_legacy(config)  # noqa: SLF001 - the public one takes milliseconds and writes to stderr
        try:
            result = call()
        finally:
            threads = profiler._disable_profiler_legacy()  # noqa: SLF001
        used = peak = 0
        for events in threads:
            for event in events:
                if event.kind() == "memory_alloc":
                    used += event.cpu_memory_usage()
                    peak = max(peak, used)
        return result, peak


@dataclass(eq=False)
class _ThreadCopy:
    size_bytes: int
    tensors: tuple[torch.Tensor, torch.Tensor] | None
    done: threading.Event = field(default_factory=threading.Event)
    begun_s: float = 0.0
    ended_s: float = 0.0
    error: BaseException | None = None


class ThreadCopies(Copies):
    """Copies on a CPU, by one thread for each direction. An operator holds the calling thread until it is done.

    Args:
        before_copy: called by the thread before each copy; tests put copies off with it.
    """

    def __init__(self, before_copy: Callable[[], None] | None = None) -> None:
        self._before_copy = before_copy
        self._queues = {tier: queue.SimpleQueue[_ThreadCopy | None]() for tier in Tier}
        self._under_way: set[_ThreadCopy] = set()
        self._threads = [
            threading.Thread(target=self._serve, args=(work,), name=f"autotm-to-{tier.name.lower()}", daemon=True)
            for tier, work in self._queues.items()
        ]
        for thread in self._threads:
            thread.start()

    def start(self, tier: Tier, destination: torch.Tensor, source: torch.Tensor) -> _ThreadCopy:
        """Hand the copy to the thread of its direction."""
        copy = _ThreadCopy(source.numel(), (destination, source))
        self._under_way.add(copy)
        self._queues[tier].put(copy)
        return copy

    def wait(self, copy: _ThreadCopy) -> None:
        """Hold the calling thread until the copy is complete."""
        copy.done.wait()
        self._under_way.discard(copy)
        if copy.error is not None:
            raise AutotmError(f"offload: a copy of {copy.size_bytes} bytes failed: {copy.error}") from copy.error

    def drain(self) -> None:
        """Hold the calling thread until no copy is under way; drop errors of copies, as nobody waits for them."""
        for copy in self._under_way:
            copy.done.wait()
        self._under_way.clear()

    def seconds(self, copy: _ThreadCopy) -> float:
        """Return the seconds of a copy, by the processor's clock."""
        return copy.ended_s - copy.begun_s

    def close(self) -> None:
        """End both threads, after the copies that they have queued."""
        for work in self._queues.values():
            work.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, work: queue.SimpleQueue[_ThreadCopy | None]) -> None:
        while (copy := work.get()) is not None:
            try:
                if self._before_copy is not None:
                    self._before_copy()
                copy.begun_s = time.perf_counter()
                assert copy.tensors is not None
                # One thread and no lock of Python's: PyTorch's own copy would take the cores that operators use.
                ctypes.memmove(*(tensor.data_ptr() for tensor in copy.tensors), copy.size_bytes)
            except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits for the copy
                copy.error = error
            copy.ended_s = time.perf_counter()
            copy.tensors = None  # What nobody else needs is freed before the copy is known to be complete.
            copy.done.set()


def device_of(device: torch.device, node: int | None = None) -> Device:
    """Return the device that a module is on; with `node`, a CPU whose slower memory is this node.

    Raises:
        BadInputError: it is neither a CPU nor a GPU of CUDA; or not a CPU though there is a node; or no such node.
    """
    if device.type == "cpu":
        return Cpu(node)
    if node is not None:
        raise BadInputError(f"offload: slow is memory node {node}, and the module is on '{device}'; give one on cpu")
    if device.type == "cuda":
        return Cuda(device)
    raise BadInputError(f"offload: the module is on '{device}'; give one on cuda, or on cpu to try it out")


# Copy times of a device, alone and while operators run, as the placement problem takes them.

_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
_REPEATS = 5
_SIDE = 512
"""Rows of the square matrices whose product is the operator that computes; the other operator reads as many bytes."""
_PRODUCTS = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT, OpClass.CONV_WEIGHT_GRADIENT, OpClass.MATMUL}


class _Timer:
    """A `CopyTimer` that times copies between `size_bytes` of the device's memory and as many of the host's."""

    def __init__(self, device: Device, copies: Copies, size_bytes: int) -> None:
        self._device, self._copies = device, copies
        self._here = torch.empty(size_bytes, dtype=torch.uint8, device=device.torch).zero_()
        self._there = device.host_pool(size_bytes).zero_()

    def alone_ns(self, tier: Tier, size_bytes: int) -> float:
        return self._finish_ns(self._start(tier, size_bytes))

    def blocking_ns(self, tier: Tier, size_bytes: int) -> float:
        return self._device.seconds(lambda: self._copies.wait(self._start(tier, size_bytes)), 1) * 1e9

    def kernels_ns(
        self, co_runner: Callable[[], object], calls: int, copy: tuple[Tier, int] | None = None
    ) -> tuple[float, float]:
        started = None if copy is None else self._start(*copy)
        kernels_ns = self._device.seconds(co_runner, calls) * 1e9
        return kernels_ns, 0.0 if started is None else self._finish_ns(started)

    def _start(self, tier: Tier, size_bytes: int) -> Any:
        here, there = self._here[:size_bytes], self._there[:size_bytes]
        return self._copies.start(tier, *((here, there) if tier is Tier.FAST else (there, here)))

    def _finish_ns(self, copy: Any) -> float:
        self._copies.wait(copy)
        return self._copies.seconds(copy) * 1e9


def measured_links(device: Device, budget_bytes: int) -> Links:
    """Time copies of the device, and how they and operators (a matrix product, or a sum for the rest) slow each other.

    Args:
        device: the device to time.
        budget_bytes: device memory that the step may use; copies take at most a quarter of it, or 64 KiB.
    """
    sizes = [size for size in _SIZES if size <= max(budget_bytes // 4, _SIZES[1])]
    one, other, result = (torch.ones(_SIDE, _SIDE, device=device.torch) for _ in range(3))
    multiply, add = partial(torch.mm, one, other, out=result), partial(torch.add, one, other, out=result)
    operators = {op_class: multiply if op_class in _PRODUCTS else add for op_class in OpClass}
    _, multiply_ns, *_ = device.median_ns(multiply, 0.02)
    copies = device.copies()
    try:
        timer = _Timer(device, copies, sizes[-1])
        return links_of(timer, 2.0 * _SIDE**3 / multiply_ns * 1e9, operators, sizes, _REPEATS)
    finally:
        copies.close()
