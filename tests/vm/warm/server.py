"""A Python process that has imported all that autotm's jobs and tests import, and forks for each: `sitecustomize.py`.

Call: server.py SOCKET. It ends when it is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

IMPORTED = (
    "tvm",
    "pandas",
    "pyomo.environ",
    "highspy",
    "seaborn",
    "snakemake.cli",
    "pytest",
    "autotm.stages",
    "autotm.cli.main",
)


def run(words: list[str], environment: dict[str, str], folder: str, path: list[str]) -> None:
    """In the fork: become the process that asked."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    sys.path[:] = ["" if is_module else str(Path(words[0]).resolve().parent), *path]
    status = 0
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 it is the end of the process, whatever it is
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def asked(line: socket.socket) -> tuple[dict, list[int]]:
    """What a process wants run, and its standard files."""
    size, files, _, _ = socket.recv_fds(line, 4, 3)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += line.recv(1 << 20)
    return json.loads(text), files


def fork(listener: socket.socket, line: socket.socket, others: list[socket.socket]) -> int:
    """Fork for the process at the other end of `line`; the number of the fork."""
    want, files = asked(line)
    if (child := os.fork()) == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for inherited in (listener, line, *others):
            inherited.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 256)
        run(**want)
    for file in files:
        os.close(file)
    return child


def serve(listener: socket.socket) -> None:
    """Fork for each process that asks, for ever. One thread: a fork copies no other."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    lines: dict[int, socket.socket] = {}
    while True:
        ready = select.select([listener, woken, *lines.values()], [], [])[0]
        if listener in ready:
            line = listener.accept()[0]
            lines[fork(listener, line, list(lines.values()))] = line
        if woken in ready:
            os.read(woken, 512)
        for child, line in list(lines.items()):
            if line in ready:
                number = line.recv(1)
                os.kill(child, number[0] if number else signal.SIGKILL)
            if (ended := os.waitpid(child, os.WNOHANG))[0]:
                status = os.waitstatus_to_exitcode(ended[1])
                with contextlib.suppress(OSError):
                    line.sendall((128 - status if status < 0 else status).to_bytes(4, "big"))
                lines.pop(child).close()


def main() -> None:
    os.environ.pop("AUTOTM_VM_WARM", None)
    for name in IMPORTED:
        begun = time.monotonic()
        importlib.import_module(name)
        print(f"imported {name} in {time.monotonic() - begun:.1f} s", flush=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{sys.argv[1]}.new")
    listener.listen(64)
    Path(f"{sys.argv[1]}.new").rename(sys.argv[1])
    serve(listener)


main()
