"""How fast this process computes: kernels of known work in one library, timed here, wherever they were compiled."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from autotm.kernels.library import BoundKernel, KernelLibrary, aligned_empty, check_cores, pinned
from autotm.model.cores import Watch
from autotm.model.graph import OpClass
from autotm.model.machine import Machine

_SECONDS_EACH, _LONGEST_S = 0.4, 2.0
_LONGEST_ADDS_S = 1.0
_MIN_RUNS = 5  # Least runs, unless they take longer than `_LONGEST_S`.
_ROUNDS = 5  # Rounds of which the fastest counts.
MULTIPLY_ADDS = "multiply_adds"
"""Symbol of the loop that touches registers only."""


@dataclass(frozen=True)
class CalibrationKernel:
    """A kernel whose work is known.

    Attributes:
        operands: shape of each, workspaces too, in calling order; all are float32.
        flops: floating-point operations of a call, 2 a multiply-add.
    """

    operands: tuple[tuple[int, ...], ...]
    flops: int


@dataclass(frozen=True)
class CalibrationKernels:
    """Calibration kernels of one library, by symbol.

    Convolutions, middle layers of the zoo's networks, and `MULTIPLY_ADDS` give the rate of the cores, on all threads.
    One kernel of each op class, whose symbol is the class's name, runs during copies.
    """

    kernels: Mapping[str, CalibrationKernel]


def contraction_flop_per_s(library: KernelLibrary, known: CalibrationKernels, machine: Machine, watch: Watch) -> float:
    """Return the median of the convolutions' best rates, in floating-point operations a second (2 a multiply-add).

    `watch` judges each layer's runs together: those during which others hold the cores are repeated. Where a layer
    takes seconds, as on a processor that is emulated in software, its rate stands for the others'.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
    """
    with pinned(machine):
        convolutions = {symbol: each for symbol, each in known.kernels.items() if symbol != MULTIPLY_ADDS}
        calls = {symbol: bound_to_noise(library, symbol, each) for symbol, each in convolutions.items()}
        check_cores(machine, next(iter(calls.values())))
        best_s: dict[str, float] = {}
        for symbol, call in calls.items():
            best_s[symbol] = min(watch.rounds(partial(_best_s, call), 1, "convolutions"))
            if best_s[symbol] > _LONGEST_S:
                break
        return statistics.median(convolutions[symbol].flops / taken_s for symbol, taken_s in best_s.items())


def multiply_add_flop_per_s(library: KernelLibrary, known: CalibrationKernels, machine: Machine, watch: Watch) -> float:
    """Return the best rate of all threads together, in floating-point operations a second (2 a multiply-add).

    `watch` judges the runs: those during which others hold the cores are repeated. One that takes longer than a second,
    as on a processor that is emulated in software, tells the rate alone.
    """
    with pinned(machine):
        loop = known.kernels[MULTIPLY_ADDS]
        run = bound_to_noise(library, MULTIPLY_ADDS, loop)
        if (first_s := _seconds(run)) > _LONGEST_ADDS_S:
            return loop.flops / first_s
        return loop.flops / min(watch.rounds(partial(_seconds, run), _ROUNDS, "multiply-adds"))


@contextmanager
def co_runners(
    library: KernelLibrary, known: CalibrationKernels, machine: Machine
) -> Iterator[dict[OpClass, BoundKernel]]:
    """Yield a kernel of each op class, named by its symbol, on the machine's threads and cores, to call inside."""
    with pinned(machine):
        yield {OpClass(symbol): bound_to_noise(library, symbol, each) for symbol, each in known.kernels.items()}


def bound_to_noise(library: KernelLibrary, symbol: str, kernel: CalibrationKernel) -> BoundKernel:
    """Return the kernel on operands and workspaces filled with normal noise."""
    views = [aligned_empty(shape, np.float32) for shape in kernel.operands]
    generator = np.random.default_rng(0)
    for view in views:
        view[...] = generator.standard_normal(view.shape, dtype=np.float32)
    return library.bind(symbol, views)


def _best_s(call: BoundKernel) -> float:
    """Return the least seconds of a call, as disturbances only add. None is repeated beyond `_LONGEST_S`."""
    times: list[float] = []
    while sum(times) < (_SECONDS_EACH if len(times) >= _MIN_RUNS else _LONGEST_S):
        times.append(_seconds(call))
    return min(times)


def _seconds(call: BoundKernel) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
