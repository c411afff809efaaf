"""How much work something is, whatever else the machine does meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, that `work` makes in this thread: they grow as its complexity does."""
    calls, before = 0, sys.getprofile()

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
