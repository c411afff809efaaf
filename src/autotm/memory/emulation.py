"""Emulated slow memory: device files, and what slow operands and moves cost beyond what the same work in DRAM takes.

A kernel runs with every operand in DRAM and then waits for

    stretch x (sum over slow reads of bytes x e_read + sum over slow writes of bytes x e_write)

with e in ns/B per op class, fitted on kernels that were timed with real slow memory or derived from published
bandwidths (`docs/emulation.md`). Devices may add a latency for each slow operand, and let reads and writes overlap.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from autotm.model.errors import BadInputError, validated
from autotm.model.files import read_yaml
from autotm.model.graph import OpClass, Tier
from autotm.model.links import Links
from autotm.model.machine import EmulatedTier, Machine

# What one kind of slow memory costs: the constants that emulated waits are computed from.

_Cost = Annotated[float, Field(ge=0)]
_Rate = Annotated[float, Field(gt=0)]


class Strict(BaseModel):
    """Part of a device file: no unknown keys, no numbers written as text."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class KernelCost(Strict):
    """Time that each byte of a slow operand adds to a kernel's time."""

    read_ns_per_byte: _Cost = Field(description="of what the kernel reads")
    write_ns_per_byte: _Cost = Field(description="of what it writes; a workspace is written and read")


class MoveBandwidth(Strict):
    """Bandwidth of a copy, by destination."""

    to_fast_bytes_per_s: _Rate = Field(description="from slow to fast memory")
    to_slow_bytes_per_s: _Rate = Field(description="from fast to slow memory")


class DeviceFile(Strict):
    """The contents of config/devices/NAME.yaml (`docs/emulation.md` explains the model)."""

    description: str = Field(description="for people")
    source: str = Field(description="where the constants were measured, and how they were derived")
    moves: MoveBandwidth = Field(description="of copies that the step waits for, with all threads")
    asynchronous_moves: MoveBandwidth = Field(description="of copies beside kernels, with one thread per direction")
    contraction_flop_per_s: _Rate = Field(
        description="rate of the best convolutions of the processor that the constants were measured beside"
    )
    first_touch_ns: _Cost = Field(
        0.0,
        description="what the recording adds to a kernel for each slow operand it writes, because its time includes "
        "the first touch of that memory; part of the comparison with the recording, never waited for",
    )
    latency_ns: _Cost = Field(
        0.0,
        description="what the first byte of slow memory takes longer than of fast memory: waited for once for each "
        "slow operand that a kernel reads and each that it writes, and once for a move; 0 where `kernels` were fitted, "
        "which contain it",
    )
    mixed_overlap_fraction: float = Field(
        0.0,
        ge=-1,
        le=1,
        description="of a kernel that reads and writes slow operands: the share of the smaller of both extras that the "
        "larger one hides, as a link with a lane for each direction does; negative where mixed traffic costs more than "
        "the sum, 0 where `kernels` were fitted, which contain it on average",
    )
    kernels: dict[Annotated[OpClass, Field(strict=False)], KernelCost] = Field(
        description="by what a kernel does to memory; every class needs its constants"
    )

    @model_validator(mode="after")
    def _every_op_class(self) -> Self:
        if missing := [op_class.value for op_class in OpClass if op_class not in self.kernels]:
            raise ValueError(f"kernels lacks {', '.join(missing)}; every op class needs its constants")
        return self


# A device whose constants are derived from published bandwidths and latencies (`docs/emulation.md` has the formulas).
#
# Bandwidths count bytes over the memory's bus, and a plain store moves its cache line twice: in, because caches fetch
# what they are about to overwrite, and out. So a kernel that reads R and writes W bytes moves R + W one way and W the
# other, and three published points of the bandwidth suffice: reads only (W = 0), as much read as written (R = 0), and
# two bytes read for each byte written (R = W).

_DIGITS = 4  # significant ones: more than measurements have
_LINE_BYTES = 64  # a cache line


class _Published(Strict):
    """A published number with its source."""

    source: str = Field(description="publication and place in it, or the formula and what it starts from")


class Rate(_Published):
    """A bandwidth with its source."""

    bytes_per_s: float = Field(gt=0, description="over the memory's bus, all cores of a socket together")


class Latency(_Published):
    """A latency with its source."""

    latency_ns: float = Field(gt=0, description="of a dependent load with nothing else under way")


class Contraction(_Published):
    """How fast the processor computes with which the device is emulated, with its source."""

    flop_per_s: float = Field(gt=0, description="rate of its best convolutions")


class CopyingThread(_Published):
    """Cache lines that one copying thread can have in flight, with the source of the number."""

    lines_in_flight: int = Field(gt=0, description="cache lines of 64 bytes that it waits for at a time")


class FastMemory(Strict):
    """Published rates and latency of the memory that programs would rather use."""

    read: Rate = Field(description="reads only")
    read_twice_written: Rate = Field(description="two bytes read for each byte written")
    read_as_written: Rate = Field(description="as much read as written: what plain stores do")
    idle: Latency = Field(description="time to the first byte")


class SlowMemory(FastMemory):
    """Published rates and latency of the memory that is emulated."""

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
        """Return the constants, with the shares that kernels hide taken from `fitted`."""
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


def load_device(devices_dir: Path, name: str) -> DeviceFile:
    """Read `devices_dir`/`name`.yaml; of published numbers, the constants derived from them.

    Raises:
        BadInputError: no such device, an unknown key, a bad or missing value; names file, key and value.
    """
    contents = _contents(devices_dir, name)
    if isinstance(contents, DeviceFile):
        return contents
    fitted = _contents(devices_dir, contents.hidden_as)
    if not isinstance(fitted, DeviceFile):
        path = devices_dir / f"{name}.yaml"
        raise BadInputError(f"{path}: hidden_as: {contents.hidden_as} was not fitted; name a device that has `kernels`")
    return contents.constants(fitted)


def _contents(devices_dir: Path, name: str) -> DeviceFile | PublishedDevice:
    path = devices_dir / f"{name}.yaml"
    document = read_yaml(path, "device")
    is_published = isinstance(document, dict) and "hidden_as" in document
    return validated(PublishedDevice if is_published else DeviceFile, document, path)


# Waits computed from these constants.


@dataclass(frozen=True, slots=True)
class Emulation:
    """A device as one process sees it.

    Attributes:
        device: the constants.
        stretch: factor on every delay; above 1 where the process gets only a share of the device.
        fast_bytes_per_s: of this machine's fast memory, as its copies were measured; None where they were not.
    """

    device: DeviceFile
    stretch: float
    fast_bytes_per_s: float | None = None

    def kernel_delay_ns(
        self,
        op_class: OpClass,
        slow_read_bytes: Sequence[int],
        slow_write_bytes: Sequence[int],
        *,
        first_touch: bool = False,
    ) -> int:
        """Return the nanoseconds that a kernel's slow operands add to its time with all operands in fast memory.

        Args:
            op_class: of the kernel.
            slow_read_bytes: size of each slow operand that it reads.
            slow_write_bytes: size of each slow operand that it writes; a workspace stands in both.
            first_touch: also charge the first touch of each written operand, as the recorded kernels paid it; a
                program's pools are touched before it runs.
        """
        device, cost = self.device, self.device.kernels[op_class]
        read_ns = sum(slow_read_bytes) * cost.read_ns_per_byte
        write_ns = sum(slow_write_bytes) * cost.write_ns_per_byte
        delay_ns = read_ns + write_ns - device.mixed_overlap_fraction * min(read_ns, write_ns)
        delay_ns += sum(size > 0 for size in (*slow_read_bytes, *slow_write_bytes)) * device.latency_ns
        if first_touch:
            delay_ns += len(slow_write_bytes) * device.first_touch_ns
        return round(delay_ns * self.stretch)

    def move_ns(self, destination: Tier, size_bytes: int) -> int:
        """Return the nanoseconds that a blocking copy of `size_bytes` to `destination` takes at least."""
        return self._copy_ns(self.device.moves, destination, size_bytes, self.device.latency_ns)

    def asynchronous_move_ns(self, destination: Tier, size_bytes: int) -> int:
        """Return the least nanoseconds a copy of `size_bytes` to `destination` during kernels occupies its engine."""
        return self._copy_ns(self.device.asynchronous_moves, destination, size_bytes)

    def _copy_ns(self, moves: MoveBandwidth, destination: Tier, size_bytes: int, latency_ns: float = 0.0) -> int:
        bandwidth = moves.to_fast_bytes_per_s if destination is Tier.FAST else moves.to_slow_bytes_per_s
        return round((latency_ns + size_bytes / bandwidth * 1e9) * self.stretch)


def measured_stretch(machine: Machine, devices_dir: Path, contraction_flop_per_s: float) -> float:
    """Return how much longer than beside the original processor the emulated slow memory takes for this process.

    `balanced` keeps the ratio of compute to slow memory that the device's constants were measured with, so a process
    that computes faster than the original gets a stretch below 1; `whole` takes the constants as they are. 1 where
    slow memory is not emulated.

    Raises:
        BadInputError: the device file is faulty.
    """
    tier = machine.slow_tier
    if not isinstance(tier, EmulatedTier) or tier.share == "whole":
        return 1.0
    return load_device(devices_dir, tier.device).contraction_flop_per_s / contraction_flop_per_s


def stretch_of(slow_tier: EmulatedTier, links: Links | None) -> float:
    """Return the stretch that calibration stored; 1 for `whole`, which needs no calibration.

    Raises:
        BadInputError: `balanced` without calibration results.
    """
    if links is not None:
        return links.emulation_stretch
    if slow_tier.share == "whole":
        return 1.0
    raise BadInputError(
        f"slow tier '{slow_tier.device}' with share 'balanced' needs links.json: "
        "run the rule calibrate, or set share: whole in the machine file"
    )


_LAST_NS = 20_000
"""The last stretch of a wait holds the interpreter, for precision."""


def wait_until(deadline_ns: int) -> None:
    """Busy-wait until `perf_counter_ns` reaches `deadline_ns`; returns at once when it has passed.

    Copies beside kernels go on meanwhile: a loop keeps the interpreter for 5 ms, a system call lets go of it. This one
    returns at once; sleeping for no time takes 50 us, and yielding gives the core to other processes too.
    """
    while perf_counter_ns() < deadline_ns - _LAST_NS:
        select.select((), (), (), 0)
    while perf_counter_ns() < deadline_ns:
        pass
