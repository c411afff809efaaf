"""Time without disturbance: waiting to a deadline as no sleep does, and measuring without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns


def wait_until(deadline_ns: int) -> None:
    """Busy-wait until `perf_counter_ns` reaches `deadline_ns`; returns at once when it has passed."""
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
