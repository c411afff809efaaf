"""The measurements of the timing study: the kernels of one step, timed in whole steps and alone."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory.tiers import Tiers, open_tiers
from autotm.model.cores import quiet_interpreter
from autotm.model.graph import Configuration, Graph
from autotm.model.kernel_studies import ConfigurationTime, TimingMethod, TimingMethodCost, TimingStudy
from autotm.model.links import Links
from autotm.model.machine import Machine
from autotm.model.profile import Profile, Timing
from autotm.profile.kernel_timing import ProfileOptions, summary
from autotm.profile.profiler import cases, profile_kernels
from autotm.profile.store import KernelStore
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import Executor, prepare
from autotm.runtime.verify import plain_program

# Which configurations can be timed in one run of the step: those of kernels that share no tensor.


@dataclass(frozen=True)
class Wanted:
    """A configuration of kernel number `kernel` whose time is wanted; `slow` are its tensors in slow memory."""

    kernel: int
    configuration: Configuration
    slow: frozenset[str]


def wanted_configurations(graph: Graph) -> tuple[Wanted, ...]:
    """Every configuration of every distinct kernel of a step without alternatives, kernel after kernel."""
    number = {kernel.name: index for index, kernel in enumerate(graph.kernels)}
    return tuple(
        Wanted(number[case.kernel.name], config, _slow(graph, number[case.kernel.name], config))
        for case in cases(graph, "full")
        for config in case.configurations
    )


def _slow(graph: Graph, kernel: int, config: Configuration) -> frozenset[str]:
    slots = graph.slots_of(graph.kernels[kernel])
    return frozenset(tensor for tensor, filled in slots.items() if config[filled[0]] == "P")


def rounds(graph: Graph, wanted: Sequence[Wanted]) -> tuple[tuple[Wanted, ...], ...]:
    """Sets of configurations of kernels that share no movable tensor, each wanted one in exactly one set.

    Greedy, as in the notebook of AutoTM's prototype: each set takes, in order, all that still fit. So every kernel of a
    set finds its tensors where it wants them.
    """
    left, found = list(wanted), []
    while left:
        taken: list[Wanted] = []
        later: list[Wanted] = []
        used: set[str] = set()
        kernels: set[int] = set()
        for one in left:
            tensors = graph.slots_of(graph.kernels[one.kernel]).keys()
            if one.kernel in kernels or not used.isdisjoint(tensors):
                later.append(one)
                continue
            taken.append(one)
            kernels.add(one.kernel)
            used.update(tensors)
        found.append(tuple(taken))
        left = later
    return tuple(found)


log = logging.getLogger(__name__)

TimesAndCost = tuple[list[ConfigurationTime], TimingMethodCost]


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
    for way, configurations in ((TimingMethod.ISOLATED, "full"), (TimingMethod.ADDITIVE, "additive")):
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
) -> list[TimesAndCost]:
    total = plain_program(graph).fast_bytes
    alone = tuple((one,) for one in wanted)
    ways = ((TimingMethod.SINGLE, alone), (TimingMethod.TOGETHER, rounds(graph, wanted)), (TimingMethod.AGAIN, alone))
    with pinned(machine), open_tiers(machine, links, total, total, devices_dir) as tiers, quiet_interpreter():
        arguments = Arguments.allocate(graph, tiers=tiers)
        arguments.fill(seed)
        plain = prepare(graph, library, plain_program(graph), arguments, tiers)
        check_cores(machine, plain.step)
        found = [_way_in_steps(way, graph, sets, library, arguments, tiers, seed, repeats) for way, sets in ways]
        tiers.check()
        return found


def _way_in_steps(
    way: TimingMethod,
    graph: Graph,
    sets: Sequence[Sequence[Wanted]],
    library: KernelLibrary,
    arguments: Arguments,
    tiers: Tiers,
    seed: int,
    repeats: int,
) -> TimesAndCost:
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
    return times, TimingMethodCost(way, seconds, len(sets) * (repeats + 1))


def _executor(
    graph: Graph, chosen: Sequence[Wanted], library: KernelLibrary, arguments: Arguments, tiers: Tiers
) -> Executor:
    slow = frozenset[str]().union(*(one.slow for one in chosen))
    return prepare(graph, library, plain_program(graph, slow), arguments, tiers)


def _alone(
    way: TimingMethod,
    graph: Graph,
    wanted: Sequence[Wanted],
    library: KernelLibrary,
    machine: Machine,
    links: Links,
    options: ProfileOptions,
    devices_dir: Path,
) -> TimesAndCost:
    """Profile as rule kernel_profile does, with a store that knows nothing."""
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder, KernelStore(Path(folder) / "kernels.sqlite") as store:
        start = time.perf_counter()
        profile = profile_kernels(graph, library, machine, links, store, options, devices_dir)
        seconds = time.perf_counter() - start
    times = list(_read(way, graph, wanted, profile))
    log.info("%s: %d configurations timed, %.1f s", way, len(profile.timings), seconds)
    return times, TimingMethodCost(way, seconds, len(profile.timings))


def _read(way: TimingMethod, graph: Graph, wanted: Sequence[Wanted], profile: Profile) -> Iterator[ConfigurationTime]:
    for one in wanted:
        kernel = graph.kernels[one.kernel]
        timing = profile.timing(kernel, one.configuration)
        if timing is not None:
            yield _timed(way, graph, one, timing)
        else:
            total_us = profile.additive_us(graph, kernel, one.slow)
            yield ConfigurationTime(way, kernel.name, kernel.op, one.configuration, len(one.slow), total_us, 0)


def _timed(way: TimingMethod, graph: Graph, one: Wanted, timing: Timing) -> ConfigurationTime:
    kernel = graph.kernels[one.kernel]
    median, lower, upper = (
        value / 1e3 for value in (timing.median_ns, timing.lower_quartile_ns, timing.upper_quartile_ns)
    )
    return ConfigurationTime(
        way, kernel.name, kernel.op, one.configuration, len(one.slow), median, timing.repeats, lower, upper
    )
