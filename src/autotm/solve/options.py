"""Options of a solve, optimizers by name, and the time of a sweep; nothing here loads a solver."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from autotm.model.errors import BadInputError


@dataclass(frozen=True)
class SolveOptions:
    """Options of one solve.

    Attributes:
        gap: accepted relative distance between objective and proven bound; the search stops there.
        time_limit_s: wall time for the solver; afterwards the best legal plan found is returned with its true gap.
        beyond_s: of that, the most for the search once the relaxation is solved and a plan is made from it.
        sweep_s: wall time for all limits of a sweep together, solved and packed, beside that of each; what is needed
            for a legal plan of each limit is done in any case.
        seed: the solver's random seed.
        additive_tolerance: a kernel that was measured in full is read additively where that misses no configuration by
            more than this share of its all-fast time; slow operands of its implementations may differ as much.
        fast_operands_only: kernels cannot use slow operands (GPUs): tensors are slow between kernels only.
        most_us: a plan that takes longer is of no use: the search ends, too, once every plan is proven to.
    """

    gap: float = 1e-3
    time_limit_s: float = 60.0
    beyond_s: float = math.inf
    sweep_s: float = math.inf
    seed: int = 0
    additive_tolerance: float = 0.02
    fast_operands_only: bool = False
    most_us: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.gap < 1:
            raise BadInputError(f"solve option gap: {self.gap} is not in [0, 1)")
        if not (self.time_limit_s > 0 and math.isfinite(self.time_limit_s)):
            raise BadInputError(f"solve option time_limit_s: {self.time_limit_s} is not a positive number of seconds")
        if not self.beyond_s > 0:
            raise BadInputError(f"solve option beyond_s: {self.beyond_s} is not a positive number of seconds")
        if not self.sweep_s > 0:
            raise BadInputError(f"solve option sweep_s: {self.sweep_s} is not a positive number of seconds")
        if not (self.additive_tolerance >= 0 and math.isfinite(self.additive_tolerance)):
            raise BadInputError(f"solve option additive_tolerance: {self.additive_tolerance} is not at least 0")
        if not 0 <= self.seed < 2**31:
            raise BadInputError(f"solve option seed: {self.seed} is not in [0, 2^31)")


_SHARE = 2.0
"""The most time for one limit, in equal shares of the time left: most limits need little and leave the rest."""
_LEAST = 0.5
"""The least time for each limit, in equal shares of all the time: a limit that took too long costs others little."""


class TimeBudget:
    """Gives each of several limits its part of the time that they have together.

    Args:
        total_s: seconds for all; infinite where only each limit's own time is limited.
        count: limits.
        begun_s: reading of `time.perf_counter` at which the time begins; now, if not given.
    """

    def __init__(self, total_s: float, count: int, begun_s: float | None = None) -> None:
        self._end_s = (time.perf_counter() if begun_s is None else begun_s) + total_s
        self._least_s = _LEAST * total_s / max(1, count)
        self._count = count

    def next_s(self) -> float:
        """Return the seconds for the next limit."""
        left_s = max(0.0, self._end_s - time.perf_counter())
        share, self._count = min(1.0, _SHARE / (self._count + 1)), max(1, self._count - 1)
        return max(self._least_s, left_s * share)


OPTIMIZERS: Mapping[str, str] = {
    "all-fast": "autotm.solve.optimizers:AllFast",
    "all-slow": "autotm.solve.optimizers:AllSlow",
    "static": "autotm.solve.optimizers:Static",
    "synchronous": "autotm.solve.optimizers:Synchronous",
    "asynchronous": "autotm.solve.optimizers:Asynchronous",
    "numa": "autotm.solve.optimizers:FirstTouch",
    "memory-mode": "autotm.solve.optimizers:MemoryMode",
    "linux-preferred": "autotm.solve.optimizers:LinuxPreferred",
    "linux-interleave": "autotm.solve.optimizers:LinuxInterleave",
    "linux-weighted-interleave": "autotm.solve.optimizers:LinuxWeightedInterleave",
    "linux-balancing": "autotm.solve.optimizers:LinuxBalancing",
    "managed-memory": "autotm.solve.optimizers:ManagedMemory",
    "lru-paging": "autotm.solve.optimizers:LruPaging",
    "swap-all": "autotm.solve.optimizers:SwapAll",
    "recompute": "autotm.solve.optimizers:Recompute",
}
"""Optimizers by name, as `module:class`; imported on use, since they load Pyomo, which commands must not wait for."""


def optimizer_names() -> tuple[str, ...]:
    """Return the names of all optimizers, sorted."""
    return tuple(sorted(OPTIMIZERS))
