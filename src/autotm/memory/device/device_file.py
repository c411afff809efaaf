"""What one kind of slow memory costs: the constants that emulated waits are computed from."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from autotm.model.step import OpClass

_Cost = Annotated[float, Field(ge=0)]
_Rate = Annotated[float, Field(gt=0)]


class Strict(BaseModel):
    """Part of a device file: no unknown keys, no numbers written as text."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class KernelCost(Strict):
    """What a byte of a kernel's slow operand adds to the kernel's time."""

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
