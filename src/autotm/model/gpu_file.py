"""The published facts of a GPU that is modelled (`config/devices/gpu/NAME.yaml`), each with its source."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from autotm.model.errors import validated
from autotm.model.files import read_yaml


class _Fact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(min_length=1, description="where the numbers are from")


class GpuMemory(_Fact):
    """A size."""

    size_bytes: float = Field(gt=0, description="of memory")


class GpuCompute(_Fact):
    """How fast it computes at best."""

    flop_per_s: float = Field(gt=0, description="floating-point operations of float32, flop/s")


class GpuBandwidth(_Fact):
    """How fast kernels use its memory at best."""

    bytes_per_s: float = Field(gt=0, description="read and written together, bytes/s")


class GpuLaunch(_Fact):
    """What a kernel takes beside its work."""

    kernel_us: float = Field(ge=0, description="from the end of one kernel to the start of the next, us")


class GpuLink(_Fact):
    """Copies between its memory and pinned memory of the host, one engine each way."""

    to_device_bytes_per_s: float = Field(gt=0, description="to the GPU, bytes/s")
    to_host_bytes_per_s: float = Field(gt=0, description="to the host, bytes/s")
    latency_us: float = Field(ge=0, description="of a copy of any size, us")


class GpuManagedMemory(_Fact):
    """Memory that the driver moves by page faults (cudaMallocManaged)."""

    faulted_bytes_per_s: float = Field(gt=0, description="to the GPU, while a kernel waits for faults, bytes/s")
    block_bytes: int = Field(gt=0, description="that the driver moves back to the host as a whole")


class GpuFile(BaseModel):
    """A GPU as its maker and others describe it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = Field(description="for people")
    memory: GpuMemory = Field(description="of the device")
    overhead: GpuMemory = Field(description="of it that is not there for tensors")
    compute: GpuCompute
    bandwidth: GpuBandwidth
    launch: GpuLaunch
    link: GpuLink
    managed: GpuManagedMemory


def load_gpu(devices_dir: Path, name: str) -> GpuFile:
    """Read `gpu/NAME.yaml` of the folder of device files.

    Raises:
        BadInputError: no such file, not YAML, an unknown key or a bad value.
    """
    path = devices_dir / "gpu" / f"{name}.yaml"
    return validated(GpuFile, read_yaml(path, "GPU"), path)
