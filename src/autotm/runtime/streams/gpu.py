"""Programs and kernels on the GPU that a machine file names."""

from __future__ import annotations

from functools import partial
from typing import Any

from autotm.kernels.library import FatbinLibrary
from autotm.memory.gpu import CudaDevice, open_device, open_managed
from autotm.model.machine import Machine
from autotm.model.measurement import Links, Profile, Record, Timeline
from autotm.model.plan import Plan, Program
from autotm.model.step import Graph
from autotm.runtime.options import RunOptions
from autotm.runtime.streams.launching import LaunchedKernels
from autotm.runtime.streams.plain import plain_steps
from autotm.runtime.streams.run import run_on_device
from autotm.runtime.streams.timing import operand_bytes, profile_on


def run_on_gpu(
    graph: Graph,
    library: FatbinLibrary,
    program: Program,
    plan: Plan,
    machine: Machine,
    links: Links,
    profile: Profile,
    options: RunOptions,
) -> tuple[Record, Timeline]:
    """Verify and time a program, as `run_on_device`; managed memory is what the GPU's driver manages.

    Raises:
        as `run_on_device`; AutotmError, where the GPU is refused.
    """
    opened, managed = (partial(way, machine, built_for=library.architectures) for way in (open_device, open_managed))

    def launched(device: CudaDevice) -> LaunchedKernels:
        loaded = LaunchedKernels.on(device, library)
        device.keep_allowance()  # Not before: the kernels take device memory, too.
        return loaded

    return run_on_device(graph, launched, program, plan, machine, links, profile, options, opened, managed)


def plain_losses_on_gpu(graph: Graph, library: FatbinLibrary, machine: Machine, options: RunOptions) -> list[float]:
    """The losses of as many plain steps as are to be verified, with default implementations.

    Raises:
        as `plain_steps`; AutotmError, where the GPU is refused.
    """
    opened = partial(open_device, machine, built_for=library.architectures)
    launched = partial(LaunchedKernels.on, library=library)
    _, steps = plain_steps(graph, launched, machine, options.seed, options.verify_steps, opened)
    return [float(values.value("loss")) for values in steps]


def profile_on_gpu(
    graph: Graph, library: FatbinLibrary, machine: Machine, repeats: int, provenance: dict[str, Any]
) -> Profile:
    """Time each kernel of a graph in each of its implementations, as `profile_on`.

    Raises:
        AutotmError: the GPU is refused, or lacks the memory for the largest kernel.
    """
    with open_device(machine, operand_bytes(graph), 0, built_for=library.architectures) as device:
        return profile_on(device, LaunchedKernels.on(device, library), graph, repeats, provenance)
