"""Kernel times as they might have been: drawn from the spread that the profile recorded."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autotm.model.profile import Profile, Timing
from autotm.profile.timing import NORMAL_QUARTILES


def spread(timing: Timing) -> float:
    """Standard deviation of the logarithm of a time: that of the lognormal with the recorded quartiles."""
    return math.log(timing.upper_quartile_ns / max(timing.lower_quartile_ns, 1)) / NORMAL_QUARTILES


def resampled(profile: Profile, seed: int, number: int) -> Profile:
    """Draw `number` of the times: each median times a lognormal factor around one, as wide as the recorded quartiles.

    A (kernel, implementation, configuration) has one factor, which all its calls share, independent of all others. That
    is more noise than plans meet: a recorded median is surer than a single run, and configurations of one kernel were
    timed in turn, so that what disturbed one disturbed the others.
    """
    random = np.random.default_rng((seed, number))
    keys = sorted(profile.timings)
    normals = random.standard_normal(len(keys)).tolist()
    drawn = {
        key: replace(timing, median_ns=max(1, round(timing.median_ns * math.exp(spread(timing) * normal))))
        for key, timing, normal in zip(keys, map(profile.timings.__getitem__, keys), normals, strict=True)
    }
    return replace(profile, timings=drawn)
