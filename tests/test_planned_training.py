"""Planned steps with states and clipped gradients compute what the plain step does, bit for bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import small_step

import autotm
from autotm import zoo

FAST = {"step_s": 0.2, "min_repeats": 2, "patience_s": 1.0, "step_tolerance": 1000.0}
TRAINING = autotm.Training(autotm.AdamW(1e-3), clip_norm=1.0)
SIZES = {"mlp": {"batch": 16, "width": 256}, "transformer": {"batch": 1, "sequence": 8, "vocabulary": 500}}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["mlp", pytest.param("transformer", marks=pytest.mark.slow)])
def test_adamw_with_clipping_at_a_fifth_of_the_memory(name: str, results: Path) -> None:
    network = dataclasses.replace(zoo.build(name, SIZES[name]), training=TRAINING)
    step = autotm.prepare(network, machine=small_step.machine(), profile=FAST, results=results)
    placed = step.plan("4:1", "synchronous", gap=0.1, time_limit_s=60)
    assert placed.program.fast_bytes <= step.peak_bytes / 5
    states = {"step", *(f"{each}.{moment}_moment" for each in network.parameters for moment in ("first", "second"))}
    assert states <= {stay.tensor for stay in placed.plan.stays}
    record = placed.run(min_seconds=0.0, patience_s=1.0, verify_steps=3, poison=True)
    assert record.verified_steps == 3
