"""The profile of a step: its kernels timed where they stand, beside the step that they have to sum up to."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from autotm.kernels.library import KernelLibrary
from autotm.model.machine import Machine
from autotm.model.measurement import Links, Profile
from autotm.model.step import Counts, Graph, counting
from autotm.profile.step.in_step import StepTimings, all_fast_timings, all_fast_us, keep, profile_in_step, stored
from autotm.profile.store import KernelStore
from autotm.profile.timing import ProfileOptions, summary, ways_of
from autotm.runtime import Effort, time_all_fast

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
