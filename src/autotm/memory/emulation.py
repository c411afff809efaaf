"""The model of emulated memory: what slow operands and moves cost beyond what the same work in DRAM takes.

A kernel runs with every operand in DRAM and then waits for

    stretch x (sum over slow reads of bytes x e_read + sum over slow writes of bytes x e_write)

with e in ns/B per op class, fitted on kernels that were timed with real slow memory or derived from published
bandwidths (`docs/emulation.md`). Devices may add a latency for each slow operand, and let reads and writes overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotm.memory.device_file import Device, MoveBandwidth, load_device
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass, Tier
from autotm.model.links import Links
from autotm.model.machine import EmulatedTier, Machine


@dataclass(frozen=True, slots=True)
class Emulation:
    """A device as one process sees it.

    Attributes:
        device: the constants.
        stretch: factor on every delay; above 1 where the process gets only a share of the device.
        fast_bytes_per_s: of this machine's fast memory, as its copies were measured; None where they were not.
    """

    device: Device
    stretch: float
    fast_bytes_per_s: float | None = None

    @property
    def is_additive(self) -> bool:
        """Whether the delay of several slow operands is the sum of what each alone would cost."""
        return self.device.constants.mixed_overlap_fraction == 0

    def kernel_delay_ns(
        self,
        op_class: OpClass,
        slow_read_bytes: Sequence[int],
        slow_write_bytes: Sequence[int],
        *,
        first_touch: bool = False,
    ) -> int:
        """Nanoseconds that a kernel's slow operands add to its time with all operands in fast memory.

        Args:
            op_class: of the kernel.
            slow_read_bytes: size of each slow operand that it reads.
            slow_write_bytes: size of each slow operand that it writes; a workspace stands in both.
            first_touch: also charge the first touch of each written operand, as the recorded kernels paid it; a
                program's pools are touched before it runs.
        """
        constants = self.device.constants
        cost = constants.kernels[op_class]
        read_ns = sum(slow_read_bytes) * cost.read_ns_per_byte
        write_ns = sum(slow_write_bytes) * cost.write_ns_per_byte
        delay_ns = read_ns + write_ns - constants.mixed_overlap_fraction * min(read_ns, write_ns)
        delay_ns += sum(size > 0 for size in (*slow_read_bytes, *slow_write_bytes)) * constants.latency_ns
        if first_touch:
            delay_ns += len(slow_write_bytes) * constants.first_touch_ns
        return round(delay_ns * self.stretch)

    def fast_ns(self, size_bytes: int) -> int:
        """Nanoseconds in which this machine reads or writes as many bytes of fast memory; 0 if not measured."""
        return 0 if self.fast_bytes_per_s is None else round(size_bytes / self.fast_bytes_per_s * 1e9)

    def move_ns(self, destination: Tier, size_bytes: int) -> int:
        """Nanoseconds that a blocking copy of `size_bytes` to `destination` takes at least."""
        constants = self.device.constants
        return self._copy_ns(constants.moves, destination, size_bytes, constants.latency_ns)

    def asynchronous_move_ns(self, destination: Tier, size_bytes: int) -> int:
        """Nanoseconds for which a copy of `size_bytes` to `destination` beside kernels occupies its engine at least."""
        return self._copy_ns(self.device.constants.asynchronous_moves, destination, size_bytes)

    def _copy_ns(self, moves: MoveBandwidth, destination: Tier, size_bytes: int, latency_ns: float = 0.0) -> int:
        bandwidth = moves.to_fast_bytes_per_s if destination is Tier.FAST else moves.to_slow_bytes_per_s
        return round((latency_ns + size_bytes / bandwidth * 1e9) * self.stretch)


def emulation_stretch(device: Device, slow_tier: EmulatedTier, contraction_flop_per_s: float) -> float:
    """How much longer than on the original processor slow memory takes for this process.

    `balanced` keeps the ratio of compute to slow memory that the device's constants were measured with, so a process
    that computes faster than the original gets a stretch below 1; `whole` takes the constants as they are.

    Raises:
        BadInputError: the measured rate is not positive.
    """
    if slow_tier.share == "whole":
        return 1.0
    if not contraction_flop_per_s > 0:
        raise BadInputError(f"contraction rate: {contraction_flop_per_s} FLOP/s is not a rate; measure it again")
    return device.constants.contraction_flop_per_s / contraction_flop_per_s


def measured_stretch(machine: Machine, devices_dir: Path, contraction_flop_per_s: float) -> float:
    """As `emulation_stretch` for the device that the machine's slow memory is emulated after; 1 where it is none.

    Raises:
        BadInputError: as `emulation_stretch`, or a faulty device file.
    """
    tier = machine.slow_tier
    if not isinstance(tier, EmulatedTier):
        return 1.0
    return emulation_stretch(load_device(devices_dir, tier.device), tier, contraction_flop_per_s)


def stretch_of(slow_tier: EmulatedTier, links: Links | None) -> float:
    """The stretch that calibration stored; 1 for `whole`, which needs no calibration.

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
