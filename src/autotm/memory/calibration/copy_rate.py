"""How fast the cores copy within fast memory at best."""

from __future__ import annotations

from functools import partial
from time import perf_counter

import numpy as np
import numpy.typing as npt

from autotm.memory.copying import CopyEngine, caller_on
from autotm.model.machine import Machine, Watch

_BYTES = 128 << 20
"""Larger than the caches of most processors, so that most of it comes from memory."""
_ROUNDS = 7


def copy_bytes_per_s(machine: Machine, watch: Watch, size_bytes: int = _BYTES) -> float:
    """Best rate of a copy by all kernel threads, bytes read plus bytes written a second.

    `watch` judges the copies: those during which others hold the cores are repeated.
    """
    source, destination = (np.ones(size_bytes, np.uint8) for _ in range(2))
    engine = CopyEngine(machine.cpus)
    try:
        with caller_on(machine.cpus[0]):
            seconds = watch.rounds(partial(_seconds, engine, destination, source), _ROUNDS, "copies in fast memory")
        return 2 * size_bytes / min(seconds)
    finally:
        engine.close()


def _seconds(engine: CopyEngine, destination: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8]) -> float:
    start = perf_counter()
    engine.copy(destination, source)
    return perf_counter() - start
