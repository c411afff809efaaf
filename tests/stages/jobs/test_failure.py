"""Why a job failed: kept until it starts again, one line with a remedy."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest

from autotm.model.errors import BadInputError
from autotm.stages.jobs import FailedJob, Reason, page

WILDCARDS = {"machine": "laptop-2t", "scale": "tiny", "network": "mlp", "optimizer": "static", "limit": "8to1"}


def test_a_reason_lies_beside_the_log(tmp_path: Path) -> None:
    log, reason = tmp_path / "deep" / "run.log", Reason("a fault", "mend it")
    reason.leave(log)
    assert FailedJob.read("run", WILDCARDS, log).reason == reason
    assert FailedJob.read("run", WILDCARDS, tmp_path / "run.log").reason.why == "it ended without a word"


def test_a_damaged_reason_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.failure.json").write_text("{", encoding="utf-8")
    assert FailedJob.read("run", {}, tmp_path / "run.log").reason.why == "it ended without a word"


@pytest.mark.parametrize(
    ("wildcards", "title"),
    [
        (WILDCARDS, "run: mlp, static, limit 8:1 (tiny, laptop-2t)"),
        (WILDCARDS | {"limit": "4500MB"}, "run: mlp, static, limit 4500MB (tiny, laptop-2t)"),
        ({"machine": "laptop-2t"}, "run (laptop-2t)"),
        ({"folder": "figures", "figure": "fig10"}, "run: fig10"),
        ({}, "run"),
    ],
)
def test_the_title_says_which_job(wildcards: dict[str, str], title: str) -> None:
    assert FailedJob("run", wildcards, Path("run.log"), Reason("", "")).title == title


@pytest.mark.parametrize(
    ("error", "why", "remedy"),
    [
        (BadInputError("limit:\n  too small; ask for 8:1"), "limit: too small; ask for 8:1", "as it says"),
        (MemoryError(), "no memory was left", "smaller scale or batch"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), "No space left on device", "make room"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero", "a fault of autotm"),
    ],
)
def test_what_ended_a_job_is_one_line_with_a_remedy(error: Exception, why: str, remedy: str) -> None:
    reason = Reason.of(error)
    assert why in reason.why
    assert "\n" not in reason.why
    assert remedy in reason.remedy


@pytest.mark.parametrize(
    ("number", "why", "remedy"),
    [
        (signal.SIGKILL, "killed by signal 9 (SIGKILL)", "memory runs out"),
        (signal.SIGTERM, "killed by signal 15 (SIGTERM)", "time limit"),
        (signal.SIGSEGV, "killed by signal 11 (SIGSEGV)", "compiled code failed"),
        (60, "killed by signal 60 (unknown)", "compiled code failed"),
    ],
)
def test_a_signal_is_named_with_a_remedy(number: int, why: str, remedy: str) -> None:
    assert Reason.of_signal(number).why == why
    assert remedy in Reason.of_signal(number).remedy


def test_an_interrupted_study_says_what_is_done() -> None:
    lines = page([], 3, 9, ["figures/fig7.pdf"], ["figures/fig10.pdf"]).splitlines()
    assert "autotm: interrupted" in lines
    assert lines[-3:] == [
        "3 of 9 jobs are done; the same command does the rest, and none of these again.",
        "made: figures/fig7.pdf",
        "not made: figures/fig10.pdf",
    ]
