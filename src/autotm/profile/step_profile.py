"""Times each kernel within the step, in turn with whole steps, whose time the kernels must sum up to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotm.kernels.library import KernelLibrary
from autotm.memory.tiers import open_tiers
from autotm.model.files import hash_of
from autotm.model.graph import DEFAULT_IMPLEMENTATION, Configuration, Graph, all_fast
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.machine import Machine
from autotm.model.profile import Profile, Timing, TimingKey
from autotm.profile.kernel_timing import ProfileOptions, after_a_wait, paired, summary
from autotm.profile.profiler import cases, delay_ns, describe_context, origin, profile_kernels, timing_context, ways_of
from autotm.profile.store import KernelStore, StoreKey
from autotm.runtime.all_fast import Effort, time_all_fast

# A profile from kernels timed where they stand: within the step, whose caches are as full as they then are.

AllFast = Mapping[tuple[str, str], Timing]
"""All-fast timings by identity and implementation."""
_STEP = "step", DEFAULT_IMPLEMENTATION
"""The whole step, where the store has kernels."""


@dataclass(frozen=True)
class StepTimings:
    """What the all-fast step took as a whole, and its kernels within it."""

    step: Timing
    kernels: AllFast


def stored(store: KernelStore, machine: Machine, graph: Graph) -> StepTimings | None:
    """What the store has of this step, if that is all of it, and undisturbed."""
    keys = _store_keys(timing_context(machine, hash_of(graph)), ways_of(graph))
    found = {key: store.get(stored_as) for key, stored_as in keys.items()}
    kernels = {key: timing for key, timing in found.items() if timing is not None and not timing.disturbed}
    if len(kernels) < len(keys):
        return None
    return StepTimings(kernels.pop(_STEP), kernels)


def keep(store: KernelStore, machine: Machine, graph: Graph, timings: StepTimings) -> None:
    """Put all of them into the store, or, if killed, none."""
    keys = _store_keys(describe_context(store, machine, hash_of(graph)), ways_of(graph))
    store.put({keys[key]: timing for key, timing in {**timings.kernels, _STEP: timings.step}.items()})


def all_fast_timings(
    ways: Sequence[Graph], kernels_ns: Sequence[npt.NDArray[np.int64]], *, disturbed: bool
) -> dict[tuple[str, str], Timing]:
    """What each implementation of each kernel took.

    A kernel that the step calls several times takes in each round the mean of these calls, so that all kernels sum up
    to what the step took. Other implementations are paired with the default one at the same places of the step.

    Args:
        ways: the step by default implementations, and then by others (`cases.ways_of`).
        kernels_ns: (rounds, kernels) for each of them, run in turn.
        disturbed: whether others held the cores meanwhile.
    """
    default, default_ns = ways[0], kernels_ns[0]
    places: dict[tuple[str, str], list[int]] = {}
    times: dict[tuple[str, str], npt.NDArray[np.int64]] = {}
    for way, ns in zip(ways, kernels_ns, strict=True):
        for place, kernel in enumerate(way.kernels):
            if way is default or kernel.implementation != DEFAULT_IMPLEMENTATION:
                key = kernel.identity, kernel.implementation
                same = places.setdefault(key, [])
                if not same or default.kernels[same[0]].identity == default.kernels[place].identity:
                    same.append(place)
                    times[key] = ns
    found = {}
    for key, same in places.items():
        series = _mean_ns(times[key], same)
        if key[1] == DEFAULT_IMPLEMENTATION:
            timing = summary(series)
        else:
            identity = default.kernels[same[0]].identity
            timing = replace(paired(series, _mean_ns(default_ns, same)), default_identity=identity)
        found[key] = replace(timing, disturbed=disturbed)
    return found


def profile_in_step(
    graph: Graph,
    library: KernelLibrary,
    machine: Machine,
    links: Links,
    store: KernelStore,
    options: ProfileOptions,
    devices_dir: Path,
    timed: AllFast,
) -> Profile:
    """The profile of a step whose kernels took `timed`, all fast.

    What slow operands add is a wait of known length where slow memory is emulated, by configuration where such waits do
    not add up. Elsewhere kernels are timed alone
    for it, their operands slow and fast in turn, unless the store has it.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
        BadInputError: the library lacks a kernel of the graph.
    """
    with open_tiers(machine, links, 0, 0, devices_dir) as tiers:
        if tiers.waits_are_known and not options.times_known_waits:
            if not tiers.waits_are_additive:  # known waits cost nothing, however many configurations there are
                options = replace(options, configurations="full")
            timings = {
                (*case.key, config): after_a_wait(timed[case.key], delay_ns(tiers, case, config))
                if "P" in config
                else timed[case.key]
                for case in cases(graph, options.configurations)
                for config in case.configurations
            }
            return Profile(hash_of(graph), timings, origin(library, machine, options))
    alone = profile_kernels(graph, library, machine, links, store, options, devices_dir)
    return replace(alone, timings=dict(_moved(alone.timings, timed)))


def all_fast_us(graph: Graph, profile: Profile) -> float:
    """What the kernels of the step sum up to, all fast, by their default implementations."""
    return sum(map(profile.base_us, graph.computed_by(()).kernels))


def _store_keys(context: str, ways: Sequence[Graph]) -> dict[tuple[str, str], StoreKey]:
    kernels = (kernel for way in ways for kernel in way.kernels)
    keys = {(kernel.identity, kernel.implementation): all_fast(kernel) for kernel in kernels}
    return {key: StoreKey(context, *key, config, 0) for key, config in {**keys, _STEP: ""}.items()}


def _mean_ns(times_ns: npt.NDArray[np.int64], places: Sequence[int]) -> list[int]:
    """(rounds,) mean over the calls at these places."""
    return [round(float(mean)) for mean in times_ns[:, places].mean(axis=1)]


def _moved(alone: Mapping[TimingKey, Timing], timed: AllFast) -> Iterator[tuple[TimingKey, Timing]]:
    """Timings of kernels alone with, in place of what they took all fast, what they took so within the step."""
    apart_ns = {key[:2]: timing.median_ns for key, timing in alone.items() if "P" not in key[2]}
    for key, timing in alone.items():
        inside = timed[key[:2]]
        if "P" not in key[2]:
            yield key, replace(inside, disturbed=inside.disturbed or timing.disturbed)
            continue
        by_ns = inside.median_ns - apart_ns[key[:2]]
        yield (
            key,
            replace(
                timing,
                min_ns=max(1, timing.min_ns + by_ns),
                median_ns=max(1, timing.median_ns + by_ns),
                lower_quartile_ns=max(1, timing.lower_quartile_ns + by_ns),
                upper_quartile_ns=max(1, timing.upper_quartile_ns + by_ns),
                beyond_ns=_bounded(timing.beyond_ns, inside.median_ns, key[2]),
                disturbed=inside.disturbed or timing.disturbed,
            ),
        )


def _bounded(beyond_ns: int | None, inside_ns: int, config: Configuration) -> int | None:
    """What slow operands add; if by noise less than nothing, no more than leaves half the kernel's time with all slow.

    A kernel alone can scatter by more than it takes within the step, which would then be predicted to take no time.
    """
    return None if beyond_ns is None else max(beyond_ns, -inside_ns * config.count("P") // (2 * len(config)))


# The profile of a step: its kernels timed where they stand, beside the step that they have to sum up to.

log = logging.getLogger(__name__)


def profile_step(
    graph: Graph,
    counts: Counts,
    library: KernelLibrary,
    machine: Machine,
    links: Links,
    store: KernelStore,
    options: ProfileOptions,
    tolerance: float,
    devices_dir: Path,
) -> Profile:
    """Time the kernels of `graph` within its all-fast step, and what slow operands add for limits that count `counts`.

    What the store has of the step is not timed again, unless others disturbed it. Whole steps run in turn with those
    whose kernels are timed, so that both meet the same minutes. The profile's provenance holds what the kernels sum up
    to and what whole steps took; where these differ by more than a share `tolerance`, that is logged.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
        BadInputError: the library lacks a kernel of the graph.
    """
    timed = stored(store, machine, graph)
    if timed is None:
        timed = _timed(graph, library, machine, options, devices_dir)
        keep(store, machine, graph, timed)
    counted = counting(graph, counts)
    profile = profile_in_step(counted, library, machine, links, store, options, devices_dir, timed.kernels)
    step_us, kernels_us = timed.step.median_ns / 1e3, all_fast_us(counted, profile)
    compared = (
        f"in {timed.step.repeats} rounds, the kernels sum up to {kernels_us / 1e6:.4g} s, the all-fast step took "
        f"{step_us / 1e6:.4g} s ({kernels_us / step_us - 1:+.1%})"
    )
    if timed.step.disturbed:
        log.warning("others held the cores: %s, both too long", compared)
    elif abs(kernels_us / step_us - 1) > tolerance:
        log.warning("%s: predicted seconds will be off by as much", compared)
    else:
        log.info("%s", compared)
    held_against = {
        "all_fast_step_s": step_us / 1e6,
        "kernels_s": kernels_us / 1e6,
        "rounds": timed.step.repeats,
        "disturbed": timed.step.disturbed,
    }
    return replace(profile, provenance={**profile.provenance, "held_against": held_against})


def _timed(
    graph: Graph, library: KernelLibrary, machine: Machine, options: ProfileOptions, devices_dir: Path
) -> StepTimings:
    ways = ways_of(graph)
    distinct = {kernel.identity for way in ways for kernel in way.kernels}
    log.info("timing %d distinct kernels within the all-fast step", len(distinct))
    effort = Effort(
        options.min_repeats,
        options.max_repeats,
        options.step_s,
        options.spread,
        options.patience_s,
        options.seed,
    )
    rounds = time_all_fast(ways, library, machine, effort, devices_dir)
    step = replace(summary(rounds.step_ns.tolist()), disturbed=rounds.disturbed)
    return StepTimings(step, all_fast_timings(ways, rounds.kernels_ns, disturbed=rounds.disturbed))
