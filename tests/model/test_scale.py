"""A scale shortens what the study says, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotm.model.config import ProfileConfig, RunConfig, load_scale, scale_named
from autotm.model.errors import BadInputError

SCALES = Path(__file__).parents[2] / "config" / "scales"


def test_a_scale_shortens_what_the_study_says_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "short.yaml"
    file.write_text("description: x\nnetworks: {mlp: {batch: 2}}\nmeasuring: 0.25\nmemory_mb: 1\nminutes: 1\n", "utf-8")
    scale = load_scale(file)
    run, profile = RunConfig(min_seconds=8.0, patience_s=4.0), ProfileConfig(step_s=12.0, kernel_s=0.4, patience_s=2.0)
    assert scale.of_run(run) == RunConfig(min_seconds=2.0, patience_s=1.0)
    assert scale.of_profile(profile) == ProfileConfig(step_s=3.0, kernel_s=0.1, patience_s=0.5)
    assert (run.min_seconds, profile.step_s, profile.kernel_s) == (8.0, 12.0, 0.4)


@pytest.mark.parametrize("share", ["0", "1.5", "much"])
def test_a_share_that_is_none_is_refused(tmp_path: Path, share: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(f"description: x\nnetworks: {{}}\nmeasuring: {share}\nmemory_mb: 1\nminutes: 1\n", "utf-8")
    with pytest.raises(BadInputError, match="measuring"):
        load_scale(file)


def test_the_scales_at_hand_measure_as_the_study_says_but_for_the_tiny_one() -> None:
    shares = {file.stem: load_scale(file).measuring for file in SCALES.glob("*.yaml")}
    assert shares.pop("tiny") < 1
    assert set(shares.values()) == {1.0}
    assert scale_named(SCALES, "tiny-batch-4").measuring == load_scale(SCALES / "tiny.yaml").measuring
