"""A job in a child process: its status comes through, its death is told, and it never outlives whoever waits for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LONG_S = 100.0
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from autotm.stages.jobs.supervisor import supervised
supervised(lambda number: print("killed by", number, flush=True))
Path("child").write_text(str(os.getpid()))
{}
"""


def start(folder: Path, work: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(work)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def child_of(folder: Path) -> int:
    file, deadline = folder / "child", time.monotonic() + LONG_S
    while not (file.exists() and file.read_text(encoding="ascii")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(file.read_text(encoding="ascii"))


@pytest.mark.parametrize(("work", "status"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)])
def test_the_status_comes_through(tmp_path: Path, work: str, status: int) -> None:
    process = start(tmp_path, work)
    output, _ = process.communicate(timeout=LONG_S)
    assert (process.returncode, output) == (status, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_signal_is_told(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, f"os.kill(os.getpid(), {int(number)})")
    output, _ = process.communicate(timeout=LONG_S)
    assert (process.returncode, output) == (128 + number, f"killed by {int(number)}\n")


def test_a_request_to_end_is_passed_on(tmp_path: Path) -> None:
    process = start(tmp_path, "time.sleep(600)")
    child_of(tmp_path)
    process.terminate()
    output, _ = process.communicate(timeout=LONG_S)
    assert (process.returncode, output) == (128 + signal.SIGTERM, f"killed by {int(signal.SIGTERM)}\n")


def test_the_worker_ends_with_the_one_that_waits(tmp_path: Path) -> None:
    process = start(tmp_path, "time.sleep(600)")
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
