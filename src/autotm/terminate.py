"""A study that is asked to end (SIGTERM) ends its jobs too: Snakemake itself would wait until they are done."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from types import FrameType

import psutil

_AGAIN_S = 0.1
"""Jobs that were just being started are found the next time."""


def end_jobs_on_sigterm() -> None:
    """From now on SIGTERM also goes to all processes below this one, until it ends; what it did before it still does.

    Call it in the main thread, after Snakemake's scheduler has set its own handler.
    """
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)
        threading.Thread(target=_end_jobs, daemon=True).start()

    signal.signal(signal.SIGTERM, end)


def _end_jobs() -> None:
    while True:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        time.sleep(_AGAIN_S)
