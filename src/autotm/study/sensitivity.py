"""Whether plans and optimizers differ by more than the noise of the kernel times they were made from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotm.model.errors import BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Graph
from autotm.model.kernel_studies import Draw, Sensitivity
from autotm.model.links import Links
from autotm.model.plan import Plan
from autotm.model.profile import Profile, Timing, TimingKey
from autotm.profile.kernel_timing import NORMAL_QUARTILES
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack
from autotm.solve.problem import Problem
from autotm.solve.recheck import plan_us


def spread(timing: Timing) -> float:
    """Return the standard deviation of the logarithm of a time: that of the lognormal with the recorded quartiles."""
    return math.log(timing.upper_quartile_ns / max(timing.lower_quartile_ns, 1)) / NORMAL_QUARTILES


def resampled(profile: Profile, seed: int, number: int) -> Profile:
    """Draw `number` of the times.

    Each median is taken times a lognormal factor around one, as wide as the recorded quartiles. That is more noise
    than plans meet: a recorded median is surer than a single run. To what a configuration took beyond another in the
    same rounds its standard error times a normal number is added; a wait of known length has none. Where they did not
    take turns, the difference of their medians is taken times such a factor. Every (kernel, implementation,
    configuration) has a draw of its own, which all its calls share.
    """
    random = np.random.default_rng((seed, number))
    keys = sorted(profile.timings)
    normals = random.standard_normal(len(keys)).tolist()
    timings = {key: _drawn(profile, key, normal) for key, normal in zip(keys, normals, strict=True)}
    return replace(profile, timings=timings)


def _drawn(profile: Profile, key: TimingKey, normal: float) -> Timing:
    timing, factor = profile.timings[key], math.exp(spread(profile.timings[key]) * normal)
    drawn = replace(timing, median_ns=max(1, round(timing.median_ns * factor)))
    if timing.beyond_ns is not None:
        return replace(drawn, beyond_ns=timing.beyond_ns + round(timing.beyond_error_ns * normal))
    identity, implementation, config = key
    all_fast = profile.timings.get((identity, implementation, "D" * len(config)))
    if "P" not in config or all_fast is None:
        return drawn
    return replace(drawn, beyond_ns=round((timing.median_ns - all_fast.median_ns) * factor))


SURE = 0.95
"""Share of the draws that one plan must win before it counts as better."""
_QUANTILES = (0.05, 0.5, 0.95)  # of the draws, as they are told


def measure_sensitivity(
    graph: Graph, profile: Profile, links: Links, plans: Sequence[Plan], options: SolveOptions, draws: int
) -> Sensitivity:
    """Price plans for one limit, and make them anew, under `draws` draws of the kernel times, seeded by `options`.

    Copies between the memories keep their measured times. A plan made anew has offsets that fit, as the present ones.

    Raises:
        BadInputError: there is no plan.
        as `solve_and_pack`.
    """
    if not plans:
        raise BadInputError("sensitivity: no optimizer is named; give one or more")
    limit, recorded_us = plans[0].limit, _all_fast_us(graph, profile)
    recorded = tuple(Draw(0, plan.optimizer, recorded_us, plan.objective_us, plan.objective_us) for plan in plans)
    rows = []
    for number in range(1, draws + 1):
        drawn = resampled(profile, options.seed, number)
        all_fast_us = _all_fast_us(graph, drawn)
        problem = Problem(graph, drawn, links, limit, options)
        for plan in plans:
            resolved, _ = solve_and_pack(graph, drawn, links, plan.optimizer, limit, options)
            present_us = plan_us(problem, plan)
            rows.append(Draw(number, plan.optimizer, all_fast_us, present_us, resolved.objective_us))
    return Sensitivity(hash_of(graph), limit, recorded, tuple(rows))


def _all_fast_us(graph: Graph, profile: Profile) -> float:
    return sum(profile.base_us(kernel) for kernel in graph.kernels)


@dataclass(frozen=True)
class Comparison:
    """Two optimizers over the draws: the share that each wins, by the plans as they are and by plans made anew."""

    first: str
    second: str
    first_wins: float
    second_wins: float
    first_wins_resolved: float
    second_wins_resolved: float

    @property
    def verdict(self) -> str:
        """Say whose plan, as it is, is faster in so many draws that noise does not explain it, if either is."""
        if max(self.first_wins, self.second_wins) >= SURE:
            return f"{self.first if self.first_wins >= SURE else self.second} is faster beyond noise"
        equal = self.first_wins == self.second_wins == 0
        return "no difference in any draw" if equal else "their difference is not beyond noise"


def compare(sensitivity: Sensitivity) -> tuple[Comparison, ...]:
    """Compare every pair of optimizers."""
    pairs = []
    for names in itertools.combinations(sensitivity.optimizers, 2):
        shares = []
        for field in ("present_us", "resolved_us"):
            first, second = (np.array([getattr(row, field) for row in sensitivity.of(name)]) for name in names)
            shares += [float(np.mean(first < second)), float(np.mean(second < first))]
        pairs.append(Comparison(*names, *shares))
    return tuple(pairs)


def describe(sensitivity: Sensitivity) -> str:
    """Return a line for each optimizer, then one for each pair."""
    count = len(sensitivity.draws) // len(sensitivity.optimizers)
    lines = [
        f"limit {sensitivity.limit}: predicted under {count} draws of the kernel times (5 %, 50 %, 95 % of them)",
        f"{'optimizer':<16}{'recorded':>9}   {'slow-down':^20}   {'regret of the present plan':^26}",
    ]
    for row in sensitivity.recorded:
        drawn, spans = sensitivity.of(row.optimizer), []
        for field, digits in (("slowdown", ".3f"), ("regret", ".2%")):
            quantiles = np.quantile([getattr(item, field) for item in drawn], _QUANTILES)
            spans.append("  ".join(f"{value:{digits}}" for value in quantiles))
        lines.append(f"{row.optimizer:<16}{row.slowdown:>9.3f}   {spans[0]:^20}   {spans[1]:^26}")
    for pair in compare(sensitivity):
        shares = f"{pair.first} faster in {pair.first_wins:.0%} of the draws, {pair.second} in {pair.second_wins:.0%}"
        anew = f"solved anew {pair.first_wins_resolved:.0%} and {pair.second_wins_resolved:.0%}"
        lines.append(f"{pair.verdict}: {shares} ({anew})")
    return "\n".join(lines)
