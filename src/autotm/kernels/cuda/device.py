"""Facts of a GPU that the cost rules use."""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from autotm.model.errors import BadInputError, unknown_name


@dataclass(frozen=True)
class CudaDevice:
    """Facts of one GPU model, from its data sheet and the CUDA C++ Programming Guide ("Compute Capabilities").

    Attributes:
        name: as NVIDIA calls it.
        arch: compute capability, as nvcc has it.
        multiprocessors: streaming multiprocessors (SMs).
        threads: most resident threads of a multiprocessor.
        registers: 32-bit registers of a multiprocessor.
        gflop_per_s: float32 rate without tensor cores, 10⁹/s.
        tensor_gflop_per_s: tf32 rate of tensor cores on dense matrices, 10⁹/s; that of bf16 is twice as high.
        gbyte_per_s: rate of device memory, 10⁹/s.
        shared_gbyte_per_s: rate of all shared memory: 128 bytes a clock of each multiprocessor, 10⁹/s.
    """

    name: str
    arch: str
    multiprocessors: int
    threads: int
    registers: int
    gflop_per_s: float
    tensor_gflop_per_s: float
    gbyte_per_s: float
    shared_gbyte_per_s: float

    @property
    def target(self) -> tvm.target.Target:
        """The target that TVM generates code for."""
        return tvm.target.Target(
            {
                "kind": "cuda",
                "arch": self.arch,
                "max_threads_per_block": 1024,
                "max_shared_memory_per_block": 48 << 10,  # What a block has without asking the driver for more.
                "thread_warp_size": WARP,
            }
        )


WARP = 32  # threads, on every GPU of NVIDIA

DEVICES = {
    "a100": CudaDevice("A100 SXM", "sm_80", 108, 2048, 65536, 19500, 156000, 2039, 19500),
    "h100": CudaDevice("H100 SXM", "sm_90", 132, 2048, 65536, 66900, 494700, 3350, 33500),
    "h200": CudaDevice("H200 SXM", "sm_90", 132, 2048, 65536, 66900, 494700, 4800, 33500),
}
"""Devices by short name; a fatbin holds code for all their architectures, tiles are those of one device."""


def device_named(name: str) -> CudaDevice:
    """Return one of `DEVICES`.

    Raises:
        BadInputError: there is no such device.
    """
    if name not in DEVICES:
        raise unknown_name("device", name, DEVICES)
    return DEVICES[name]


def device_like(name: str, capability: tuple[int, int]) -> CudaDevice:
    """Return the one of `DEVICES` whose tiles suit a GPU best: by its name, or else the first of its generation.

    Args:
        name: as the driver has it, such as `NVIDIA H200`.
        capability: compute capability, major and minor.

    Raises:
        BadInputError: no kernels are made for GPUs of that generation.
    """
    for short, device in DEVICES.items():
        if short in name.lower().split():
            return device
    for device in DEVICES.values():
        if device.arch.removeprefix("sm_").startswith(str(capability[0])):
            return device
    raise BadInputError(
        f"{name} has compute capability {capability[0]}.{capability[1]}; kernels are made for "
        f"{', '.join(sorted({device.arch for device in DEVICES.values()}))} and what runs their code. Take another GPU"
    )
