"""The program `autotm` as a process: its messages, Ctrl-C at any moment, a folder for its temporary files."""

from __future__ import annotations

import _thread
import contextlib
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# How messages look on a terminal; elsewhere they are plain.

_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red"}


class TerminalHandler(logging.Handler):
    """Writes each message to standard error, behind the program's name; warnings and errors are coloured.

    Without a terminal, or where the environment has NO_COLOR (no-color.org), there are no colours.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        import click  # noqa: PLC0415 - Ctrl-C is heard once this module is there, and click takes a while

        try:
            head = click.style("autotm:", fg=_COLOURS.get(record.levelno), bold=record.levelno >= logging.ERROR)
            click.echo(f"{head} {self.format(record)}", err=True, color=False if os.environ.get("NO_COLOR") else None)
        except Exception:  # noqa: BLE001 - a message that cannot be written must not end a measurement
            self.handleError(record)


# Ctrl-C while a command runs: it is taken once, and pressed again where compiled code has lost it.

_ENOUGH_S = 1.0
"""Seconds after a Ctrl-C in which another one is ignored: it would only interrupt the clearing up."""
_AGAIN_S = 0.005

_STANDARD_ERROR = 2

SIGINT = {signal.SIGINT}


class Interrupts:
    """A handler of SIGINT that raises `KeyboardInterrupt` in the main thread.

    Attributes:
        pressed: whether that was done; what ends a command afterwards is its consequence, whatever it calls itself.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._pressed_s = -math.inf
        self._errors: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's signature
        """Raise, but for what follows at once.

        Raises:
            KeyboardInterrupt: always, but for what follows at once.
        """
        now_s = time.monotonic()
        if now_s - self._pressed_s >= _ENOUGH_S:
            self.pressed, self._pressed_s = True, now_s
            self._hush()
            raise KeyboardInterrupt

    def take(self) -> None:
        """Become the handler from now on, unless SIGINT is ignored, as a shell has it for what runs behind it."""
        self.pressed, self._pressed_s = False, -math.inf
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self)
            sys.unraisablehook = self._unraisable

    @contextmanager
    def aloud(self) -> Iterator[None]:
        """Within it standard error is what it was before Ctrl-C, after which nobody wants to read of how things end."""
        if self._errors is not None:
            os.dup2(self._errors, _STANDARD_ERROR)
        try:
            yield
        finally:
            if self._errors is not None:
                self._hush()

    def _hush(self) -> None:
        """Compiled code complains of what it was torn out of, and writes that to standard error itself."""
        if self._errors is None:
            self._errors = os.dup(_STANDARD_ERROR)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STANDARD_ERROR)
        os.close(nowhere)

    def _unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """An exception that compiled code could not pass on; Python itself would print it and go on."""
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(lost)
            return
        self._pressed_s = -math.inf
        again = threading.Timer(_AGAIN_S, _thread.interrupt_main)
        again.daemon = True
        again.start()


interrupts = Interrupts()


# The program `autotm`: a command with temporary files in a folder of its own, and Ctrl-C at any moment is one line.

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
