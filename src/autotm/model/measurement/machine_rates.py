"""What a machine's cores and fast memory can do at best, as measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MachineRates:
    """Best measured rates of all of the machine's kernel threads together.

    Attributes:
        flop_per_s: multiply-adds in registers, two operations each.
        copy_bytes_per_s: copies within fast memory of buffers larger than caches: bytes read plus bytes written.
    """

    flop_per_s: float
    copy_bytes_per_s: float

    def __post_init__(self) -> None:
        if not min(self.flop_per_s, self.copy_bytes_per_s) > 0:
            raise ValueError(f"rates of a machine must be positive, got {self.flop_per_s}, {self.copy_bytes_per_s}")
