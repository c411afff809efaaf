"""A process that waits for the one that works, and tells what that one cannot: which signal killed it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PASSED_ON = {signal.SIGTERM}
_STATUS_OF_SIGNAL = 128
"""A shell's exit status for a process that a signal killed is this and the signal's number."""


def supervised(on_signal: Callable[[int], int | None]) -> None:
    """Go on in a child process; this process waits for it and ends with its status.

    Call it early, before threads and large memory. The child ends with this process. `on_signal` is called here, with
    the number of the signal that killed the child; it may return a status to end with, in place of a shell's for that.
    """
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until there is somebody to pass it on
    child = os.fork()
    if child:
        _wait(child, on_signal)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It died before it could be bound to it.
        os._exit(1)


def _wait(child: int, on_signal: Callable[[int], int | None]) -> None:
    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to both.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        os._exit(code)
    status = on_signal(-code)
    os._exit(_STATUS_OF_SIGNAL - code if status is None else status)
