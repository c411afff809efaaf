"""What a person writes: limits, scales, update rules."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from autotm.model.config import ProfileConfig, RunConfig, load_scale, scale_named
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.limit import Limit
from autotm.model.training import Adam, AdamW, Sgd, Training


@pytest.mark.parametrize(
    ("text", "slug", "of_1700"),
    [
        ("16:1", "16to1", 100),
        ("16to1", "16to1", 100),
        ("16 // 1", "16to1", 100),
        ("0:1", "0to1", 1700),
        ("1:0", "1to0", 0),
        ("4500MB", "4500MB", 4_500_000_000),
        ("4.5GB", "4500MB", 4_500_000_000),
        ("4500kB", "4500000B", 4_500_000),
        ("4 GiB", "4294967296B", 4 * 2**30),
        ("1.5KiB", "1536B", 1536),
        ("2MiB", "2097152B", 2 * 2**20),
        ("1TiB", "1099511627776B", 2**40),
        (123, "123B", 123),
        (1.5e9, "1500MB", 1_500_000_000),
        ("0.5x", "1to1", 850),
        ("0.15 x", "17to3", 255),
        ("1x", "0to1", 1700),
        ("0x", "1to0", 0),
        ("11GB-1GB-io", "10000MB-io", 9_999_999_000),
        ("11 GB - 0.8 GB - io", "10200MB-io", 10_199_999_000),
        ("11GB-1GB", "10000MB", 10_000_000_000),
        ("2kB-io", "2000B-io", 1000),
        ("1kB-io", "1000B-io", 0),
    ],
)
def test_a_limit_is_read(text: str | float, slug: str, of_1700: int) -> None:
    limit = Limit.parse(text)
    assert limit.slug == slug
    assert limit.fast_bytes(1700, io_bytes=1000) == of_1700
    assert Limit.parse(slug) == limit


def test_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(InfeasibleLimitError, match=r"alone take 1000 bytes, 1 more; .*counts: all"):
        Limit.parse("999B-io").fast_bytes(0, io_bytes=1000)


@pytest.mark.parametrize(
    "text",
    [
        *("0:0", "-1:2", "8", "4gb", "1.01x", "-0.5x", float("nan"), "4 Gi", "kiB", "4kiB", "1:1.5", "", "nan", -5),
        *("1GB-2GB", "8:1-io", "1GB-io-io", "io", "1GB-"),
    ],
)
def test_what_is_no_limit_is_named(text: str | float) -> None:
    with pytest.raises(BadInputError, match=r"is not a limit|is negative"):
        Limit.parse(text)


def test_a_scale_shortens_what_the_study_says_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "short.yaml"
    file.write_text("description: x\nnetworks: {mlp: {batch: 2}}\nmeasuring: 0.25\nmemory_mb: 1\nminutes: 1\n", "utf-8")
    scale = load_scale(file)
    run, profile = RunConfig(min_seconds=8.0, patience_s=4.0), ProfileConfig(step_s=12.0, kernel_s=0.4, patience_s=2.0)
    assert scale.of_run(run) == RunConfig(min_seconds=2.0, patience_s=1.0)
    assert scale.of_profile(profile) == ProfileConfig(step_s=3.0, kernel_s=0.1, patience_s=0.5)
    assert (run.min_seconds, profile.step_s, profile.kernel_s) == (8.0, 12.0, 0.4)
    assert scale_named(tmp_path, "short-batch-4").measuring == 0.25


@pytest.mark.parametrize("share", ["0", "1.5", "much"])
def test_a_share_that_is_none_is_refused(tmp_path: Path, share: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(f"description: x\nnetworks: {{}}\nmeasuring: {share}\nmemory_mb: 1\nminutes: 1\n", "utf-8")
    with pytest.raises(BadInputError, match="measuring"):
        load_scale(file)


@pytest.mark.parametrize(
    ("rule", "fields", "message"),
    [
        (Sgd, {"learning_rate": -0.1}, "Sgd: learning_rate: -0.1 is not a number of at least 0"),
        (Sgd, {"learning_rate": math.nan}, "Sgd: learning_rate: nan"),
        (Sgd, {"learning_rate": 0.1, "momentum": -1}, "Sgd: momentum: -1"),
        (Sgd, {"learning_rate": 0.1, "dampening": math.inf}, "Sgd: dampening: inf is not a number$"),
        (Sgd, {"learning_rate": 0.1, "weight_decay": -1}, "Sgd: weight_decay: -1"),
        (Sgd, {"learning_rate": 0.1, "nesterov": True}, "needs momentum above 0 and dampening 0"),
        (Adam, {"learning_rate": 0.1, "eps": -1}, "Adam: eps: -1"),
        (Adam, {"learning_rate": 0.1, "betas": (0.9, 1.0)}, r"Adam: betas: \(0.9, 1.0\) are not two numbers in"),
        (AdamW, {"learning_rate": 0.1, "weight_decay": math.inf}, "AdamW: weight_decay: inf"),
        (Training, {"rule": Sgd(0.1), "clip_norm": 0.0}, "Training: clip_norm: 0.0 is not a positive number"),
    ],
)
def test_out_of_range(rule: type, fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        rule(**fields)
