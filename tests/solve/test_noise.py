"""Plans made from noisy profiles: what they promise is unbiased, and noise chooses no implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noisy_profiles import QUIET, Noise, Truth, random_truth

from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.model.profile import SURE_ERRORS, TIE_NS, Profile
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.problem import Problem
from autotm.solve.recheck import plan_us

DRAWS = 40
"""What profiling goes on in: runs of 1.5 % settle a median of nine to 0.6 %."""
LOUDEST = Noise(run=0.015, minute=0.1, hits=0.1)
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
    found = []
    for number in range(DRAWS):
        profile = truth.profile(noise, (number,), emulated=emulated)
        plan = solve(truth.graph, profile, truth.links, optimizer, limit, SolveOptions())
        predicted = 1 + (plan.objective_us - all_fast_us(truth, profile)) / base_us
        found.append(predicted / (true_us(truth, plan) / base_us) - 1)
    return np.array(found)


@pytest.mark.parametrize("emulated", [False, True])
def test_predicted_slowdowns_are_unbiased_where_all_is_slow(*, emulated: bool) -> None:
    found = errors(random_truth(0, 6), LOUDEST, "all-slow", Limit(1, 0), emulated=emulated)
    assert abs(found.mean()) < 0.01


@pytest.mark.parametrize(("optimizer", "emulated"), [("static", False), ("synchronous", True)])
def test_predicted_slowdowns_are_unbiased_though_plans_choose_what_looks_cheap(
    optimizer: str, *, emulated: bool
) -> None:
    found = errors(random_truth(0, 6), LOUDEST, optimizer, Limit(3, 1), emulated=emulated)
    assert abs(found.mean()) < 0.01


@pytest.mark.slow
@settings(max_examples=6)  # An example is 40 profiles and plans.
@given(
    seed=st.integers(0, 1000),
    noise=noises,
    emulated=st.booleans(),
    placed=st.sampled_from([("all-slow", Limit(1, 0)), ("static", Limit(3, 1)), ("synchronous", Limit(3, 1))]),
)
def test_they_are_unbiased_in_any_noise(seed: int, noise: Noise, placed: tuple[str, Limit], *, emulated: bool) -> None:
    found = errors(random_truth(seed, 7), noise, *placed, emulated=emulated)
    assert abs(found.mean()) < 0.01


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
        found = [drawn.extra_us(step, kernel, name) for kernel in step.kernels for name in step.slots_of(kernel)]
        extras.append(sum(found))
        clipped.append(sum(max(0.0, us) for us in found))
    step = truth.graph.computed_by(())
    true = sum(profile.extra_us(step, kernel, name) for kernel in step.kernels for name in step.slots_of(kernel))
    base_us = all_fast_us(truth, profile)
    assert np.mean(extras) == pytest.approx(true, abs=0.01 * base_us)
    assert np.mean(clipped) > true + 0.01 * base_us
