"""A GPU of NVIDIA's: copies on streams, ordered by events; the host waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autotm.memory.torch.timing import require_host_memory
from autotm.model.files import AutotmError


class Cuda:
    """A GPU of NVIDIA's."""

    granularity_bytes = 512

    def __init__(self, device: torch.device) -> None:
        self.torch = device
        self.name = torch.cuda.get_device_name(device)

    def copies(self) -> CudaCopies:
        """A stream a direction."""
        return CudaCopies(self.torch)

    def host_pool(self, size_bytes: int) -> torch.Tensor:
        """Pinned memory, once: pinning takes milliseconds and holds up the device."""
        require_host_memory(size_bytes)
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:
            raise AutotmError(
                f"offload: the system does not pin {size_bytes} bytes of host memory: {error}; raise `ulimit -l`, or "
                "give a larger budget"
            ) from error

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """By events of the device."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(self.torch)
        start.record(stream)
        for _ in range(calls):
            call()
        end.record(stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def peak(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """As PyTorch's allocator counts."""
        torch.cuda.synchronize(self.torch)
        torch.cuda.reset_peak_memory_stats(self.torch)
        before = torch.cuda.memory_allocated(self.torch)
        found = call()
        torch.cuda.synchronize(self.torch)
        return found, torch.cuda.max_memory_allocated(self.torch) - before


@dataclass(frozen=True)
class _Copy:
    begun: torch.cuda.Event
    ended: torch.cuda.Event


class CudaCopies:
    """As `copies.Copies`. The stream that is current when a copy is started or waited for is that of the operators.

    Memory goes back to PyTorch's allocator on that stream, after it has waited for the copies that use it, so that it
    may be used again at once: `record_stream` is not needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._inward, self._outward = (torch.cuda.Stream(device) for _ in range(2))

    def start_inward(self, destination: torch.Tensor, source: torch.Tensor) -> _Copy:
        """Queue the copy to the device."""
        return self._start(self._inward, destination, source)

    def start_outward(self, destination: torch.Tensor, source: torch.Tensor) -> _Copy:
        """Queue the copy to the host."""
        return self._start(self._outward, destination, source)

    def wait(self, copy: _Copy) -> None:
        """Make the operators' stream wait."""
        torch.cuda.current_stream(self._device).wait_event(copy.ended)

    def drain(self) -> None:
        """Hold the calling thread until both streams stand still."""
        self._inward.synchronize()
        self._outward.synchronize()

    def seconds(self, copy: _Copy) -> float:
        """By the device's clock."""
        copy.ended.synchronize()
        return float(copy.begun.elapsed_time(copy.ended)) / 1e3

    def close(self) -> None:
        """Wait for what is queued."""
        self.drain()

    def _start(self, stream: torch.cuda.Stream, destination: torch.Tensor, source: torch.Tensor) -> _Copy:
        copy = _Copy(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            copy.begun.record(stream)
            destination.copy_(source, non_blocking=True)
            copy.ended.record(stream)
        return copy
