"""Calls `autotm` or `snakemake` in forks of a process that has imported everything: a call takes what its work takes.

As a program it is that process: it answers calls one by one. It starts no threads, and where it may it has mounts of
its own (`mounts`), which are gone when it ends. Where asked to, one fork answers calls in turn, which is for those
whose end is all that matters: each leaves its modules and caches to the next.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn, Self

MODULES = {
    "autotm": (
        "matplotlib.backends.backend_agg", "omnimalloc", "pandas", "pyarrow.parquet", "pyomo.environ", "seaborn", "tvm",
    ),
    "snakemake": ("autotm.stages.jobs", "autotm.study.setup", "autotm.zoo", "pandas", "smart_open", "snakemake.cli"),
}  # fmt: skip
"""What a program imports sooner or later."""
DEADLINE_S = 200.0
OWN_MOUNTS = ("unshare", "--mount") if os.getuid() == 0 else ("unshare", "--mount", "--map-root-user")


def mounts_allowed() -> bool:
    """Whether this user may make mounts that others do not see."""
    return subprocess.run([*OWN_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False).returncode == 0


@dataclass(frozen=True)
class Press:
    """When Ctrl-C is pressed: for the process and all that it started, as a terminal does.

    Attributes:
        event: what the process is about to do, as Python's audit events name it, or "any"; "" for at once, before the
            program takes signals.
        argument: part of the event's first argument.
        after: as many of these events.
        times: how often; all but the first time at whatever it does next.
    """

    event: str = ""
    argument: str = ""
    after: int = 0
    times: int = 1


@dataclass(frozen=True)
class Signal:
    """A signal from outside.

    Attributes:
        number: of the signal.
        file: whose appearance it is sent at.
        is_for_all: it goes to all that the process started, too.
    """

    number: int
    file: str
    is_for_all: bool = True


@dataclass(frozen=True)
class Call:
    """A call of the program.

    Attributes:
        arguments: of the program.
        folder: that it is called in.
        environment: variables that it has besides.
        output: the file that is its standard output; None for a pipe whose reader is gone.
        errors: the file that is its standard error; None for that of its output.
        press: when Ctrl-C is pressed.
        ignored: Ctrl-C is ignored, as a shell has it for what runs behind it.
        signal: that it gets.
    """

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    output: Path | None
    errors: Path | None
    press: Press | None = None
    ignored: bool = False
    signal: Signal | None = None


@dataclass(frozen=True)
class Ended:
    """How a call ended.

    Attributes:
        status: as a shell reports it; None where it did not end.
        left: how many processes of it are left.
        output, errors: what it wrote.
    """

    status: int | None
    left: int
    output: str = field(default="", repr=True)
    errors: str = field(default="", repr=True)


class CommandServer:
    """The client's side of that process. Use `with`; without, it ends with this process."""

    def __init__(self, program: str = "autotm", *, mounts: bool = False) -> None:
        self._connection, other = Pipe()
        command = [*(OWN_MOUNTS if mounts else ()), sys.executable, __file__, program, str(other.fileno())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[other.fileno()],
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        other.close()
        self._connection.recv()

    def call(
        self,
        arguments: Sequence[str],
        folder: Path,
        output: str | None = "",
        scratch: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        merged: bool = False,
        **how: Any,
    ) -> Ended:
        """Call the program in a folder.

        Args:
            arguments: of the program.
            folder: that it is called in.
            output: as in `Call`; without it standard output is given back.
            scratch: a folder for what it writes elsewhere; else one beside `folder`.
            environment: as in `Call`.
            merged: standard error goes where standard output goes.
            how: `press`, `ignored`, `signal`, as in `Call`.
        """
        scratch = scratch or folder.with_name(f"{folder.name}.scratch")
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "tmp").mkdir(parents=True)
        files = (
            scratch / "output" if output == "" else output and Path(output),
            None if merged else scratch / "errors",
        )
        variables = {"TMPDIR": str(scratch / "tmp"), **(environment or {})}
        ended = self._ask(Call(arguments, folder, variables, *files, **how))
        left = [str(path) for path in (scratch / "tmp").rglob("*")]
        assert not left, f"temporary files that {arguments} left: {left}"
        return Ended(*ended, *(path.read_text(encoding="utf-8") if path and path.is_file() else "" for path in files))

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Meanwhile calls are answered by one process, one after the other."""
        self._ask(None)
        try:
            yield
        finally:
            self._ask(None)

    def shell(self, command: str) -> None:
        """Run a command of the shell where the process's mounts are."""
        done = self._ask(command)
        assert done.returncode == 0, done

    def _ask(self, request: Call | str | None) -> Any:
        self._connection.send(request)
        return self._connection.recv()

    def root(self) -> Path:
        """The file system as that process sees it, its mounts too."""
        return Path(f"/proc/{self._process.pid}/root")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()
        self._process.wait(DEADLINE_S)


def serve(program: str, connection: Connection) -> None:
    """Answer calls until the client is gone; returns, in a fork, to the caller of a program that is to be called.

    It is asked with a `Call`, a command of the shell, or None: a fork answers the calls up to the next None.
    """
    for name in MODULES[program]:
        import_module(name)
    if program == "autotm":
        import_commands()
    else:
        import_module("snakemake.cli").get_argument_parser()  # It imports the plugins.
    import_module("autotm.model.cores").lost_ns = lambda _: 0  # As in conftest: none waits for its neighbours.
    gc.freeze()
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    others = [name for name in threads[1:] if name != "jemalloc_bg_thd"]  # Arrow's, which is forked with care.
    assert not others, f"threads that a fork lacks: {others}"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    connection.send("ready")
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            os._exit(0)
        if isinstance(asked, str):
            connection.send(subprocess.run(asked, shell=True, capture_output=True, text=True, check=False))
        elif child := os.fork():
            connection.send(os.waitpid(child, 0) if asked is None else watched(child, asked))
        elif asked is None:
            answer_in_turn(program, connection)
        else:
            connection.close()
            become(program, asked)
            return


def answer_in_turn(program: str, connection: Connection) -> NoReturn:
    """In a fork: answer calls in this process, until there is none."""
    os.setsid()
    connection.send("ready")
    while (call := connection.recv()) is not None:
        begin(program, call)
        tempfile.tempdir = None  # That of the call before.
        try:
            status: int | None = run(program)
        except BaseException:  # noqa: BLE001 an answer is waited for
            traceback.print_exc()
            status = None
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send((status, left_of(os.getpid(), besides=1)))
    os._exit(0)


def import_commands() -> None:
    """Every command with what it imports at first."""
    import click

    from autotm.cli.main import SECTIONS, autotm

    context = click.Context(autotm)
    for section in SECTIONS.values():
        for name in section:
            autotm.get_command(context, name)
    for name in (
        "lower.lowering",
        "profile.step_profile",
        "runtime.run",
        "solve.placing",
        "study.figures.figures",
        "study.view.page",
        "zoo",
    ):
        import_module(f"autotm.{name}")


def become(program: str, call: Call) -> None:
    """Be the process that a shell would start for the call; SIGINT waits until the program `autotm` takes it."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN if call.ignored else signal.default_int_handler)
    begin(program, call)
    os.closerange(3, 256)
    if program != "autotm":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if call.press:
        press_when(call.press)


def begin(program: str, call: Call) -> None:
    """Have the folder, words, variables and files of the call."""
    os.chdir(call.folder)
    sys.argv = [program, *call.arguments]
    os.environ.update(call.environment)
    if call.output is None:
        reader, output = os.pipe()
        os.close(reader)
    else:
        output = _created(call.output)
    files = [os.open(os.devnull, os.O_RDONLY), output, output if call.errors is None else _created(call.errors)]
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in {*files}:
        os.close(file)


def _created(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


def press_when(press: Press) -> None:
    """From now on watch what this process is about to do, and press Ctrl-C when it is time."""
    process, skipped, left, is_pressing = os.getpid(), press.after, press.times, False

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal skipped, left, is_pressing
        if not left or is_pressing or os.getpid() != process:
            return
        is_next = press.event in {event, "any"} and press.argument in str(arguments[:1])
        if is_next and skipped:
            skipped -= 1
        elif is_next or left < press.times:
            left, is_pressing = left - 1, True
            os.killpg(process, signal.SIGINT)
            is_pressing = False

    if press.event:
        sys.addaudithook(watch)
    else:
        os.killpg(process, signal.SIGINT)


def watched(child: int, call: Call) -> tuple[int | None, int]:
    """Send the child its signal when it is time. Wait for its end."""
    deadline, due = time.monotonic() + DEADLINE_S, call.signal
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code, left_of(child)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None, 0
        if due and next(call.folder.glob(due.file), None):
            (os.killpg if due.is_for_all else os.kill)(child, due.number)
            due = None
        time.sleep(0.002)


def left_of(group: int, besides: int = 0) -> int:
    """How many more processes are in a process group, and stay: what a linker started ends a little later than it."""
    end = time.monotonic() + 20
    while (count := in_group(group) - besides) and time.monotonic() < end:
        time.sleep(0.01)
    return count


def in_group(group: int) -> int:
    """How many processes are in a process group."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        count += int(its_group) == group and state != "Z"
    return count


def run(program: str) -> int:
    """Run the program on `sys.argv`, to its exit status."""
    if program == "autotm":
        from autotm.__main__ import program as main

        return main()
    from snakemake.cli import main as snakemake

    try:
        snakemake(sys.argv[1:])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


if __name__ == "__main__":
    serve(sys.argv[1], Connection(int(sys.argv[2])))
    try:
        status = run(sys.argv[0])
    except BaseException:  # noqa: BLE001 a fork must not go on as a second server
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()  # Where the pipeline tells of failed jobs.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # Python's own end would take apart all that this process has imported.
