"""Messages of the program `autotm`, and Ctrl-C at any moment."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
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


# Ctrl-C while a command runs: it is taken once, and again where compiled code has lost it.

_ENOUGH_S = 1.0
"""Seconds after a Ctrl-C in which another one is ignored: it would only interrupt the clearing up."""
_AGAIN_S = 0.005  # seconds until an interrupt that Python lost is raised again


class Interrupts:
    """A handler of SIGINT that raises `KeyboardInterrupt` in the main thread.

    Attributes:
        pressed: whether that was done; what ends a command afterwards is its consequence, whatever it calls itself.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._pressed_s = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's signature
        """Raise KeyboardInterrupt, but for what follows at once."""
        now_s = time.monotonic()
        if number == signal.SIGALRM or now_s - self._pressed_s >= _ENOUGH_S:
            if not self.pressed:
                # Compiled code complains of what it was torn out of, and writes that to standard error itself.
                sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            self.pressed, self._pressed_s = True, now_s
            raise KeyboardInterrupt

    def take(self) -> None:
        """Become the handler from now on, unless SIGINT is ignored, as a shell has it for what runs behind it."""
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self)
            signal.signal(signal.SIGALRM, self)
            sys.unraisablehook = self._unraisable

    def end(self) -> None:
        """Ignore SIGINT from now on, and one that was to come again."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)

    def _unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Report an exception that compiled code could not pass on; Python itself would print it and go on."""
        if issubclass(lost.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        elif not self.pressed:
            sys.__unraisablehook__(lost)


interrupts = Interrupts()

INTERRUPTED = 130
"""The exit status that a shell reports for a program that SIGINT ended."""
INTERRUPTED_TEXT = "interrupted; files are written whole or not at all, and those that are whole are kept"
