"""Waiting exactly until a deadline, and timing without garbage collection."""

from __future__ import annotations

import gc
import select
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

_LAST_NS = 20_000
"""The last stretch of a wait holds the interpreter, for precision."""


def wait_until(deadline_ns: int) -> None:
    """Busy-wait until `perf_counter_ns` reaches `deadline_ns`; returns at once when it has passed.

    Copies beside kernels go on meanwhile: a loop keeps the interpreter for 5 ms, a system call lets go of it. This one
    returns at once; sleeping for no time takes 50 us, and yielding gives the core to other processes too.
    """
    while perf_counter_ns() < deadline_ns - _LAST_NS:
        select.select((), (), (), 0)
    while perf_counter_ns() < deadline_ns:
        pass


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """No garbage collection inside: it would interrupt kernels at random."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
