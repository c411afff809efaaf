"""The program `autotm`: a command with temporary files in a folder of its own, and Ctrl-C at any moment is one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile

from autotm.cli.process.interrupts import SIGINT, interrupts

INTERRUPTED = 130
"""The exit status that a shell reports for a program that SIGINT ended."""
INTERRUPTED_TEXT = "interrupted; files are written whole or not at all, and those that are whole are kept"


def program() -> int:
    """Run the command of `sys.argv`, and nothing else: signals are not as before afterwards.

    Returns:
        The exit status. From then on SIGINT is ignored: the command is done, and Python is on its way out.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGINT)
    interrupts.take()
    folder, status = _temporary_folder(), None
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGINT)
            from autotm.cli.main import main  # noqa: PLC0415 - whoever presses Ctrl-C meanwhile is heard

            status = main()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not (interrupts.pressed or isinstance(error, KeyboardInterrupt)):
            raise
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    if status is None:
        status = INTERRUPTED
        with contextlib.suppress(OSError), interrupts.aloud():
            os.write(2, f"autotm: {INTERRUPTED_TEXT}\n".encode())
    return status


def _temporary_folder() -> str | None:
    """One that this process, and the compilers that it starts, write into; None where there is no place for one."""
    try:
        folder = tempfile.mkdtemp(prefix="autotm-")
    except OSError:  # what needs a temporary file will say so
        return None
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    return folder
