"""What was measured of one model with control flow, in several systems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

WITH_CONTROL_FLOW = "with control flow"
RESOLVED = "resolved"
ALL_BLOCKS = "all blocks"
VARIANTS = (WITH_CONTROL_FLOW, RESOLVED, ALL_BLOCKS)
"""The model itself; the operators that it computes for these inputs, without control flow; every block of a network
whose branches skip some, without control flow."""
BRANCHING = ("blockdrop", "skipnet")
"""Models whose branches skip blocks; they have all three variants."""
SYSTEMS = ("torch", "torch.compile", "torchscript", "onnxruntime", "jax", "tvm-py", "tvm-vm", "tvm-fused")
"""PyTorch with Python's control flow; its pieces through `torch.compile`; TorchScript; ONNX Runtime with `Loop` and
`If`; JAX with `lax`; autotm's kernels in pieces that Python calls, in TVM's virtual machine, and in one function."""
GPU_SYSTEMS = ("cuda-host", "cuda-persistent", "cuda-graph")
"""One function for a GPU: its loops and branches on the host, within one kernel whose blocks stay until it ends, or
none left, as its launches are captured in a graph."""


@dataclass(frozen=True)
class SystemTimes:
    """Times of one system in one variant, measured in turn with those of the others.

    Attributes:
        system: one of `SYSTEMS` or `GPU_SYSTEMS`.
        variant: one of `VARIANTS`.
        batch: samples.
        sizes: of the model.
        threads: of the system.
        rewrites: of the program before `tvm-fused` lowers it; empty elsewhere.
        failure: why there are no times; empty if there are.
        build_s: seconds until it could be called first, imports left out; None if it failed.
        error: by how much its results are off those of PyTorch in float64 at most, over the largest of these.
        times_ms: of a call, one for each round.
        kernel_ms: time of a call within kernels, from a run of its own; None if the system does not tell.
    """

    system: str
    variant: str
    batch: int
    sizes: dict[str, Any]
    threads: int
    rewrites: dict[str, Any]
    failure: str = ""
    build_s: float | None = None
    error: float | None = None
    times_ms: tuple[float, ...] = ()
    kernel_ms: float | None = None

    @property
    def median_ms(self) -> float | None:
        """Median of the rounds."""
        return float(np.median(self.times_ms)) if self.times_ms else None


@dataclass(frozen=True)
class ControlStudy:
    """A model in several systems, which took turns.

    Attributes:
        model: its name.
        versions: of the packages that the systems are.
        times: of every system, variant and size.
    """

    model: str
    versions: dict[str, str]
    times: tuple[SystemTimes, ...]
