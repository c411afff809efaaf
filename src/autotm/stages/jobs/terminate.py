"""A study that is asked to end (Ctrl-C, SIGTERM) ends its jobs too: Snakemake itself would wait until they are done."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from types import FrameType

_AGAIN_S = 0.1
"""Jobs that were just being started are found the next time."""
_BY_THEMSELVES_S = 2.0
"""Ctrl-C reaches the jobs too. Python may lose it while it imports; what still runs after so long is ended."""


def end_jobs_when_asked() -> None:
    """From now on SIGTERM, and SIGINT after a while, also end all processes below this one, until it ends itself.

    What these signals did before they still do; one that is ignored, as SIGINT behind nohup, still is. Call it in the
    main thread, after Snakemake's scheduler has set its own handlers.
    """
    _end_jobs_on(signal.SIGTERM, after_s=0.0)
    _end_jobs_on(signal.SIGINT, after_s=_BY_THEMSELVES_S)


def _end_jobs_on(number: signal.Signals, after_s: float) -> None:
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        return

    def end(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=_end_jobs, args=[after_s], daemon=True).start()
        if callable(before):
            before(number, frame)

    signal.signal(number, end)


def _end_jobs(after_s: float) -> None:
    import psutil  # jobs must not wait for it

    time.sleep(after_s)
    while True:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        time.sleep(_AGAIN_S)
