"""The measurements of the timing study: the kernels of one step, timed in whole steps and alone."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory import Tiers, open_tiers, quiet_interpreter
from autotm.model.machine import Machine
from autotm.model.measurement import ConfigurationTime, Links, Profile, Timing, TimingStudy, Way, WayCost
from autotm.model.step import Graph
from autotm.profile.step.together import Wanted, rounds, wanted_configurations
from autotm.profile.store import KernelStore
from autotm.profile.timing import ProfileOptions, profile_kernels, summary
from autotm.runtime import Arguments, Executor, plain_program, prepare

log = logging.getLogger(__name__)

Found = tuple[list[ConfigurationTime], WayCost]


def measure(
    graph: Graph,
    library: KernelLibrary,
    machine: Machine,
    links: Links,
    options: ProfileOptions,
    repeats: int,
    devices_dir: Path,
) -> TimingStudy:
    """Time every configuration of every distinct kernel of `graph` in every way.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
        BadInputError: the library lacks a kernel of the graph.
    """
    step = graph.computed_by(())
    wanted = wanted_configurations(step)
    found = _in_steps(step, wanted, library, machine, links, options.seed, repeats, devices_dir)
    for way, configurations in ((Way.ISOLATED, "full"), (Way.ADDITIVE, "additive")):
        chosen = replace(options, configurations=configurations, times_known_waits=True)
        found.append(_alone(way, step, wanted, library, machine, links, chosen, devices_dir))
    costs = tuple(cost for _, cost in found)
    times = tuple(one for times, _ in found for one in times)
    return TimingStudy(
        step.network,
        step.scale,
        step.batch,
        machine.name,
        machine.threads,
        machine.tier_reality,
        options.seed,
        repeats,
        costs,
        times,
    )


def _in_steps(
    graph: Graph,
    wanted: Sequence[Wanted],
    library: KernelLibrary,
    machine: Machine,
    links: Links,
    seed: int,
    repeats: int,
    devices_dir: Path,
) -> list[Found]:
    total = plain_program(graph).fast_bytes
    alone = tuple((one,) for one in wanted)
    ways = ((Way.SINGLE, alone), (Way.TOGETHER, rounds(graph, wanted)), (Way.AGAIN, alone))
    with pinned(machine), open_tiers(machine, links, total, total, devices_dir) as tiers, quiet_interpreter():
        arguments = Arguments.allocate(graph, tiers=tiers)
        arguments.fill(seed)
        plain = prepare(graph, library, plain_program(graph), arguments, tiers)
        check_cores(machine, plain.step)
        found = [_way_in_steps(way, graph, sets, library, arguments, tiers, seed, repeats) for way, sets in ways]
        tiers.check()
        return found


def _way_in_steps(
    way: Way,
    graph: Graph,
    sets: Sequence[Sequence[Wanted]],
    library: KernelLibrary,
    arguments: Arguments,
    tiers: Tiers,
    seed: int,
    repeats: int,
) -> Found:
    """Run the step once for each set in turn, `repeats` times and once before to warm up."""
    start = time.perf_counter()
    executors = [_executor(graph, chosen, library, arguments, tiers) for chosen in sets]
    samples: dict[Wanted, list[int]] = {one: [] for chosen in sets for one in chosen}
    for turn in range(repeats + 1):
        # Else thousands of steps on the same data would train the network to gradients of nearly nothing.
        arguments.fill(seed)
        for chosen, executor in zip(sets, executors, strict=True):
            times_ns = executor.instrumented_step()
            for one in chosen if turn else ():
                samples[one].append(times_ns[one.kernel])
    seconds = time.perf_counter() - start
    log.info("%s: %d configurations in %d sets, %.1f s", way, len(samples), len(sets), seconds)
    times = [_timed(way, graph, one, summary(series)) for one, series in samples.items()]
    return times, WayCost(way, seconds, len(sets) * (repeats + 1))


def _executor(
    graph: Graph, chosen: Sequence[Wanted], library: KernelLibrary, arguments: Arguments, tiers: Tiers
) -> Executor:
    slow = frozenset[str]().union(*(one.slow for one in chosen))
    return prepare(graph, library, plain_program(graph, slow), arguments, tiers)


def _alone(
    way: Way,
    graph: Graph,
    wanted: Sequence[Wanted],
    library: KernelLibrary,
    machine: Machine,
    links: Links,
    options: ProfileOptions,
    devices_dir: Path,
) -> Found:
    """Profile as rule kernel_profile does, with a store that knows nothing."""
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder, KernelStore(Path(folder) / "kernels.sqlite") as store:
        start = time.perf_counter()
        profile = profile_kernels(graph, library, machine, links, store, options, devices_dir)
        seconds = time.perf_counter() - start
    times = list(_read(way, graph, wanted, profile))
    log.info("%s: %d configurations timed, %.1f s", way, len(profile.timings), seconds)
    return times, WayCost(way, seconds, len(profile.timings))


def _read(way: Way, graph: Graph, wanted: Sequence[Wanted], profile: Profile) -> Iterator[ConfigurationTime]:
    for one in wanted:
        kernel = graph.kernels[one.kernel]
        timing = profile.timing(kernel, one.configuration)
        if timing is not None:
            yield _timed(way, graph, one, timing)
        else:
            total_us = profile.additive_us(graph, kernel, one.slow)
            yield ConfigurationTime(way, kernel.name, kernel.op, one.configuration, len(one.slow), total_us, 0)


def _timed(way: Way, graph: Graph, one: Wanted, timing: Timing) -> ConfigurationTime:
    kernel = graph.kernels[one.kernel]
    median, lower, upper = (
        value / 1e3 for value in (timing.median_ns, timing.lower_quartile_ns, timing.upper_quartile_ns)
    )
    return ConfigurationTime(
        way, kernel.name, kernel.op, one.configuration, len(one.slow), median, timing.repeats, lower, upper
    )
