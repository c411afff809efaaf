"""A progress bar on a terminal; without one, a log line now and then. Both tell the time left."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

log = logging.getLogger(__name__)

T = TypeVar("T")

LOG_EVERY_S = 10.0


def track(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Yield `items` while showing how many of `total` are done."""
    if sys.stderr.isatty():
        yield from tqdm(items, desc=what, total=total, file=sys.stderr, unit="kernel", smoothing=0.05)
        return
    start = shown = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - shown >= LOG_EVERY_S:
            shown = now
            left = (now - start) / done * (total - done)
            log.info("%s: %d of %d, %.0f s passed, %.0f s left", what, done, total, now - start, left)
        yield item
    log.info("%s: %d of %d done in %.0f s", what, total, total, time.monotonic() - start)
