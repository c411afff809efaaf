"""Ctrl-C while a command runs: it is taken once, and pressed again where compiled code has lost it."""

from __future__ import annotations

import _thread
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENOUGH_S = 1.0
"""What is pressed again so soon would only disturb the clearing up."""
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
