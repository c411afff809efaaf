"""A profile held against the step that it stands for: what was timed in bad minutes is timed again."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from time import monotonic

from autotm.kernels.library import KernelLibrary
from autotm.model.graph import Graph
from autotm.model.link import Links
from autotm.model.machine import Machine
from autotm.model.profile import Profile
from autotm.profile import KernelStore, ProfileOptions, profile_kernels
from autotm.profile.doubt import all_fast_us, in_doubt
from autotm.runtime.all_fast import AllFastStep, time_all_fast
from autotm.runtime.options import RunOptions

log = logging.getLogger(__name__)

_STEPS, _SECONDS, _PRECISION = 5, 0.5, 0.01
"""The step is timed so often, so long and so precisely, as `RunOptions` says."""


def profile_step(
    graph: Graph,
    library: KernelLibrary,
    machine: Machine,
    links: Links,
    store: KernelStore,
    options: ProfileOptions,
    tolerance: float,
    devices_dir: Path,
) -> Profile:
    """As `profile_kernels`, and then run the all-fast step: the kernels must sum up to it within a share `tolerance`.

    Where they do not, those whose time within the step differs most from their time alone are timed again, and the step
    with them, until they do, or each of these has twice taken the same, or for as long as the options are patient. The
    profile's provenance holds both numbers; a difference that remains is logged.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
        BadInputError: the library lacks a kernel of the graph.
    """

    def kernels(again: frozenset[str] = frozenset()) -> Profile:
        return profile_kernels(graph, library, machine, links, store, options, devices_dir, again)

    def step() -> AllFastStep:
        precisely = RunOptions(_STEPS, _SECONDS, _PRECISION, patience_s=options.patience_s, seed=options.seed)
        return time_all_fast(graph, library, machine, precisely, devices_dir)

    profile, found, settled, timed_again = kernels(), step(), set[str](), set[str]()
    deadline = monotonic() + options.patience_s
    while abs(_off(graph, profile, found)) > tolerance and not found.disturbed and monotonic() < deadline:
        doubtful = in_doubt(graph, profile, found.step_us, found.kernels_us, settled)
        if not doubtful:
            break
        log.info("%s; timing %d kernels again", _compared(graph, profile, found), len(doubtful))
        before, profile = profile, kernels(doubtful)
        settled |= _settled(graph, doubtful, before, profile, tolerance)
        timed_again |= doubtful
        found = step()
    if found.disturbed:
        log.warning("others held the cores while the all-fast step was timed: %s", _compared(graph, profile, found))
    elif abs(_off(graph, profile, found)) > tolerance:
        log.warning("%s: predicted seconds will be off by as much", _compared(graph, profile, found))
    held_against = {
        "all_fast_step_s": found.step_us / 1e6,
        "kernels_s": all_fast_us(graph, profile) / 1e6,
        "disturbed": found.disturbed,
        "timed_again": len(timed_again),
    }
    return replace(profile, provenance={**profile.provenance, "held_against": held_against})


def _off(graph: Graph, profile: Profile, found: AllFastStep) -> float:
    """By what share of the step its kernels sum up to more."""
    return all_fast_us(graph, profile) / found.step_us - 1


def _settled(graph: Graph, doubtful: frozenset[str], before: Profile, after: Profile, tolerance: float) -> set[str]:
    """Kernels that took the same in two sittings: what they take in the step beyond that is the step's doing."""
    kernels = {kernel.identity: kernel for kernel in graph.computed_by(()).kernels if kernel.identity in doubtful}
    return {
        identity
        for identity, kernel in kernels.items()
        if abs(after.base_us(kernel) / before.base_us(kernel) - 1) <= tolerance
    }


def _compared(graph: Graph, profile: Profile, found: AllFastStep) -> str:
    return (
        f"the kernels sum up to {all_fast_us(graph, profile) / 1e6:.4g} s, the all-fast step took "
        f"{found.step_us / 1e6:.4g} s ({_off(graph, profile, found):+.1%})"
    )
