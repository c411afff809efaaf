"""A job in a child process: its status comes through, its death is told, and it never outlives whoever waits for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

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
