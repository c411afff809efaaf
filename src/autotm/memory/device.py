"""A device file: what one kind of slow memory costs, each constant with its source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotm.model.files import BadInputError, explain, unknown_name
from autotm.model.step import OpClass

_Cost = Annotated[float, Field(ge=0)]
_Rate = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class KernelCost(_Strict):
    """What a byte of a kernel's slow operand adds to the kernel's time."""

    read_ns_per_byte: _Cost = Field(description="of what the kernel reads")
    write_ns_per_byte: _Cost = Field(description="of what it writes; a workspace is written and read")


class MoveBandwidth(_Strict):
    """Bandwidth of a copy, by destination."""

    to_fast_bytes_per_s: _Rate = Field(description="from slow to fast memory")
    to_slow_bytes_per_s: _Rate = Field(description="from fast to slow memory")


class DeviceFile(_Strict):
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
    kernels: dict[Annotated[OpClass, Field(strict=False)], KernelCost] = Field(
        description="by what a kernel does to memory; every class needs its constants"
    )

    @model_validator(mode="after")
    def _every_op_class(self) -> Self:
        if missing := [op_class.value for op_class in OpClass if op_class not in self.kernels]:
            raise ValueError(f"kernels lacks {', '.join(missing)}; every op class needs its constants")
        return self


@dataclass(frozen=True, slots=True)
class Device:
    """A device file that was read, with its name."""

    name: str
    constants: DeviceFile


def load_device(devices_dir: Path, name: str) -> Device:
    """Read `devices_dir`/`name`.yaml.

    Raises:
        BadInputError: no such device, an unknown key, a bad or missing value; names file, key and value.
    """
    path = devices_dir / f"{name}.yaml"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = [file.stem for file in devices_dir.glob("*.yaml")]
        raise BadInputError(f"{path}: {unknown_name('device', name, known)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: not valid YAML: {error}") from None
    try:
        return Device(name, DeviceFile.model_validate(document))
    except ValidationError as error:
        raise BadInputError(explain(path, error, DeviceFile)) from None
