"""Ctrl-C at any moment of any command: one line, exit status 130, whole files, nothing left over, and it can go on.

Before the command, within it (compiled code too), and after it; in a process that has imported everything, and in fresh
ones, which are interrupted while they import.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import prepared_study
import pytest
from command_server import CommandServer, Ended
from misuse_cases import COMMANDS, Command

from autotm.cli.main import DONE, INTERRUPTED, INTERRUPTED_TEXT

MOMENTS = int(os.environ.get("AUTOTM_INTERRUPTS", "5"))
"""Of each command, half as many of one that takes long; more of them to look for what is rare."""
MOST_S = 15.0
MESSAGE = f"autotm: {INTERRUPTED_TEXT}"
EACH = [
    pytest.param(
        command,
        id=name,
        marks=[pytest.mark.skip(f"needs {command.needs}")] if command.lacks else [],
    )
    for name, command in COMMANDS.items()
]


def moments(seconds: float) -> list[float]:
    """From the very first to just after the end, or `MOST_S`; a random one in each part."""
    draw = random.Random()
    parts = MOMENTS if seconds <= MOST_S else (MOMENTS + 1) // 2
    part_s = min(1.1 * seconds, MOST_S) / parts
    return [0.0, *(draw.uniform(part, part + 1) * part_s for part in range(parts))]


def require_one_line(ended: Ended, moment_s: float) -> None:
    assert ended.status in {DONE, INTERRUPTED}, (moment_s, ended)
    assert ended.left == 0, (moment_s, ended)
    lines = ended.errors.splitlines()
    assert all(line.startswith("autotm: ") for line in lines), (moment_s, ended.errors)
    assert lines.count(MESSAGE) == (ended.status == INTERRUPTED), (moment_s, ended)
    if ended.status == INTERRUPTED:
        assert lines[-1] == MESSAGE


def fresh(prepared: Path, study: Path) -> Path:
    """The study as it was made, but that `profile` compiles again."""
    shutil.rmtree(study, ignore_errors=True)
    shutil.copytree(prepared, study)
    for path in (study / "results").glob("*/objects/*"):
        path.unlink()
    return study


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("command", EACH)
def test_an_interrupt_is_one_line_and_what_was_interrupted_goes_on(
    server: CommandServer, prepared: Path, tmp_path: Path, command: Command
) -> None:
    study, call = tmp_path / "study", command.arguments
    seconds, interrupted = command.seconds, 0
    if seconds <= MOST_S:
        seconds = server.call(call, fresh(prepared, study)).seconds
    for moment_s in moments(seconds):
        before = prepared_study.contents(fresh(prepared, study)).keys()
        ended = server.call(call, study, interrupts_s=[moment_s])
        require_one_line(ended, moment_s)
        prepared_study.require_whole(study)
        assert prepared_study.contents(study).keys() >= before
        if ended.status == INTERRUPTED:
            interrupted += 1
            assert ended.seconds < moment_s + MOST_S
            if interrupted == 1 + MOMENTS // 2 and command.seconds <= MOST_S:
                again = server.call(call, study)
                assert again.status == DONE or "there is such a machine" in again.errors, again
    assert interrupted, "it was never interrupted"


def test_an_interrupt_that_is_pressed_again_and_again_is_one_line(server: CommandServer, study: Path) -> None:
    for hurry_s in (0.001, 0.01, 0.1):
        pressed_s = [0.02 + hurry_s * number for number in range(10)]
        ended = server.call(COMMANDS["run"].arguments, study, interrupts_s=pressed_s)
        assert ended.status == INTERRUPTED, ended
        require_one_line(ended, hurry_s)
        prepared_study.require_whole(study)


_PROGRAM = """
import os, signal, sys
from autotm.cli import program
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # What comes before the program begins waits for it.
os.write(1, b"!")
sys.exit(program())
"""


def as_in_a_terminal() -> None:
    """For a new process: what is started behind a shell's & has Ctrl-C ignored, and its children have."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("moment_s", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5])
def test_an_interrupt_while_it_imports_and_while_python_ends_is_one_line(study: Path, moment_s: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *COMMANDS["view"].arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=study, start_new_session=True,
        preexec_fn=as_in_a_terminal,  # noqa: PLW1509
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == "!"
        time.sleep(moment_s)
        os.killpg(process.pid, signal.SIGINT)
        errors = process.stderr.read()
        ended = Ended(process.wait(), moment_s, 0, "", errors)
    require_one_line(ended, moment_s)
    prepared_study.require_whole(study)


def test_what_is_started_with_ctrl_c_ignored_goes_on(study: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *COMMANDS["view"].arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=study, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.read(1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() == DONE


_DROPPED = """
import os, signal, sys, time
import autotm.cli.main as main
from autotm.cli import program
def lose() -> int:
    class Lost:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):
        Lost()
        time.sleep(0.1)
    return 0
main.main = lose
sys.exit(program())
"""


def test_an_interrupt_that_is_lost_where_nothing_can_be_raised_is_pressed_again(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _DROPPED],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=as_in_a_terminal,
    )
    assert ended.stderr == MESSAGE + "\n"
    assert ended.returncode == INTERRUPTED
