"""Times each kernel within the step, in turn with whole steps, whose time the kernels must sum up to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotm.kernels.library import KernelLibrary
from autotm.memory.opening import open_tiers
from autotm.model.files import hash_of
from autotm.model.graph import DEFAULT_IMPLEMENTATION, Graph, all_fast
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.machine import Machine
from autotm.model.profile import Profile, Timing, TimingKey
from autotm.profile.kernel_timing import ProfileOptions, after_a_wait, paired, shifted, summary
from autotm.profile.profiler import cases, delay_ns, origin, profile_kernels, steps_by_implementation, timing_context
from autotm.profile.store import KernelStore, StoreKey
from autotm.runtime.all_fast import Effort, time_all_fast

log = logging.getLogger(__name__)

AllFast = Mapping[tuple[str, str], Timing]
"""All-fast timings by identity and implementation."""
_STEP = "step", DEFAULT_IMPLEMENTATION
"""The whole step, where the store has kernels."""


def all_fast_timings(
    steps: Sequence[Graph], kernels_ns: Sequence[npt.NDArray[np.int64]], *, disturbed: bool
) -> dict[tuple[str, str], Timing]:
    """Return the all-fast timing of each implementation of each kernel, by identity and implementation.

    A kernel that the step calls several times takes in each round the mean of these calls, so that all kernels sum up
    to what the step took. Other implementations are paired with the default one at the same places of the step.

    Args:
        steps: by default implementations, and then by others (`profiler.steps_by_implementation`).
        kernels_ns: (rounds, kernels) for each of them, run in turn.
        disturbed: whether others held the cores meanwhile.
    """
    default, default_ns = steps[0], kernels_ns[0]
    places: dict[tuple[str, str], list[int]] = {}
    times: dict[tuple[str, str], npt.NDArray[np.int64]] = {}
    for step, ns in zip(steps, kernels_ns, strict=True):
        for place, kernel in enumerate(step.kernels):
            if step is default or kernel.implementation != DEFAULT_IMPLEMENTATION:
                key = kernel.identity, kernel.implementation
                same = places.setdefault(key, [])
                if not same or default.kernels[same[0]].identity == default.kernels[place].identity:
                    same.append(place)
                    times[key] = ns

    def mean_ns(times_ns: npt.NDArray[np.int64], same: Sequence[int]) -> list[int]:
        return [round(float(mean)) for mean in times_ns[:, same].mean(axis=1)]

    timings = {}
    for key, same in places.items():
        series = mean_ns(times[key], same)
        if key[1] == DEFAULT_IMPLEMENTATION:
            timing = summary(series)
        else:
            identity = default.kernels[same[0]].identity
            timing = replace(paired(series, mean_ns(default_ns, same)), default_identity=identity)
        timings[key] = replace(timing, disturbed=disturbed)
    return timings


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
    """Return the profile of a step whose kernels took `timed`, all fast.

    What slow operands add is a wait of known length where slow memory is emulated, by configuration where such waits do
    not add up. Elsewhere kernels are timed alone for it, their operands slow and fast in turn, unless the store has it.

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
    """Sum the all-fast times of the step's kernels, computed by their default implementations, in microseconds."""
    return sum(map(profile.base_us, graph.computed_by(()).kernels))


def _moved(alone: Mapping[TimingKey, Timing], timed: AllFast) -> Iterator[tuple[TimingKey, Timing]]:
    """Yield the timings of kernels alone, with their all-fast times replaced by those within the step."""
    apart_ns = {key[:2]: timing.median_ns for key, timing in alone.items() if "P" not in key[2]}
    for key, timing in alone.items():
        inside = timed[key[:2]]
        if "P" not in key[2]:
            yield key, replace(inside, disturbed=inside.disturbed or timing.disturbed)
            continue
        beyond_ns = timing.beyond_ns
        if beyond_ns is not None:
            # A kernel alone can scatter by more than it takes within the step, which would then be predicted to take no
            # time: a negative extra is bounded, so that half the kernel's time remains with all operands slow.
            beyond_ns = max(beyond_ns, -inside.median_ns * key[2].count("P") // (2 * len(key[2])))
        moved = shifted(timing, inside.median_ns - apart_ns[key[:2]])
        yield key, replace(moved, beyond_ns=beyond_ns, disturbed=inside.disturbed or timing.disturbed)


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
    steps = steps_by_implementation(graph)
    context = timing_context(machine, hash_of(graph))
    configs = {(each.identity, each.implementation): all_fast(each) for step in steps for each in step.kernels}
    keys = {key: StoreKey(context, *key, config, 0) for key, config in {**configs, _STEP: ""}.items()}
    known = {key: store.get(stored) for key, stored in keys.items()}
    timed = {key: timing for key, timing in known.items() if timing is not None and not timing.disturbed}
    if len(timed) < len(keys):
        timed = _timed(steps, library, machine, options, devices_dir)
        timing_context(machine, hash_of(graph), store)
        store.put({keys[key]: timing for key, timing in timed.items()})
    counted = counting(graph, counts)
    profile = profile_in_step(counted, library, machine, links, store, options, devices_dir, timed)
    whole = timed[_STEP]
    step_us, kernels_us = whole.median_ns / 1e3, all_fast_us(counted, profile)
    compared = (
        f"in {whole.repeats} rounds, the kernels sum up to {kernels_us / 1e6:.4g} s, the all-fast step took "
        f"{step_us / 1e6:.4g} s ({kernels_us / step_us - 1:+.1%})"
    )
    if whole.disturbed:
        log.warning("others held the cores: %s, both too long", compared)
    elif abs(kernels_us / step_us - 1) > tolerance:
        log.warning("%s: predicted seconds will be off by as much", compared)
    else:
        log.info("%s", compared)
    held_against = {
        "all_fast_step_s": step_us / 1e6,
        "kernels_s": kernels_us / 1e6,
        "rounds": whole.repeats,
        "disturbed": whole.disturbed,
    }
    return replace(profile, provenance={**profile.provenance, "held_against": held_against})


def _timed(
    steps: Sequence[Graph], library: KernelLibrary, machine: Machine, options: ProfileOptions, devices_dir: Path
) -> dict[tuple[str, str], Timing]:
    """Time the kernels within these steps, and the whole one."""
    distinct = {kernel.identity for step in steps for kernel in step.kernels}
    log.info("timing %d distinct kernels within the all-fast step", len(distinct))
    effort = Effort(
        options.min_repeats, options.max_repeats, options.step_s, options.spread, options.patience_s, options.seed
    )
    rounds = time_all_fast(steps, library, machine, effort, devices_dir)
    whole = replace(summary(rounds.step_ns.tolist()), disturbed=rounds.disturbed)
    return all_fast_timings(steps, rounds.kernels_ns, disturbed=rounds.disturbed) | {_STEP: whole}
