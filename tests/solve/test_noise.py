"""Plans made from noisy profiles: what they promise is unbiased, and noise chooses no implementation."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import make_links, random_case, variants

from autotm.model.files import hash_of
from autotm.model.graph import Graph, Implementation, Kernel, Operand, all_fast, configuration
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.plan import Plan
from autotm.model.profile import SURE_ERRORS, TIE_NS, Profile, TimingKey
from autotm.profile.kernel_timing import after_a_wait, paired, summary
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.problem import Problem
from autotm.solve.recheck import plan_us

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
        draw, timings = np.random.default_rng(seed), {}
        minutes = default_runs = np.ones(ROUNDS)

        def timed(time_ns: int) -> list[int]:
            own = np.exp(noise.run * draw.standard_normal(ROUNDS))
            hit = 1 + (draw.random(ROUNDS) < noise.hits) * draw.exponential(1.0, ROUNDS)
            return [round(value) for value in time_ns * minutes * own * hit]

        for index, step in variants(self.graph):
            kernel, default = step.kernels[index], self.graph.kernels[index]
            key, is_default = (kernel.identity, kernel.implementation), kernel.identity == default.identity
            if is_default:
                minutes = np.exp(noise.minute * draw.standard_normal(ROUNDS))
            runs = timed(self.base_ns[key])
            if is_default:
                default_runs, timing = runs, summary(runs)
            else:
                timing = replace(paired(runs, default_runs), default_identity=default.identity)
            timings[*key, all_fast(kernel)] = timing
            for tensor in step.slots_of(kernel):
                config = configuration(step, kernel, {tensor})
                added_ns = self.added_ns[*key, config]
                slow = paired(timed(self.base_ns[key] + added_ns), runs)
                timings[*key, config] = after_a_wait(timing, added_ns) if emulated else slow
        return Profile(hash_of(self.graph), timings, {})


def random_truth(seed: int, kernels: int = 12) -> Truth:
    """A random step; kernels with a workspace have a lean implementation, by up to 3 % faster or 8 % slower.

    A third of the slow operands costs next to nothing, which is what differences of noisy times show worst.
    """
    draw = random.Random(seed)
    graph = random_case(seed, kernels, max_elements=4000).graph
    graph = replace(graph, kernels=tuple(with_lean(kernel) for kernel in graph.kernels))
    base_ns: dict[tuple[str, str], int] = {}
    added_ns: dict[TimingKey, int] = {}
    for index, step in variants(graph):
        kernel, default = step.kernels[index], graph.kernels[index]
        key = (kernel.identity, kernel.implementation)
        whole = base_ns.get((default.identity, default.implementation))
        base_ns[key] = draw.randint(20_000, 400_000) if whole is None else round(whole * draw.uniform(0.97, 1.08))
        for name in step.slots_of(kernel):
            rate = draw.choice((0.0, 1.0, 10.0))
            added_ns[*key, configuration(step, kernel, {name})] = round(rate * step.by_name[name].size_bytes)
    return Truth(graph, make_links(2.9, 1.2), base_ns, added_ns)


def with_lean(kernel: Kernel) -> Kernel:
    space = Operand(f"{kernel.name}_lean", (16,), "float32")
    lean = Implementation("lean", f"{kernel.function}_lean", f"{kernel.identity}_lean", (space,))
    return replace(kernel, alternatives=(lean,)) if kernel.workspaces else kernel


DRAWS = 40
LOUDEST = Noise(run=0.015, minute=0.1, hits=0.1)
"""The most noise that profiling accepts: with runs that scatter by 1.5 %, a median of nine scatters by 0.6 %."""
noises = st.builds(Noise, run=st.floats(0.0, 0.015), minute=st.floats(0.0, 0.1), hits=st.floats(0.0, 0.1))


def all_fast_us(truth: Truth, profile: Profile) -> float:
    return sum(profile.base_us(kernel) for kernel in truth.graph.computed_by(()).kernels)


def true_us(truth: Truth, plan: Plan) -> float:
    """What the plan's step takes without noise."""
    quiet = truth.profile(QUIET, emulated=False)
    return plan_us(Problem(truth.graph, quiet, truth.links, Limit.parse(plan.limit), SolveOptions()), plan)


def errors(truth: Truth, noise: Noise, optimizer: str, limit: Limit, *, emulated: bool) -> np.ndarray:
    """(predicted - true) / true slow-down of the plans made from `DRAWS` profiles, the measured base being the same.

    Predictions add what a placement costs to the measured all-fast step, as figures do.
    """
    base_us = all_fast_us(truth, truth.profile(QUIET, emulated=emulated))
    shares = []
    for number in range(DRAWS):
        profile = truth.profile(noise, (number,), emulated=emulated)
        plan = solve(truth.graph, profile, truth.links, optimizer, limit, SolveOptions())
        predicted = 1 + (plan.objective_us - all_fast_us(truth, profile)) / base_us
        shares.append(predicted / (true_us(truth, plan) / base_us) - 1)
    return np.array(shares)


@pytest.mark.parametrize(
    ("optimizer", "limit", "emulated"),
    [
        *(("all-slow", Limit(1, 0), emulated) for emulated in (False, True)),
        *(("static", Limit(3, 1), False), ("synchronous", Limit(3, 1), True)),
    ],
)
def test_predicted_slowdowns_are_unbiased_though_plans_choose_what_looks_cheap(
    optimizer: str, limit: Limit, *, emulated: bool
) -> None:
    assert abs(errors(random_truth(0, 6), LOUDEST, optimizer, limit, emulated=emulated).mean()) < 0.01


@pytest.mark.slow
@settings(max_examples=6)  # An example is 40 profiles and plans.
@given(
    seed=st.integers(0, 1000),
    noise=noises,
    emulated=st.booleans(),
    placed=st.sampled_from([("all-slow", Limit(1, 0)), ("static", Limit(3, 1)), ("synchronous", Limit(3, 1))]),
)
def test_they_are_unbiased_in_any_noise(seed: int, noise: Noise, placed: tuple[str, Limit], *, emulated: bool) -> None:
    assert abs(errors(random_truth(seed, 7), noise, *placed, emulated=emulated).mean()) < 0.01


@given(seed=st.integers(0, 1000), noise=noises, draw=st.integers(0, 1000))
def test_no_plan_is_slower_than_the_default_implementations_by_more_than_the_noise(
    seed: int, noise: Noise, draw: int
) -> None:
    """With room for everything only the choice of implementations is left."""
    truth = random_truth(seed)
    profile = truth.profile(noise, (draw,), emulated=True)
    plan = solve(truth.graph, profile, truth.links, "static", Limit(0, 1), SolveOptions(gap=0.0))
    noise_ns = 2 * SURE_ERRORS * math.hypot(*(timing.beyond_error_ns for timing in profile.timings.values()))
    lost_us = true_us(truth, plan) - all_fast_us(truth, truth.profile(QUIET, emulated=True))
    assert lost_us <= (noise_ns + len(truth.graph.kernels) * TIE_NS) / 1e3


def test_clipping_at_zero_would_not_have_been_unbiased() -> None:
    """Each operand that costs nothing would seem to cost something, and a step has hundreds."""
    truth, noise = random_truth(7), Noise(0.04, 0.1, 0.1)
    profile, extras, clipped = truth.profile(QUIET, emulated=False), [], []
    for number in range(DRAWS):
        drawn = truth.profile(noise, (number,), emulated=False)
        step = truth.graph.computed_by(())
        extras_us = [drawn.extra_us(step, kernel, name) for kernel in step.kernels for name in step.slots_of(kernel)]
        extras.append(sum(extras_us))
        clipped.append(sum(max(0.0, us) for us in extras_us))
    step = truth.graph.computed_by(())
    true = sum(profile.extra_us(step, kernel, name) for kernel in step.kernels for name in step.slots_of(kernel))
    base_us = all_fast_us(truth, profile)
    assert np.mean(extras) == pytest.approx(true, abs=0.01 * base_us)
    assert np.mean(clipped) > true + 0.01 * base_us
