"""Stages that measure: copies between a machine's memories, and the kernels of a training step."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotm.model.config import ProfileConfig
from autotm.model.files import load, load_with_provenance, require_writable, save
from autotm.model.graph import Graph, schedules_in
from autotm.model.links import Links
from autotm.model.machine import ModelledTier, load_gpu
from autotm.model.network_source import NetworkSource
from autotm.model.paths import MachinePaths, Paths
from autotm.model.profile import COMPARED_WITH, Profile, read_profile, write_profile
from autotm.model.provenance import provenance
from autotm.stages.compare import NOTHING, compare_with_source
from autotm.stages.context import Context
from autotm.stages.gpu import compile_and_profile_on_gpu, gpu_links, has_gpu

if TYPE_CHECKING:
    from autotm.study.kernel_report import KernelReport
    from autotm.zoo import Network


def calibrate_stage(context: Context, patience_s: float, *, links: Path) -> None:
    """Measure copies between the tiers, the convolutions that emulated memory is balanced against, and the cores' best.

    What others disturb is measured again, for `patience_s` or three times as long as the rest takes. On a modelled
    machine nothing is measured: its links follow from the facts of its GPU. On a GPU copies are timed by events.
    """
    tier = context.machine.slow_tier
    if isinstance(tier, ModelledTier):
        from autotm.profile.modelled_gpu import modelled_links

        require_writable(links)
        measured = modelled_links(load_gpu(context.devices_dir, tier.device))
    else:
        context = context.to_measure(on_gpu=True)
        require_writable(links)
        measured = gpu_links(context.machine) if has_gpu(context.machine) else _cpu_links(context, patience_s)
    save(links, "links", measured, provenance(context.machine, context.seed))


def _cpu_links(context: Context, patience_s: float) -> Links:
    """Measure copies between memories of processors, alone and during kernels, and the rates of the cores."""
    from autotm.kernels.calibration_kernels import make_co_runners, make_rate_kernels
    from autotm.kernels.compute_rates import CalibrationKernels
    from autotm.kernels.library import KernelLibrary
    from autotm.kernels.target import machine_target
    from autotm.profile.copies import measure_links

    machine, target = context.machine, machine_target(context.machine)
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        path, other = Path(folder) / "rates.so", Path(folder) / "co_runners.so"
        known = make_rate_kernels(target, machine.threads, path)

        def load_kernels(flop_per_s: float) -> tuple[KernelLibrary, CalibrationKernels]:
            co_runners = make_co_runners(target, machine.threads, other, flop_per_s)
            return KernelLibrary.load(other), co_runners

        return measure_links(machine, context.devices_dir, KernelLibrary.load(path), known, load_kernels, patience_s)


def kernel_profile_stage(context: Context, source: NetworkSource, config: ProfileConfig, paths: Paths) -> None:
    """Compile the training step of a network, then time its kernels; reuse the entries of caches."""
    from autotm import zoo

    context = context.to_measure(on_gpu=True)
    copies = None if has_gpu(context.machine) else load(paths.links, "links", Links)
    require_writable(paths.store, paths.graph, paths.library, paths.profile)
    network = zoo.build_from(source, context.seed)
    came_from = provenance(context.machine, context.seed, **source.provenance)
    if copies is None:
        timed = compile_and_profile_on_gpu(context.machine, network, config, came_from, paths)
    else:
        files = {"graph": paths.graph, "library": paths.library}
        _, timed = compile_and_profile(context, network, paths.scale, config, copies, came_from, paths, **files)
    write_profile(paths.profile, timed)


def compile_and_profile(
    context: Context,
    network: Network,
    scale: str,
    config: ProfileConfig,
    links: Links,
    came_from: Mapping[str, Any],
    caches: MachinePaths,
    *,
    graph: Path,
    library: Path,
) -> tuple[Graph, Profile]:
    """Write graph and library of a training step, and time its kernels; return the lowered step and its profile.

    Values that came with the network are kept in a folder of the machine, where every step reads them.
    A network that came from a source with a step of its own is compared with it first (`compare_with_source`).
    Kernels are timed within the step (`autotm.profile.step_profile`).
    """
    from autotm.kernels.library import KernelLibrary
    from autotm.kernels.target import machine_target
    from autotm.lower.lowering import lower_network
    from autotm.profile.kernel_timing import ProfileOptions
    from autotm.profile.step_profile import profile_step
    from autotm.profile.store import KernelStore
    from autotm.zoo import with_values_stored

    machine = context.machine
    target = machine_target(machine)
    options = ProfileOptions(**config.timing, seed=context.seed)
    compared = compare_with_source(context, network, target, caches) if config.compare else NOTHING
    came_from = {**came_from, COMPARED_WITH: compared}
    with KernelStore(caches.store) as opened:
        step = lower_network(
            with_values_stored(network, caches.values),
            scale,
            target,
            machine.threads,
            graph,
            library,
            came_from,
            caches.objects,
            config.implementations,
        )
        timed = profile_step(
            step,
            context.counts,
            KernelLibrary.load(library),
            machine,
            links,
            opened,
            options,
            config.step_tolerance,
            context.devices_dir,
        )
    return step, replace(timed, provenance={**timed.provenance, COMPARED_WITH: compared})


def kernel_report_stage(paths: Paths) -> tuple[KernelReport, Mapping[str, Any]]:
    """Report where the time of a profiled step goes; return the report and the profile's provenance.

    Raises:
        DamagedFileError: a file cannot be read.
        AutotmError: the profile lacks a kernel.
    """
    from autotm.study.kernel_report import report_kernels

    step, came_from = load_with_provenance(paths.graph, "graph", Graph)
    timed, rates = read_profile(paths.profile), load(paths.links, "links", Links).rates
    return report_kernels(step, timed, rates, schedules_in(came_from)), timed.provenance


def timing_study_stage(context: Context, repeats: int, config: ProfileConfig, paths: Paths) -> None:
    """Time the kernels of a step one configuration at a time, many together, and alone."""
    from autotm.kernels.library import KernelLibrary
    from autotm.profile.kernel_timing import ProfileOptions
    from autotm.profile.timing_study import measure

    context = context.to_measure()
    came_from = provenance(context.machine, context.seed, repeats=repeats, options=config.timing)
    timing_study = measure(
        load(paths.graph, "graph", Graph),
        KernelLibrary.load(paths.library),
        context.machine,
        load(paths.links, "links", Links),
        ProfileOptions(**config.timing, seed=context.seed),
        repeats,
        context.devices_dir,
    )
    save(paths.timing_study, "timing_study", timing_study, came_from)
