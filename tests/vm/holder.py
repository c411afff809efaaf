"""Another process that has memory until it is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


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
