"""A device whose constants are derived from published bandwidths and latencies (`docs/emulation.md` has the formulas).

Bandwidths count bytes over the memory's bus, and a plain store moves its cache line twice: in, because caches fetch
what they are about to overwrite, and out. So a kernel that reads R and writes W bytes moves R + W one way and W the
other, and three published points of the bandwidth suffice: reads only (W = 0), as much read as written (R = 0), and two
bytes read for each byte written (R = W).
"""

from __future__ import annotations

from pydantic import Field

from autotm.memory.device.device_file import DeviceFile, KernelCost, MoveBandwidth, Strict

_DIGITS = 4
_LINE_BYTES = 64


class _Sourced(Strict):
    """A number that somebody published."""

    source: str = Field(description="publication and place in it, or the formula and what it starts from")


class Rate(_Sourced):
    """A bandwidth with its source."""

    bytes_per_s: float = Field(gt=0, description="over the memory's bus, all cores of a socket together")


class Latency(_Sourced):
    """A latency with its source."""

    latency_ns: float = Field(gt=0, description="of a dependent load with nothing else under way")


class Contraction(_Sourced):
    """How fast the processor computes beside which the device is played, with its source."""

    flop_per_s: float = Field(gt=0, description="rate of its best convolutions")


class CopyingThread(_Sourced):
    """What one thread that copies can have under way, with its source."""

    lines_in_flight: int = Field(gt=0, description="cache lines of 64 bytes that it waits for at a time")


class FastMemory(Strict):
    """What is known of the memory that programs would rather use."""

    read: Rate = Field(description="reads only")
    read_twice_written: Rate = Field(description="two bytes read for each byte written")
    read_as_written: Rate = Field(description="as much read as written: what plain stores do")
    idle: Latency = Field(description="time to the first byte")


class SlowMemory(FastMemory):
    """What is known of the memory that is emulated."""

    written: Rate = Field(description="writes only, by streaming stores")


class PublishedDevice(Strict):
    """The other contents that config/devices/NAME.yaml may have: published numbers, each with its source."""

    description: str = Field(description="for people")
    hidden_as: str = Field(
        description="a device whose `kernels` were fitted: what share of slow memory's extra time kernels hide "
        "behind computing is taken from there"
    )
    contraction: Contraction = Field(description="of the processor")
    copying_thread: CopyingThread = Field(description="of copies beside kernels")
    fast: FastMemory = Field(description="the memory beside it, whose time is not extra")
    slow: SlowMemory = Field(description="the memory that is emulated")

    def constants(self, fitted: DeviceFile) -> DeviceFile:
        """The constants, with what kernels hide as `fitted` has it."""
        read_ns = max(0.0, _ns(1, self.slow.read) - _ns(1, self.fast.read))
        write_ns = max(0.0, _ns(2, self.slow.read_as_written) - _ns(2, self.fast.read_as_written))
        both_ns = max(0.0, _ns(3, self.slow.read_twice_written) - _ns(3, self.fast.read_twice_written))
        most_read = max(cost.read_ns_per_byte for cost in fitted.kernels.values())
        most_written = max(cost.write_ns_per_byte for cost in fitted.kernels.values())
        smaller_ns = min(read_ns, write_ns)
        overlap = (read_ns + write_ns - both_ns) / smaller_ns if smaller_ns else 0.0
        # One thread is bound by the lines that it can wait for (Little's law), and by what all threads get.
        thread = self.copying_thread.lines_in_flight * _LINE_BYTES / self.slow.idle.latency_ns * 1e9
        to_fast, to_slow = self.slow.read.bytes_per_s, self.slow.written.bytes_per_s
        return DeviceFile(
            description=self.description,
            source=f"derived from the published numbers in its file; what kernels hide as in {self.hidden_as}",
            moves=MoveBandwidth(to_fast_bytes_per_s=to_fast, to_slow_bytes_per_s=to_slow),
            asynchronous_moves=MoveBandwidth(
                to_fast_bytes_per_s=_rounded(min(thread, to_fast)), to_slow_bytes_per_s=_rounded(min(thread, to_slow))
            ),
            contraction_flop_per_s=self.contraction.flop_per_s,
            latency_ns=_rounded(max(0.0, self.slow.idle.latency_ns - self.fast.idle.latency_ns)),
            mixed_overlap_fraction=_rounded(min(1.0, max(-1.0, overlap))),
            kernels={
                op_class: KernelCost(
                    read_ns_per_byte=_rounded(read_ns * cost.read_ns_per_byte / most_read),
                    write_ns_per_byte=_rounded(write_ns * cost.write_ns_per_byte / most_written),
                )
                for op_class, cost in fitted.kernels.items()
            },
        )


def _ns(size_bytes: int, rate: Rate) -> float:
    return size_bytes / rate.bytes_per_s * 1e9


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")
