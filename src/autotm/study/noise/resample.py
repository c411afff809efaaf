"""Kernel times as they might have been: drawn from the spread that the profile recorded."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autotm.model.measurement import Profile, Timing, TimingKey
from autotm.profile.timing import NORMAL_QUARTILES


def spread(timing: Timing) -> float:
    """Standard deviation of the logarithm of a time: that of the lognormal with the recorded quartiles."""
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
    return replace(
        profile,
        timings={key: _drawn(profile, key, normal) for key, normal in zip(keys, normals, strict=True)},
    )


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
