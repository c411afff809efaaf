"""What stages do on a machine with a GPU: its kernels are CUDA's, and memories and times those of its streams."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotm.model.files import load, require_writable, save
from autotm.model.machine import CudaTier, Machine
from autotm.model.measurement import Links, Profile, read_profile
from autotm.model.plan import Plan, Program
from autotm.model.step import Graph, counting
from autotm.model.study import ProfileConfig, RunConfig

if TYPE_CHECKING:
    from autotm.memory.gpu import GpuFacts
    from autotm.zoo import Network

log = logging.getLogger(__name__)


def has_gpu(machine: Machine) -> bool:
    """Whether a machine's fast memory is that of a GPU that is there."""
    return isinstance(machine.slow_tier, CudaTier)


def gpu_links(machine: Machine) -> Links:
    """Copies between device memory and pinned memory of the host, alone and beside kernels.

    Raises:
        AutotmError: there is no such GPU, it is refused, or there is no nvcc.
    """
    from autotm.kernels.cuda import device_like
    from autotm.lower import co_runners_for_gpu
    from autotm.profile.copies import measure_gpu_links

    facts = _facts(machine)
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        device = device_like(facts.name, facts.capability)
        library, beside = co_runners_for_gpu(device, Path(folder) / "co_runners.zip", products=machine.products)
        return measure_gpu_links(machine, library, beside)


def compile_and_profile_on_gpu(
    machine: Machine,
    network: Network,
    scale: str,
    config: ProfileConfig,
    came_from: Mapping[str, Any],
    *,
    objects: Path,
    graph: Path,
    library: Path,
) -> tuple[Graph, Profile]:
    """Write graph and library of a training step for the GPU, and time its kernels on it, each alone.

    With all implementations, those are asked for that NVIDIA's libraries have, where they are installed.

    Raises:
        AutotmError: there is no such GPU, it is refused, there is no nvcc, an operator has no kernel, or a library of
            NVIDIA's is installed and does not work.
    """
    from autotm.kernels.cuda import device_like
    from autotm.kernels.library import FatbinLibrary
    from autotm.kernels.vendor import Vendors
    from autotm.lower import lower_for_gpu
    from autotm.memory.gpu import open_device
    from autotm.runtime.streams import profile_on_gpu

    facts = _facts(machine)
    device = device_like(facts.name, facts.capability)
    named = {**came_from, "gpu": facts.name}
    ways = config.implementations, machine.products
    if config.implementations == "default":
        step = lower_for_gpu(network, scale, device, graph, library, came_from, objects, *ways)
    else:
        vendors = Vendors()
        # Libraries tell what they have for a GPU only while it is the current one.
        with open_device(machine, 0, 0):
            named |= {"vendor_libraries": vendors.installed()}
            step = lower_for_gpu(network, scale, device, graph, library, named, objects, *ways, offers=vendors.offers)
    return step, profile_on_gpu(step, FatbinLibrary.load(library), machine, config.min_repeats, named)


def run_on_the_gpu(
    machine: Machine,
    config: RunConfig,
    seed: int,
    came_from: Mapping[str, Any],
    *,
    graph: Graph,
    library: Path,
    program: Program,
    plan: Plan,
    profile: Path,
    links: Path,
    record: Path,
) -> None:
    """Verify and time a program; beside the record stands `timeline.json`, a step as the GPU's streams ran it.

    What exceeds its limit, as rivals may, does not run: its record says so, and there is no timeline.

    Raises:
        AutotmError: there is no such GPU, or it is refused.
        VerificationError: the program computes something else than the plain step.
    """
    from autotm.kernels.library import FatbinLibrary
    from autotm.runtime import RunOptions, unfit_record
    from autotm.runtime.streams import run_on_gpu

    timeline_file = record.with_name("timeline.json")
    require_writable(record, timeline_file)
    facts, copies, times = _facts(machine), load(links, "links", Links), read_profile(profile)
    named = {**came_from, "gpu": facts.name, "gpu_driver": facts.driver}
    if not program.fits:
        timeline_file.unlink(missing_ok=True)
        counted = counting(graph, plan.counts)
        save(record, "record", unfit_record(counted, program, plan, machine, copies, times, seed), named)
        log.info(
            "%s at %s does not fit: it takes %d bytes of device memory, %d are allowed; nothing ran",
            *(program.optimizer, program.limit, program.fast_bytes, program.dram_limit_bytes),
        )
        return
    options = RunOptions(**config.model_dump(), seed=seed)
    measured, timeline = run_on_gpu(graph, FatbinLibrary.load(library), program, plan, machine, copies, times, options)
    named |= {"tier_reality": measured.tier_reality, "gpu": timeline.device}
    save(timeline_file, "timeline", timeline, named)
    save(record, "record", measured, named)


def _facts(machine: Machine) -> GpuFacts:
    from autotm.memory.gpu import visible_gpu

    assert isinstance(machine.slow_tier, CudaTier)
    return visible_gpu(machine.slow_tier.device_index)
