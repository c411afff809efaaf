"""Stages on a GPU: CUDA kernels, its memories, and times from its streams."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotm.model.config import ProfileConfig, RunConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, require_writable, save
from autotm.model.graph import Graph, Role
from autotm.model.limit import Limit, counting, fixed_bytes
from autotm.model.links import Links
from autotm.model.machine import CudaTier, Machine, require_runnable
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.model.plan import SAVE_ON_CPU, Plan
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.provenance import provenance
from autotm.model.record import FrameworkRecord
from autotm.stages.context import Context, PlacementInputs

if TYPE_CHECKING:
    from autotm.memory.gpu.opening import GpuFacts
    from autotm.memory.torch_device import Device
    from autotm.zoo import Network


log = logging.getLogger(__name__)


def has_gpu(machine: Machine) -> bool:
    """Return whether a machine's fast memory is that of a real GPU."""
    return isinstance(machine.slow_tier, CudaTier)


def gpu_links(machine: Machine) -> Links:
    """Measure copies between device memory and pinned memory of the host, alone and during kernels.

    Raises:
        AutotmError: there is no such GPU, it is refused, or there is no nvcc.
    """
    from autotm.kernels.cuda.device import device_like
    from autotm.lower.cuda import co_runners_for_gpu
    from autotm.profile.copies import measure_gpu_links

    facts = _facts(machine)
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        device = device_like(facts.name, facts.capability)
        library, co_runners = co_runners_for_gpu(device, Path(folder) / "co_runners.zip", products=machine.products)
        return measure_gpu_links(machine, library, co_runners)


def compile_and_profile_on_gpu(
    machine: Machine, network: Network, config: ProfileConfig, came_from: Mapping[str, Any], paths: Paths
) -> Profile:
    """Write graph and library of a training step for the GPU, and time its kernels on it, each alone.

    Raises:
        AutotmError: there is no such GPU, it is refused, there is no nvcc, or an operator has no kernel.
    """
    from autotm.kernels.cuda.device import device_like
    from autotm.kernels.library import FatbinLibrary
    from autotm.lower.cuda import lower_for_gpu
    from autotm.runtime.streams.run import profile_on_gpu
    from autotm.zoo import with_values_stored

    network = with_values_stored(network, paths.values)
    facts = _facts(machine)
    device = device_like(facts.name, facts.capability)
    named = {**came_from, "gpu": facts.name}
    step = lower_for_gpu(
        network,
        paths.scale,
        device,
        paths.graph,
        paths.library,
        named,
        objects=paths.objects,
        implementations=config.implementations,
        products=machine.products,
    )
    return profile_on_gpu(step, FatbinLibrary.load(paths.library), machine, config.min_repeats, named)


def run_on_the_gpu(
    machine: Machine,
    config: RunConfig,
    seed: int,
    came_from: Mapping[str, Any],
    inputs: PlacementInputs,
    program: Program,
    plan: Plan,
    record: Path,
) -> None:
    """Verify and time a program; next to the record, write `timeline.json`, a step as the GPU's streams ran it.

    A program that exceeds its limit, as rivals may, does not run: its record says so, and it has no timeline.

    Raises:
        AutotmError: there is no such GPU, or it is refused.
        VerificationError: the program computes something else than the plain step.
    """
    from autotm.kernels.library import FatbinLibrary
    from autotm.runtime.record import unfit_record
    from autotm.runtime.step_times import RunOptions
    from autotm.runtime.streams.executor import open_machines_gpu
    from autotm.runtime.streams.run import run_on_device

    timeline_file = record.with_name("timeline.json")
    require_writable(record, timeline_file)
    facts, graph, copies, times = _facts(machine), inputs.lowered, inputs.copies, inputs.times
    named = {**came_from, "gpu": facts.name, "gpu_driver": facts.driver}
    if not program.fits:
        timeline_file.unlink(missing_ok=True)
        counted = inputs.step(plan.counts)
        save(record, "record", unfit_record(counted, program, plan, machine, copies, times, seed), named)
        log.info(
            "%s at %s does not fit: it takes %d bytes of device memory, %d are allowed; nothing ran",
            *(program.optimizer, program.limit, program.fast_bytes, program.dram_limit_bytes),
        )
        return
    options = RunOptions(**config.model_dump(), seed=seed)
    opened = partial(open_machines_gpu, machine, FatbinLibrary.load(inputs.paths.library))
    measured, timeline = run_on_device(graph, program, plan, machine, copies, times, options, opened)
    named |= {"tier_reality": measured.tier_reality, "gpu": timeline.device}
    save(timeline_file, "timeline", timeline, named)
    save(record, "record", measured, named)


def save_on_cpu_stage(
    context: Context, source: NetworkSource, limit: Limit, config: RunConfig, paths: Paths, device: Device | None = None
) -> None:
    """Train a step's network in PyTorch under `save_on_cpu`, compare it with the plain step, and time it.

    Where PyTorch is not installed, has no CUDA or cannot have the network, the record says so, and nothing runs.

    Args:
        context: with a machine that has a GPU.
        source: source of the network.
        limit: limit of device memory.
        config: options of verification and timing.
        paths: those of the same network's step; the record goes there.
        device: device of PyTorch used as the GPU; by default the machine's.

    Raises:
        AutotmError: there is no such GPU, or it is refused.
        VerificationError: PyTorch computes another loss than the plain step.
    """
    from autotm import zoo

    machine = context.machine.to_measure_on()
    require_runnable(machine, SAVE_ON_CPU)
    record = paths.framework(SAVE_ON_CPU, limit)
    require_writable(record)
    step, facts = load(paths.graph, "graph", Graph), _facts(machine)
    counted = counting(step, context.counts)
    known = FrameworkRecord(
        network=step.network,
        scale=step.scale,
        batch=step.batch,
        machine=machine.slug,
        threads=machine.threads,
        tier_reality=machine.tier_reality,
        optimizer=SAVE_ON_CPU,
        limit=limit,
        counts=str(context.counts),
        dram_limit_bytes=limit.fast_bytes(counted.peak_live_bytes, fixed_bytes(counted)),
        io_size=fixed_bytes(step),
        peak_live_bytes=counted.peak_live_bytes,
        seed=context.seed,
    )
    came_from = provenance(machine, context.seed, options=config.model_dump(), **source.provenance)
    network = zoo.build_from(source, context.seed)
    measured = _saved_on_cpu(machine, network, config, step, paths.library, known, device)
    if measured.left_out:
        log.warning("%s is left out of figure 12: %s", SAVE_ON_CPU, measured.left_out)
    named = {"tier_reality": measured.tier_reality, "gpu": facts.name, "gpu_driver": facts.driver}
    save(record, "framework_record", measured, came_from | named)


def _saved_on_cpu(
    machine: Machine,
    network: Network,
    config: RunConfig,
    step: Graph,
    library: Path,
    known: FrameworkRecord,
    device: Device | None,
) -> FrameworkRecord:
    from autotm.kernels.library import FatbinLibrary
    from autotm.runtime.arguments import initial_value
    from autotm.runtime.step_times import RunOptions
    from autotm.runtime.streams.run import plain_losses_on_gpu

    try:
        from autotm.runtime.streams.framework import NoFrameworkError, framework_device, run_save_on_cpu
        from autotm.zoo.torch_reference import require_pytorch_step
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return replace(known, left_out="PyTorch is not installed here")
    try:
        require_pytorch_step(network)
        runs_on = device or framework_device(machine)
    except (NoFrameworkError, BadInputError) as error:
        return replace(known, left_out=str(error))
    options = RunOptions(**config.model_dump(), seed=known.seed)
    kernels = FatbinLibrary.load(library)
    losses = plain_losses_on_gpu(step, kernels, machine, options) if options.verify_steps else []
    arguments = (tensor for tensor in step.tensors if tensor.role in {Role.INPUT, Role.PARAMETER})
    arrays = {tensor.name: initial_value(tensor, known.seed) for tensor in arguments}
    return run_save_on_cpu(network, arrays, machine, options, runs_on, losses, known)


def _facts(machine: Machine) -> GpuFacts:
    from autotm.memory.gpu.opening import visible_gpu

    assert isinstance(machine.slow_tier, CudaTier)
    return visible_gpu(machine.slow_tier.device_index)
