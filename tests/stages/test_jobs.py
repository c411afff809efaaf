"""Why a job failed: one line with a remedy, kept beside its log; and the process that waits for a job.

A job's status comes through, its death is told, and it never outlives whoever waits for it.
"""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
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
    (tmp_path / "run.failure.json").write_text("{", encoding="utf-8")  # damaged
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


# A job in a child process.

LONG_S = 100.0
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from autotm.stages.jobs import supervised

def job(work):
    supervised(lambda number: print("killed by", number, flush=True))
    Path("child").write_text(str(os.getpid()))
    exec(work)

{}
"""
JOB = "job({!r})"
"""A process that is one job."""
SEVERAL = """
for number, work in enumerate({!r}):
    if not (process := os.fork()):
        os.dup2(os.open(f"output{{number}}", os.O_WRONLY | os.O_CREAT), 1)
        job(work)
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    print(status, Path(f"output{{number}}").read_text().strip(), flush=True)
"""
"""A job in a fork each, since a process takes a second to import what a job needs."""


def start(folder: Path, program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(program)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def child_of(folder: Path) -> int:
    file, deadline = folder / "child", time.monotonic() + LONG_S
    while not (file.exists() and file.read_text(encoding="ascii")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(file.read_text(encoding="ascii"))


def test_the_status_comes_through_and_a_signal_is_told(tmp_path: Path) -> None:
    signals = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
    works = ["", "sys.exit(3)", "raise ValueError", *(f"os.kill(os.getpid(), {int(number)})" for number in signals)]
    output, _ = start(tmp_path, SEVERAL.format(works)).communicate(timeout=LONG_S)
    killed = [f"{128 + number} killed by {int(number)}" for number in signals]
    assert [line.strip() for line in output.splitlines()] == ["0", "3", "1", *killed]


def test_a_request_to_end_is_passed_on(tmp_path: Path) -> None:
    process = start(tmp_path, JOB.format("time.sleep(600)"))
    child_of(tmp_path)
    process.terminate()
    output, _ = process.communicate(timeout=LONG_S)
    assert (process.returncode, output) == (128 + signal.SIGTERM, f"killed by {int(signal.SIGTERM)}\n")


def test_the_worker_ends_with_the_one_that_waits(tmp_path: Path) -> None:
    process = start(tmp_path, JOB.format("time.sleep(600)"))
    child = child_of(tmp_path)
    process.kill()
    process.wait(timeout=LONG_S)
    deadline = time.monotonic() + LONG_S
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
