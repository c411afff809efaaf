"""Hands this Python process over to a fork of `server.py`, which has imported already what takes a minute to import.

The guest's processor is a program (QEMU's TCG): `import tvm` takes 40 s there. Where AUTOTM_VM_WARM names the server's
socket, `python SCRIPT ...` and `python -m MODULE ...` ask the server for a fork of itself that runs them with this
process's arguments, environment, folder and open files, pass signals on, and end as it ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _wanted() -> list[str] | None:
    words = sys.orig_argv[1:]
    while words and words[0] in {"-u", "-B"}:
        words = words[1:]
    return words if words and (words[0] == "-m" or not words[0].startswith("-")) else None


def _hand_over(server: str, words: list[str]) -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(server)
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: line.sendall(bytes([number])))
    asked = {"words": words, "environment": dict(os.environ), "folder": str(Path.cwd()), "path": sys.path}
    text = json.dumps(asked).encode()
    socket.send_fds(line, [len(text).to_bytes(4, "big")], [0, 1, 2])
    line.sendall(text)
    status = line.recv(4)
    os._exit(int.from_bytes(status, "big") if len(status) == 4 else 125)


if (_server := os.environ.get("AUTOTM_VM_WARM")) and (_words := _wanted()) is not None:
    _hand_over(_server, _words)
