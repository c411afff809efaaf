"""Whether plans and optimizers differ by more than the noise of the kernel times that they were made from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotm.model.files import BadInputError, hash_of
from autotm.model.measurement import Draw, Links, Profile, Sensitivity
from autotm.model.plan import Plan
from autotm.model.step import Graph, Limit
from autotm.solve import Problem, SolveOptions, plan_us, solve_and_pack
from autotm.study.noise.resample import resampled

SURE = 0.95
"""Share of the draws that one plan must win before it counts as better."""
_QUANTILES = (0.05, 0.5, 0.95)


def measure_sensitivity(
    graph: Graph, profile: Profile, links: Links, plans: Sequence[Plan], options: SolveOptions, draws: int
) -> Sensitivity:
    """Price the plans, and make them anew, under `draws` draws of the kernel times, from the seed of `options`.

    Copies between the memories keep their measured times. A plan made anew has offsets that fit, as the present ones.

    Raises:
        BadInputError: the plans are not for one limit, or there is no draw.
        as `solve_and_pack`.
    """
    limits = sorted({plan.limit for plan in plans})
    if len(limits) != 1:
        raise BadInputError(f"sensitivity: give plans for one limit; got {', '.join(limits) or 'no plan'}")
    if draws < 1:
        raise BadInputError(f"sensitivity: draws: {draws} is not allowed: give 1 or more")
    recorded_us = _all_fast_us(graph, profile)
    recorded = tuple(Draw(0, plan.optimizer, recorded_us, plan.objective_us, plan.objective_us) for plan in plans)
    rows = []
    for number in range(1, draws + 1):
        drawn = resampled(profile, options.seed, number)
        all_fast_us = _all_fast_us(graph, drawn)
        problem = Problem(graph, drawn, links, Limit.parse(limits[0]), options)
        for plan in plans:
            present_us = plan_us(problem, plan)
            resolved, _ = solve_and_pack(graph, drawn, links, plan.optimizer, problem.limit, options)
            rows.append(Draw(number, plan.optimizer, all_fast_us, present_us, resolved.objective_us))
    return Sensitivity(hash_of(graph), limits[0], recorded, tuple(rows))


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
    def winner(self) -> str | None:
        """Whose plan, as it is, is faster in so many draws that noise does not explain it."""
        if self.first_wins >= SURE:
            return self.first
        return self.second if self.second_wins >= SURE else None

    @property
    def verdict(self) -> str:
        """It in words."""
        if self.winner is not None:
            return f"{self.winner} is faster beyond noise"
        equal = self.first_wins == self.second_wins == 0
        return "no difference in any draw" if equal else "their difference is not beyond noise"


def compare(found: Sensitivity) -> tuple[Comparison, ...]:
    """Every pair of optimizers."""
    return tuple(_compared(found, *pair) for pair in itertools.combinations(found.optimizers, 2))


def _compared(found: Sensitivity, first: str, second: str) -> Comparison:
    left, right = found.of(first), found.of(second)
    shares = []
    for field in ("present_us", "resolved_us"):
        ours = np.array([getattr(row, field) for row in left])
        theirs = np.array([getattr(row, field) for row in right])
        shares += [float(np.mean(ours < theirs)), float(np.mean(theirs < ours))]
    return Comparison(first, second, *shares)


def describe(found: Sensitivity) -> str:
    """The table as text: a line for each optimizer, then one for each pair."""
    count = len(found.draws) // len(found.optimizers)
    lines = [
        f"limit {found.limit}: predicted under {count} draws of the kernel times (5 %, 50 %, 95 % of them)",
        f"{'optimizer':<16}{'recorded':>9}   {'slow-down':^20}   {'regret of the present plan':^26}",
    ]
    for row in found.recorded:
        drawn = found.of(row.optimizer)
        slow = np.quantile([item.slowdown for item in drawn], _QUANTILES)
        regret = np.quantile([item.regret for item in drawn], _QUANTILES)
        spans = ["  ".join(f"{value:.3f}" for value in slow), "  ".join(f"{value:.2%}" for value in regret)]
        lines.append(f"{row.optimizer:<16}{row.slowdown:>9.3f}   {spans[0]:^20}   {spans[1]:^26}")
    for pair in compare(found):
        shares = f"{pair.first} faster in {pair.first_wins:.0%} of the draws, {pair.second} in {pair.second_wins:.0%}"
        anew = f"solved anew {pair.first_wins_resolved:.0%} and {pair.second_wins_resolved:.0%}"
        lines.append(f"{pair.verdict}: {shares} ({anew})")
    return "\n".join(lines)
