"""The stage that compiles a training step and times its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotm.model.files import load
from autotm.model.machine import provenance
from autotm.model.measurement import Links, Profile, write_profile
from autotm.model.step import Graph, NetworkSource
from autotm.model.study import ProfileConfig
from autotm.stages.context import Context

if TYPE_CHECKING:
    from autotm.zoo import Network


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
    values: Path,
    graph: Path,
    library: Path,
    profile: Path,
) -> None:
    """Compile the training step of `network`, then time its kernels; what the caches hold is not done again."""
    from autotm import zoo

    built = zoo.build_from(network)
    came_from = provenance(context.machine, context.seed, **network.provenance)
    places = {"store": store, "objects": objects, "values": values, "graph": graph, "library": library}
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
    values: Path,
    graph: Path,
    library: Path,
) -> tuple[Graph, Profile]:
    """Write graph and library of a training step, and time its kernels; gives the step as lowered, and their times.

    Values that came with the network are kept in the folder `values`, where every step finds them.
    Kernels are timed within the step (`autotm.profile.step`). Tuned schedules in the store are taken where ours was
    measured to take longer by more than `min_gain`.
    """
    from autotm.kernels.code import machine_target
    from autotm.kernels.library import KernelLibrary
    from autotm.lower import lower_network
    from autotm.profile.step import profile_step
    from autotm.profile.store import KernelStore, Where
    from autotm.profile.timing import ProfileOptions
    from autotm.zoo import with_values_stored

    machine = context.machine
    target = machine_target(machine)
    options = ProfileOptions(**config.timing, seed=context.seed)
    with KernelStore(store) as opened:
        tuned = opened.schedules.usable(Where.of(machine, target), min_gain)
        step = lower_network(
            with_values_stored(network, values),
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
