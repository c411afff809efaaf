"""The pipeline's stages: each reads files, asks the packages, and writes its files whole, saying where they come from.

Snakemake's scripts and the commands call these; nothing else decides how files and packages meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotm.check import check_plan, check_program
from autotm.model.files import hash_of, load, save
from autotm.model.machine import Machine, Watch, provenance
from autotm.model.measurement import Links, Profile, read_profile, write_profile
from autotm.model.plan import Plan, Program
from autotm.model.step import Counts, Graph, NetworkSource, counting
from autotm.model.study import ProfileConfig, RunConfig, TuneConfig

if TYPE_CHECKING:
    from autotm.profile.coverage import Coverage
    from autotm.profile.exchange import Counts
    from autotm.zoo import Network


@dataclass(frozen=True)
class Context:
    """Where and with which randomness a stage runs, and what limits count."""

    machine: Machine
    devices_dir: Path
    seed: int
    counts: Counts = Counts.INTERMEDIATES


def calibrate_stage(context: Context, patience_s: float, *, links: Path) -> None:
    """Measure copies between the tiers, and the rate of convolutions that emulated memory is balanced against.

    What others disturb is measured again, for `patience_s` or three times as long as the rest takes.
    """
    from autotm.kernels.code import machine_target
    from autotm.kernels.making import contraction_flop_per_s, neighbours
    from autotm.memory.calibration import calibrate_links

    came_from = provenance(context.machine, context.seed)
    watch = Watch(context.machine.cpus, patience_s)
    rate = contraction_flop_per_s(context.machine, machine_target(context.machine), watch)
    with neighbours(context.machine, machine_target(context.machine)) as kernels:
        measured = calibrate_links(context.machine, context.devices_dir, rate, kernels, watch)
    save(links, "links", measured, came_from)


def kernel_profile_stage(
    context: Context,
    network: NetworkSource,
    scale: str,
    config: ProfileConfig,
    min_gain: float,
    *,
    links: Path,
    store: Path,
    objects: Path,
    graph: Path,
    library: Path,
    profile: Path,
) -> None:
    """Compile the training step of `network`, then time its kernels; what the caches hold is not done again."""
    from autotm import zoo

    built = zoo.build_from(network)
    came_from = provenance(context.machine, context.seed, **network.provenance)
    places = {"store": store, "objects": objects, "graph": graph, "library": library}
    copies = load(links, "links", Links)
    _, timed = compile_and_profile(context, built, scale, config, min_gain, copies, came_from, **places)
    write_profile(profile, timed)


def compile_and_profile(
    context: Context,
    network: Network,
    scale: str,
    config: ProfileConfig,
    min_gain: float,
    links: Links,
    came_from: Mapping[str, Any],
    *,
    store: Path,
    objects: Path,
    graph: Path,
    library: Path,
) -> tuple[Graph, Profile]:
    """Write graph and library of a training step, and time its kernels; gives the step as lowered, and their times.

    They are timed within the step (`step_profile.py`). Tuned schedules in the store are taken where ours was
    measured to take longer by more than `min_gain`.
    """
    from autotm.kernels.code import machine_target
    from autotm.kernels.library import KernelLibrary
    from autotm.lower.lower import lower_network
    from autotm.profile.options import ProfileOptions
    from autotm.profile.schedule_table import Where
    from autotm.profile.store import KernelStore
    from autotm.step_profile import profile_step

    machine = context.machine
    target = machine_target(machine)
    options = ProfileOptions(**config.timing, seed=context.seed)
    with KernelStore(store) as opened:
        tuned = opened.schedules.usable(Where.of(machine, target), min_gain)
        step = lower_network(
            network,
            scale,
            target,
            machine.threads,
            graph,
            library,
            came_from,
            objects,
            tuned,
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
    return step, timed


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
    from autotm.lower.lower import scheduled_step
    from autotm.profile.options import ProfileOptions
    from autotm.profile.store import KernelStore
    from autotm.profile.tuner import TuneOptions, tune_kernels

    require_packages()
    machine = context.machine
    came_from = provenance(machine, context.seed, **network.provenance, options=config.model_dump(), kernels=kernels)
    target = machine_target(machine)
    step = scheduled_step(zoo.build_from(network), scale, target, machine.threads)
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
    from autotm.lower.lower import scheduled_step
    from autotm.profile.coverage import coverage
    from autotm.profile.store import KernelStore

    target = machine_target(context.machine)
    step = scheduled_step(zoo.build_from(network), scale, target, context.machine.threads)
    timed = read_profile(profile) if profile.exists() else None
    with KernelStore(store) as opened:
        return coverage(step, target, context.machine, opened, min_gain, timed)


def export_stage(context: Context, *, store: Path, file: Path) -> Mapping[str, int]:
    """Write the kernel store's entries into one file; returns how many of each kind."""
    from autotm.profile.exchange import export_store
    from autotm.profile.store import KernelStore

    with KernelStore(store) as opened:
        return export_store(opened, file, provenance(context.machine, context.seed))


def import_stage(*, store: Path, file: Path) -> Counts:
    """Merge a file that `export_stage` wrote into the kernel store."""
    from autotm.profile.exchange import import_store
    from autotm.profile.store import KernelStore

    with KernelStore(store) as opened:
        return import_store(opened, file)


def compile_stage(context: Context, *, graph: Path, profile: Path, links: Path, plan: Path, program: Path) -> None:
    """Give every stay an address and write the steps; plan and program are checked, whoever made the plan."""
    from autotm.layout import compile_program, pack

    came_from = provenance(context.machine, context.seed, plan_file=str(plan))
    placed = load(plan, "plan", Plan)
    step = counting(load(graph, "graph", Graph), placed.counts)
    check_plan(step, read_profile(profile), load(links, "links", Links), placed)
    compiled = compile_program(step, placed, pack(step, placed))
    check_program(step, placed, compiled)
    save(program, "program", compiled, came_from)


def check_stage(*, graph: Path, profile: Path, links: Path, plan: Path, program: Path) -> None:
    """Raise unless plan and program are legal.

    Raises:
        IllegalPlanError: names the rule that is broken, and where.
    """
    placed = load(plan, "plan", Plan)
    step = counting(load(graph, "graph", Graph), placed.counts)
    check_plan(step, read_profile(profile), load(links, "links", Links), placed)
    check_program(step, placed, load(program, "program", Program))


def run_stage(
    context: Context,
    config: RunConfig,
    *,
    graph: Path,
    library: Path,
    program: Path,
    plan: Path,
    profile: Path,
    links: Path,
    reference: Path,
    record: Path,
) -> None:
    """Check the program once more, verify its results against the plain step, time it, and write the record."""
    from autotm.kernels.library import KernelLibrary
    from autotm.runtime.options import RunOptions
    from autotm.runtime.run import run

    came_from = provenance(context.machine, context.seed, options=config.model_dump())
    step, placed = load(graph, "graph", Graph), load(plan, "plan", Plan)
    compiled = load(program, "program", Program)
    check_program(counting(step, placed.counts), placed, compiled)
    measured = run(
        step,
        KernelLibrary.load(library),
        compiled,
        placed,
        context.machine,
        load(links, "links", Links),
        read_profile(profile),
        RunOptions(**config.model_dump(), seed=context.seed),
        context.devices_dir,
        reference,
    )
    came_from["tier_reality"] = measured.tier_reality
    save(record, "record", measured, came_from | {"plan_hash": hash_of(placed), "program_hash": hash_of(compiled)})
