"""A function in a fork of this process: for what changes a process for good, may have it killed, or holds memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from autotm.model.errors import AutotmError


def forked(work: Callable[[], object]) -> str:
    """The message of the AutotmError that ends `work`, empty where none does. Fails where the fork was killed."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        status = 0
        try:
            work()
        except AutotmError as error:
            os.write(write, str(error).encode())
        except BaseException as error:  # noqa: BLE001 anything else must not go on as a second pytest
            status = 70
            os.write(write, repr(error).encode())
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status >= 0, f"killed by {signal.Signals(-status).name}"
    assert status == 0, text
    return text


class Holder:
    """A fork of this process in which `take` has returned; what that returned stays referenced."""

    def __init__(self, take: Callable[[], object]) -> None:
        read, write = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                taken = take()
                os.write(write, b"!")
                signal.pause()
                del taken
            finally:
                os._exit(1)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            assert pipe.read(1), "could not take its memory"

    def end(self, number: int) -> None:
        """Send it a signal, and wait until it is gone."""
        os.kill(self.process, number)
        os.waitpid(self.process, 0)
