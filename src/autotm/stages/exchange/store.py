"""The stages around the kernel store: searching schedules, what it has of a step, exchange with other machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from autotm.model.files import require_writable, save
from autotm.model.machine import provenance
from autotm.model.measurement import read_profile
from autotm.model.step import NetworkSource
from autotm.model.study import ProfileConfig, TuneConfig
from autotm.stages.context import Context

if TYPE_CHECKING:
    from autotm.profile.store import Merged
    from autotm.profile.tuning import Coverage


def tune_stage(
    context: Context,
    network: NetworkSource,
    scale: str,
    config: TuneConfig,
    timing: ProfileConfig,
    *,
    store: Path,
    report: Path,
    kernels: str = "*",
) -> None:
    """Search better schedules for the kernels of `network` whose operation matches `kernels`, and report."""
    from autotm import zoo
    from autotm.kernels.code import machine_target
    from autotm.kernels.making import require_packages
    from autotm.lower import scheduled_step
    from autotm.profile.store import KernelStore
    from autotm.profile.timing import ProfileOptions
    from autotm.profile.tuning import TuneOptions, tune_kernels

    require_packages()
    machine = context.to_measure().machine
    require_writable(store, report)
    came_from = provenance(machine, context.seed, **network.provenance, options=config.model_dump(), kernels=kernels)
    target = machine_target(machine)
    step = scheduled_step(zoo.build_from(network, context.seed), scale, target, machine.threads)
    options = TuneOptions(**config.model_dump(), kernels=kernels)
    with KernelStore(store) as opened:
        measured = ProfileOptions(**timing.timing, seed=context.seed)
        found = tune_kernels(step, target, machine, opened.schedules, options, measured)
    save(report, "tuning", found, came_from)


def coverage_stage(
    context: Context, network: NetworkSource, scale: str, min_gain: float, *, store: Path, profile: Path
) -> tuple[Coverage, ...]:
    """Which kernels of `network` have a timing in the store or, if there is one, the profile, or a tuned schedule."""
    from autotm import zoo
    from autotm.kernels.code import machine_target
    from autotm.lower import scheduled_step
    from autotm.profile.store import KernelStore
    from autotm.profile.tuning import coverage

    context = context.to_measure()  # Timings are of certain cores, code is for this processor.
    target = machine_target(context.machine)
    step = scheduled_step(zoo.build_from(network, context.seed), scale, target, context.machine.threads)
    timed = read_profile(profile) if profile.exists() else None
    with KernelStore(store) as opened:
        return coverage(step, target, context.machine, opened, min_gain, timed)


def export_store_stage(context: Context, *, store: Path, file: Path) -> Mapping[str, int]:
    """Write the kernel store's entries into one file; returns how many of each kind."""
    from autotm.profile.store import KernelStore, export_store

    with KernelStore(store) as opened:
        return export_store(opened, file, provenance(context.machine, context.seed))


def import_store_stage(*, store: Path, file: Path) -> Merged:
    """Merge a file that `export_store_stage` wrote into the kernel store."""
    from autotm.profile.store import KernelStore, import_store

    require_writable(store)
    with KernelStore(store) as opened:
        return import_store(opened, file)
