"""A step whose true kernel times are known, and profiles of it as a noisy machine would measure them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from random_graphs import make_links, random_case, variants

from autotm.model.files import hash_of
from autotm.model.graph import Configuration, Graph, Implementation, Kernel, Operand, all_fast, configuration
from autotm.model.links import Links
from autotm.model.profile import Profile, Timing, TimingKey
from autotm.profile.kernel_timing import after_a_wait, paired, summary

ROUNDS = 9


@dataclass(frozen=True)
class Noise:
    """What rounds of timing meet, as deviations of the logarithm of a time.

    Attributes:
        run: of each run by itself.
        minute: of all runs of a round alike.
        hits: share of the runs that something displaces, which makes them twice as long on average.
    """

    run: float
    minute: float
    hits: float


QUIET = Noise(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Truth:
    """A step, what its kernels take all fast, and what each slow tensor adds, in nanoseconds."""

    graph: Graph
    links: Links
    base_ns: dict[tuple[str, str], int]
    added_ns: dict[TimingKey, int]

    def profile(self, noise: Noise, seed: Sequence[int] = (), *, emulated: bool) -> Profile:
        """As measured in that noise; slow operands are waits of known length where memory is emulated."""
        draw = np.random.default_rng(seed)
        timings: dict[TimingKey, Timing] = {}
        for index, default in enumerate(self.graph.kernels):
            minutes = np.exp(noise.minute * draw.standard_normal(ROUNDS))
            first = self._runs(default.computed_by(default.implementation), 0, noise, minutes, draw)
            for name in default.implementations:
                step = self.graph.computed_by(
                    [
                        name if place == index else kernel.implementation
                        for place, kernel in enumerate(self.graph.kernels)
                    ]
                )
                kernel = step.kernels[index]
                key = (kernel.identity, kernel.implementation)
                runs = first if name == default.implementation else self._runs(kernel, 0, noise, minutes, draw)
                timing = summary(runs)
                if name != default.implementation:
                    timing = replace(paired(runs, first), default_identity=default.identity)
                timings[*key, all_fast(kernel)] = timing
                for tensor in step.slots_of(kernel):
                    config = configuration(step, kernel, {tensor})
                    added_ns = self.added_ns[*key, config]
                    slow = paired(self._runs(kernel, added_ns, noise, minutes, draw), runs)
                    timings[*key, config] = after_a_wait(timing, added_ns) if emulated else slow
        return Profile(hash_of(self.graph), timings, {})

    def _runs(
        self, kernel: Kernel, added_ns: int, noise: Noise, minutes: np.ndarray, draw: np.random.Generator
    ) -> list[int]:
        time_ns = self.base_ns[kernel.identity, kernel.implementation] + added_ns
        own = np.exp(noise.run * draw.standard_normal(ROUNDS))
        hit = 1 + (draw.random(ROUNDS) < noise.hits) * draw.exponential(1.0, ROUNDS)
        return [round(value) for value in time_ns * minutes * own * hit]


def random_truth(seed: int, kernels: int = 12) -> Truth:
    """A random step; kernels with a workspace have a lean implementation, by up to 3 % faster or 8 % slower.

    A third of the slow operands costs next to nothing, which is what differences of noisy times show worst.
    """
    draw = random.Random(seed)
    graph = random_case(seed, kernels, max_elements=4000).graph
    graph = replace(graph, kernels=tuple(_with_lean(kernel) for kernel in graph.kernels))
    base_ns: dict[tuple[str, str], int] = {}
    added_ns: dict[tuple[str, str, Configuration], int] = {}
    for index, step in variants(graph):
        kernel, default = step.kernels[index], graph.kernels[index]
        key = (kernel.identity, kernel.implementation)
        whole = base_ns.get((default.identity, default.implementation))
        base_ns[key] = draw.randint(20_000, 400_000) if whole is None else round(whole * draw.uniform(0.97, 1.08))
        for name in step.slots_of(kernel):
            rate = draw.choice((0.0, 1.0, 10.0))
            added_ns[*key, configuration(step, kernel, {name})] = round(rate * step.by_name[name].size_bytes)
    return Truth(graph, make_links(2.9, 1.2), base_ns, added_ns)


def _with_lean(kernel: Kernel) -> Kernel:
    if not kernel.workspaces:
        return kernel
    space = Operand(f"{kernel.name}_lean", (16,), "float32")
    lean = Implementation("lean", f"{kernel.function}_lean", f"{kernel.identity}_lean", (space,))
    return replace(kernel, alternatives=(lean,))
