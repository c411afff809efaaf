"""Calls the program `autotm` in forks of a process that has imported everything: a call takes what its command takes.

As a program it is that process: it reads a call a line from standard input, and answers with a line each. It starts no
threads, and where it may it has mounts of its own (`mounts`), which are gone when it ends.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Self

MODULES = (
    "matplotlib.backends.backend_agg",
    "omnimalloc",
    "pandas",
    "pyarrow.parquet",
    "pyomo.environ",
    "seaborn",
    "tvm",
)
DEADLINE_S = 200.0
OWN_MOUNTS = ("unshare", "--mount") if os.getuid() == 0 else ("unshare", "--mount", "--map-root-user")


def mounts_allowed() -> bool:
    """Whether this user may make mounts that others do not see."""
    return subprocess.run([*OWN_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False).returncode == 0


@dataclass(frozen=True)
class Call:
    """A call of `autotm`.

    Attributes:
        arguments: of the program.
        folder: that it is called in.
        temporary: its $TMPDIR.
        output: the file that is its standard output; None for a pipe whose reader is gone.
        errors: the file that is its standard error.
        interrupts_s: when Ctrl-C is pressed, seconds after the fork.
    """

    arguments: Sequence[str]
    folder: str
    temporary: str
    output: str | None
    errors: str
    interrupts_s: Sequence[float] = ()


@dataclass(frozen=True)
class Ended:
    """How a call ended.

    Attributes:
        status: as a shell reports it; None where it did not end.
        seconds: from the fork to the end.
        left: how many processes of it are left.
        output, errors: what it wrote.
    """

    status: int | None
    seconds: float
    left: int
    output: str = field(default="", repr=True)
    errors: str = field(default="", repr=True)


class CommandServer:
    """The client's side of that process. Use `with`."""

    def __init__(self, *, mounts: bool) -> None:
        self._process = subprocess.Popen(
            [*(OWN_MOUNTS if mounts else ()), sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._told()

    def call(
        self,
        arguments: Sequence[str],
        folder: Path,
        output: str | None = "",
        scratch: Path | None = None,
        interrupts_s: Sequence[float] = (),
    ) -> Ended:
        """Call `autotm` in a folder.

        Args:
            arguments: of the program.
            folder: that it is called in.
            output: as in `Call`; without it standard output is given back.
            scratch: a folder for what it writes elsewhere; else one beside `folder`.
            interrupts_s: as in `Call`.
        """
        scratch = scratch or folder.with_name(f"{folder.name}.scratch")
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "tmp").mkdir(parents=True)
        files = {"output": str(scratch / "output") if output == "" else output, "errors": str(scratch / "errors")}
        ended = self.ask(
            call=asdict(Call(arguments, str(folder), str(scratch / "tmp"), **files, interrupts_s=interrupts_s))
        )
        left = [str(path) for path in (scratch / "tmp").rglob("*")]
        assert not left, f"temporary files that {arguments} left: {left}"
        texts = {
            name: Path(path).read_text(encoding="utf-8") if path and Path(path).is_file() else ""
            for name, path in files.items()
        }
        return Ended(**ended, **texts)

    def shell(self, command: str) -> None:
        """Run a command of the shell where the process's mounts are."""
        found = self.ask(shell=command)
        assert found["status"] == 0, (command, found)

    def ask(self, **asked: object) -> dict[str, object]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._told()

    def _told(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()}"
        told: dict[str, object] = json.loads(line)
        return told

    def root(self) -> Path:
        """The file system as that process sees it, its mounts too."""
        return Path(f"/proc/{self.ask(pid=True)['pid']}/root")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)


def serve() -> None:
    """Answer calls until standard input ends; returns, in a fork, to the caller of a command that is to be called."""
    for name in MODULES:
        import_module(name)
    import_commands()
    import_module("autotm.model.machine.cores").lost_ns = lambda _: 0  # As in conftest: none waits for its neighbours.
    gc.freeze()
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    others = [name for name in threads[1:] if name != "jemalloc_bg_thd"]  # Arrow's, which is forked with care.
    assert not others, f"threads that a fork lacks: {others}"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    tell({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        if "call" in asked:
            call = Call(**asked["call"])
            child = os.fork()
            if not child:
                become(call)
                return
            told = watched(child, call.interrupts_s)
        elif "shell" in asked:
            done = subprocess.run(asked["shell"], shell=True, capture_output=True, text=True, check=False)
            told = {"status": done.returncode, "errors": done.stderr}
        else:
            told = {"pid": os.getpid()}
        tell(told)
    os._exit(0)


def tell(told: Mapping[str, object]) -> None:
    """Answer a line."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def import_commands() -> None:
    """Every command with what it imports at first."""
    import click

    from autotm.cli.main import SECTIONS, autotm

    context = click.Context(autotm)
    for section in SECTIONS.values():
        for name in section:
            autotm.get_command(context, name)
    for name in ("lower", "profile.step", "profile.tuning", "runtime", "solve", "study.figures", "study.view", "zoo"):
        import_module(f"autotm.{name}")


def become(call: Call) -> None:
    """Be the process that a shell would start for the call; SIGINT waits until the program takes it."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(call.folder)
    sys.argv = ["autotm", *call.arguments]
    os.environ["TMPDIR"] = call.temporary
    files = [os.open(os.devnull, os.O_RDONLY), _output(call.output), _created(call.errors)]
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(len(files), 256)


def _output(path: str | None) -> int:
    if path is not None:
        return _created(path)
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _created(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


def watched(child: int, interrupts_s: Sequence[float]) -> Mapping[str, object]:
    """Press Ctrl-C when it is time, as a terminal does: for the child and all that it started. Wait for its end."""
    begun, due = time.monotonic(), sorted(interrupts_s)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        now_s = time.monotonic() - begun
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return {"status": code if code >= 0 else 128 - code, "seconds": now_s, "left": left_of(child)}
        if now_s > DEADLINE_S:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"status": None, "seconds": now_s, "left": 0}
        if due and now_s >= due[0]:
            due.pop(0)
            (os.killpg if os.getpgid(child) == child else os.kill)(child, signal.SIGINT)
        time.sleep(0.0005)


def left_of(group: int) -> int:
    """How many processes are in a process group, and stay: what a linker started ends a little later than it."""
    end = time.monotonic() + 1
    while (found := in_group(group)) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def in_group(group: int) -> int:
    """How many processes are in a process group."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        found += int(its_group) == group and state != "Z"
    return found


if __name__ == "__main__":
    serve()
    from autotm.cli import program

    status = program()
    sys.stdout.flush()
    os._exit(status)  # Python's own end would take apart all that this process has imported.
