"""Tensor placements under a limit, by the searches and the rewards that find fusion decisions.

Here the optimum is known, with a proof: so it can be told how far from it annealing ends, and a model of rewards,
after how many evaluations. A tensor stays in one memory for life; times are predicted from the kernels' profile.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from sklearn.linear_model import Ridge

from autotm.fusion.rewards import benefits, design
from autotm.fusion.search import annealing, independent, random_walk
from autotm.model.fusion_policy import PlacementCurve, PlacementSearch, Target
from autotm.model.graph import CountedGraph, Tier
from autotm.model.limit import Limit, fixed_bytes
from autotm.model.links import Links
from autotm.model.profile import Profile
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

Placement = frozenset[str]
"""Tensors in fast memory."""
_FLIPPED = 3
"""Tensors that a move flips, as of fusion decisions."""
_SEARCHES = {"annealing": annealing, "random_walk": random_walk, "independent": independent}
_STRENGTH = 0.5
"""Of the ridge regression that explains logarithms of times by placements."""
_FIRST = 32
"""Executions from which rewards are fitted first; then from twice as many, and so on."""


class PlacementSpace:
    """Placements that keep a limit; the energy of one is its predicted time over that of the proven plan."""

    def __init__(self, graph: CountedGraph, profile: Profile, limit_bytes: int, plan_us: float) -> None:
        """Take a step whose kernels have one implementation each."""
        self._graph, self._profile = graph, profile
        self._limit_bytes, self._plan_us = limit_bytes, plan_us
        self._tensors = {tensor.name: tensor for tensor in graph.movable}
        self._operands = [frozenset(graph.slots_of(kernel)) for kernel in graph.kernels]
        self._times_us: list[dict[Placement, float]] = [{} for _ in graph.kernels]

    @property
    def initial(self) -> Placement:
        """What is there first is in fast memory, as long as it fits."""
        return self.fitted(self._tensors)

    def neighbour(self, state: Placement, draw: random.Random) -> Placement:
        """Return a placement with three tensors flipped; others leave fast memory where the limit asks for it."""
        flipped = draw.sample(sorted(self._tensors), min(_FLIPPED, len(self._tensors)))
        kept = sorted(state.difference(flipped))
        draw.shuffle(kept)
        return self.fitted([*(name for name in flipped if name not in state), *kept])

    def drawn(self, draw: random.Random) -> Placement:
        """Return a placement with a random share of all tensors in fast memory, as far as they fit."""
        share, names = draw.random(), sorted(self._tensors)
        draw.shuffle(names)
        return self.fitted(name for name in names if draw.random() < share)

    def chosen(self, choose: Callable[[str, Sequence[Tier]], Tier]) -> Placement:
        """Return the placement that choices ask for, as far as it fits."""
        return self.fitted([name for name in self._tensors if choose(name, [*Tier]) is Tier.FAST])

    def energy(self, state: Placement) -> float:
        """Return the predicted time of a placement over that of the proven plan."""
        total_us = 0.0
        for index, operands in enumerate(self._operands):
            slow = operands - state
            known = self._times_us[index]
            if slow not in known:
                known[slow] = self._profile.time_us(self._graph, self._graph.kernels[index], slow)
            total_us += known[slow]
        return total_us / self._plan_us

    def fitted(self, names: Iterable[str]) -> Placement:
        """Return the placement of an order of tensors: each is fast if the limit is kept with those before it."""
        used = np.zeros(len(self._graph.kernels), np.int64)
        taken = set()
        for name in names:
            tensor = self._tensors[name]
            during = used[tensor.live.start : tensor.live.stop]
            if during.max(initial=0) + tensor.allocated_bytes <= self._limit_bytes:
                during += tensor.allocated_bytes
                taken.add(name)
        return frozenset(taken)

    def rewarded(self, states: Sequence[Placement], ratios: Sequence[float]) -> Placement:
        """Return the placement that rewards ask for: those of most worth by byte and kernel come first."""
        rows = [{name: Tier.FAST if name in state else Tier.SLOW for name in self._tensors} for state in states]
        matrix, pairs = design(rows, 1.0)
        fit = Ridge(alpha=_STRENGTH, fit_intercept=False).fit(matrix, benefits(np.array(ratios), Target.LOG, "mean"))
        worth = dict.fromkeys(self._tensors, 0.0)
        for (name, tier), weight in zip(pairs, fit.coef_, strict=True):
            worth[name] += weight if tier is Tier.FAST else -weight
        held = {name: max(tensor.allocated_bytes * len(tensor.live), 1) for name, tensor in self._tensors.items()}
        gaining = [name for name in self._tensors if worth[name] > 0]
        return self.fitted(sorted(gaining, key=lambda name: -worth[name] / held[name]))


def searched(
    graph: CountedGraph,
    profile: Profile,
    links: Links,
    limit: Limit,
    options: SolveOptions,
    *,
    evaluations: int,
    seeds: Sequence[int],
) -> PlacementSearch:
    """Return how near each search, and the rewards of random placements, come to the plan of least time.

    Args:
        graph: the step; only the default implementation of each kernel is looked at.
        profile: its kernels' times.
        links: copies between the memories.
        limit: of fast memory.
        options: of the solver.
        evaluations: of each search.
        seeds: a search for each.

    Raises:
        InfeasibleLimitError: nothing keeps the limit.
    """
    plain = CountedGraph(graph.computed_by(()))
    plan = solve(plain, profile, links, "static", limit, options)
    limit_bytes = limit.fast_bytes(plain.peak_live_bytes, fixed_bytes(plain))
    space = PlacementSpace(plain, profile, limit_bytes, plan.objective_us)
    curves = [
        _curve(name, seed, (one.energy for one in search(space, evaluations, seed)))
        for seed, (name, search) in itertools.product(seeds, _SEARCHES.items())
    ]
    curves += [_curve("rewards", seed, _by_rewards(space, evaluations, seed)) for seed in seeds]
    return PlacementSearch(
        plain.network,
        plain.scale,
        limit,
        len(plain.movable),
        len(plain.kernels),
        plan.objective_us,
        plan.bound_us,
        space.energy(frozenset()),
        space.energy(space.initial),
        tuple(curves),
    )


def _by_rewards(space: PlacementSpace, evaluations: int, seed: int) -> Iterator[float]:
    """Yield the energies of random placements, and of what rewards ask for whenever there are twice as many."""
    states, ratios, due = [], [], _FIRST
    for one in independent(space, evaluations, seed):
        states.append(one.proposal)
        ratios.append(one.energy)
        yield one.energy
        if len(states) == due:
            due *= 2
            yield space.energy(space.rewarded(states, ratios))


def _curve(algorithm: str, seed: int, energies: Iterable[float]) -> PlacementCurve:
    """Return the evaluations after which a search had something better, and what."""
    best, improved = math.inf, []
    count = 0
    for count, energy in enumerate(energies, 1):
        if energy < best:
            best = energy
            improved.append((count, energy))
    return PlacementCurve(algorithm, seed, count, tuple(improved))
