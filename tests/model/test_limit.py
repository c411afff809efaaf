"""Limits in every form that a person may write."""

from __future__ import annotations

import pytest

from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.limit import Limit


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
    ],
)
def test_a_limit_is_read(text: str | float, slug: str, of_1700: int) -> None:
    limit = Limit.parse(text)
    assert limit.slug == slug
    assert limit.fast_bytes(1700) == of_1700
    assert Limit.parse(slug) == limit


@pytest.mark.parametrize(
    ("text", "slug", "left"),
    [
        ("11GB-1GB-io", "10000MB-io", 9_999_999_000),
        ("11 GB - 0.8 GB - io", "10200MB-io", 10_199_999_000),
        ("11GB-1GB", "10000MB", 10_000_000_000),
        ("2kB-io", "2000B-io", 1000),
        ("1kB-io", "1000B-io", 0),
    ],
)
def test_a_memory_less_what_others_take(text: str, slug: str, left: int) -> None:
    limit = Limit.parse(text)
    assert limit.slug == slug
    assert Limit.parse(slug) == limit
    assert limit.fast_bytes(1700, io_bytes=1000) == left


def test_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(InfeasibleLimitError, match=r"alone take 1000 bytes, 1 more; .*counts: all"):
        Limit.parse("999B-io").fast_bytes(0, io_bytes=1000)


@pytest.mark.parametrize(
    "text",
    [
        "0:0",
        "-1:2",
        "8",
        "4gb",
        "1.01x",
        "-0.5x",
        float("nan"),
        "4 Gi",
        "kiB",
        "4kiB",
        "1:1.5",
        "",
        "nan",
        -5,
        "1GB-2GB",
        "8:1-io",
        "1GB-io-io",
        "io",
        "1GB-",
    ],
)
def test_what_is_no_limit_is_named(text: str | float) -> None:
    with pytest.raises(BadInputError, match=r"is not a limit|is negative"):
        Limit.parse(text)
