"""Ctrl-C at any moment of any command: one line, exit status 130, whole files, nothing left over, and it can go on.

It is pressed at what a command is about to do: before it begins, while it reads or writes its files, while a linker
runs, and after it; in a process that has imported everything, and in fresh ones, which are interrupted while they
import.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import prepared_study
import pytest
from command_server import CommandServer, Ended, Press, Signal
from misuse_cases import COMMANDS, Command

from autotm.cli.main import DONE
from autotm.cli.process import INTERRUPTED, INTERRUPTED_TEXT

MESSAGE = f"autotm: {INTERRUPTED_TEXT}"
READS = Press("open", "results/")
OTHERWISE = {
    "bundle": READS,
    "calibrate": Press("subprocess.Popen"),
    "profile": Press("sqlite3.connect"),
    "costs": Press("open", "config/config.yaml"),
    "fusion audit": Press("open", "objects/"),
    "fusion list": Press("open", "config/config.yaml"),
    "fusion run": Press("open", "objects/"),
    "kernels check": Press("open", "config/config.yaml"),
    "kernels import": Press("sqlite3.connect", "elsewhere"),
    "schema": Press(),
}
"""When it is pressed where a command writes no file, half of which could stay, and reads none of a network; and where
writing begins late."""


def moment(name: str, command: Command) -> Press:
    """When a command has begun to write its file, or else to read one."""
    writes = Press("open", f".{Path(command.writes[0]).name.partition('.')[0]}.") if command.writes else READS
    return OTHERWISE.get(name, writes)


EACH = [
    pytest.param(command, moment(name, command), id=name) for name, command in COMMANDS.items() if command.works_here
]


def require_one_line(ended: Ended) -> None:
    assert ended.status == INTERRUPTED, ended
    assert ended.left == 0, ended
    *before, last = ended.errors.splitlines()
    assert last == MESSAGE
    assert all(line.startswith("autotm: ") for line in before), ended.errors
    assert MESSAGE not in before


def make_compile_again(study: Path) -> None:
    for path in (study / "results").glob("*/objects/*"):
        path.unlink()


@pytest.mark.parametrize(("command", "press"), EACH)
def test_an_interrupt_is_one_line_and_what_was_interrupted_goes_on(
    server: CommandServer, study: Path, command: Command, press: Press
) -> None:
    before = prepared_study.contents(study)
    require_one_line(server.call(command.arguments, study, press=press))
    prepared_study.require_whole(study)
    after = prepared_study.contents(study)
    assert after.keys() >= before.keys()
    if after != before and not command.call.startswith("calibrate"):  # it would measure all copies
        again = server.call(command.arguments, study)
        assert again.status == DONE, again


@pytest.mark.slow
@pytest.mark.parametrize("after", [10, 100, 1000, 3000])
@pytest.mark.parametrize(("command", "press"), EACH)
def test_an_interrupt_whatever_it_does_is_one_line(
    server: CommandServer, study: Path, command: Command, press: Press, after: int
) -> None:
    make_compile_again(study)
    del press
    ended = server.call(command.arguments, study, press=Press("any", after=after))
    if ended.status != DONE:
        require_one_line(ended)
    prepared_study.require_whole(study)


def test_an_interrupt_that_is_pressed_again_and_again_is_one_line(server: CommandServer, study: Path) -> None:
    require_one_line(server.call(COMMANDS["run"].arguments, study, press=Press("open", ".record.", times=10)))
    prepared_study.require_whole(study)


def test_an_interrupt_while_a_linker_runs_ends_it_too(server: CommandServer, study: Path) -> None:
    make_compile_again(study)
    linker = study.with_name("linker")
    linker.write_text(f"#!/bin/sh\nmkdir {study}/linking\nexec sleep 100\n", encoding="utf-8")
    linker.chmod(0o755)
    call = COMMANDS["profile"].arguments
    ended = server.call(call, study, environment={"CC": str(linker)}, signal=Signal(signal.SIGINT, "linking"))
    require_one_line(ended)
    prepared_study.require_whole(study)
    again = server.call(call, study)
    assert again.status == DONE, again


def test_what_is_started_with_ctrl_c_ignored_goes_on(server: CommandServer, study: Path) -> None:
    for press in (Press(), Press("open", ".view.")):
        assert server.call(COMMANDS["view"].arguments, study, press=press, ignored=True).status == DONE


_PROGRAM = """
import atexit, os, signal, sys
from autotm.__main__ import program
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # What comes before the program begins waits for it.
moment = sys.argv.pop(1)
def press():
    os.killpg(0, signal.SIGINT)
def watch(event, arguments):
    if event == "import" and arguments[0] == moment:
        press()
if moment == "before":
    press()
elif moment == "after":
    atexit.register(press)
else:
    sys.addaudithook(watch)
sys.exit(program())
"""


def in_a_fresh_process(program: str, folder: Path, *arguments: str) -> Ended:
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, check=False, cwd=folder, start_new_session=True,
        # As in a terminal: what is started behind a shell's & has Ctrl-C ignored, and its children have.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    return Ended(ended.returncode, 0, ended.stdout, ended.stderr)


@pytest.mark.parametrize("moment", ["before", "click", "numpy._core._multiarray_umath"])
def test_an_interrupt_while_it_imports_is_one_line(study: Path, moment: str) -> None:
    require_one_line(in_a_fresh_process(_PROGRAM, study, moment, *COMMANDS["view"].arguments))
    prepared_study.require_whole(study)


def test_an_interrupt_while_python_ends_changes_nothing(tmp_path: Path) -> None:
    ended = in_a_fresh_process(_PROGRAM, tmp_path, "after", "schema")
    assert (ended.status, ended.errors) == (DONE, "")


_LOSES = """
    class Lost:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):
        Lost()
        time.sleep(0.1)
    return 0
"""
_COMPLAINS = """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    except KeyboardInterrupt:
        os.write(2, b"terminated within compiled code")
        raise RuntimeError("what compiled code makes of it")
"""


@pytest.mark.parametrize("does", [_LOSES, _COMPLAINS])
def test_an_interrupt_that_compiled_code_loses_or_complains_of_is_one_line(tmp_path: Path, does: str) -> None:
    program = f"""
import os, signal, sys, time
import autotm.cli.main as main
from autotm.__main__ import program
def command(_):
{does}
main._called = command
sys.exit(program())
"""
    require_one_line(in_a_fresh_process(program, tmp_path))
