"""Timing one kernel: what a user may set, memory for its operands, and its configurations taking turns."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from autotm.memory.tiers import Tiers
from autotm.model.cores import PATIENCE_S
from autotm.model.graph import ALIGNMENT_BYTES, Configuration, Graph, Initial, Kernel
from autotm.model.limit import storage_of
from autotm.model.profile import Timing

# What a user may set about profiling.


@dataclass(frozen=True)
class ProfileOptions:
    """How kernels are timed.

    Attributes:
        configurations: `additive` times all-fast and each movable tensor alone slow (k+1), `full` all 2^k.
        min_repeats, max_repeats: timed runs of the step, or of each configuration of a kernel alone.
        step_s: seconds after which steps are done, if enough were run.
        kernel_s: seconds after which a kernel alone with enough repeats is done.
        spread: either is done earlier when the standard error of every median falls below this share of it.
        rotation_bytes: a kernel's operands rotate over copies that together fill this many bytes, so that a run finds
            in the caches no more than it would in the middle of a training step.
        times_known_waits: in emulated slow memory, time kernels with their waits too, though these are known; for
            judging methods of timing.
        patience_s: steps and kernels that were timed while others held the cores are timed again for so long in all, or
            three times as long as the others took.
        seed: seed of the operands' values.
    """

    configurations: Literal["additive", "full"] = "additive"
    min_repeats: int = 7
    max_repeats: int = 200
    step_s: float = 20.0
    kernel_s: float = 0.15
    spread: float = 0.003
    rotation_bytes: int = 128_000_000
    times_known_waits: bool = False
    patience_s: float = PATIENCE_S
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.min_repeats <= self.max_repeats:
            raise ValueError(f"profile: repeats must be 1 <= min <= max, got {self.min_repeats} and {self.max_repeats}")


# Memory for the operands of one kernel at a time: several copies in each tier, filled with ordinary numbers.

Array = npt.NDArray[Any]

MAX_COPIES = 64
"""More copies of a small kernel's operands than this only cost set-up time: they overflow any core's own cache."""

_TEMPLATE_ITEMS = 1 << 20  # random numbers that are drawn; larger operands repeat them


@dataclass(frozen=True)
class OperandPlan:
    """Addresses of `copies` copies of a kernel's operands, the same in the fast and in the slow pool.

    Attributes:
        offsets: byte offset within a copy, per slot; slots that share memory in the step share it here.
        copy_bytes: size of one copy.
    """

    kernel: Kernel
    offsets: tuple[int, ...]
    copy_bytes: int
    copies: int

    @property
    def pool_bytes(self) -> int:
        """Bytes that the plan needs in each pool."""
        return self.copy_bytes * self.copies

    def views(self, tiers: Tiers, config: Configuration, copy: int) -> list[Array]:
        """Return one view per slot of copy number `copy`, each in the tier that `config` says."""
        return [
            (tiers.fast if letter == "D" else tiers.slow).view(
                copy * self.copy_bytes + offset, operand.shape, operand.dtype
            )
            for letter, offset, operand in zip(config, self.offsets, self.kernel.operands, strict=True)
        ]


def plan_operands(graph: Graph, kernel: Kernel, rotation_bytes: int) -> OperandPlan:
    """Lay out the operands of `kernel`, in as many copies as fill `rotation_bytes`, at least two."""
    sizes: dict[str, int] = {}
    storages = [storage_of(graph, operand.tensor) for operand in kernel.operands]
    for storage, operand in zip(storages, kernel.operands, strict=True):
        padded = max(1, -(-operand.size_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
        sizes[storage] = max(sizes.get(storage, 0), padded)
    *starts, total = itertools.accumulate(sizes.values(), initial=0)
    start_of = dict(zip(sizes, starts, strict=True))
    copies = min(max(2, -(-rotation_bytes // total)), MAX_COPIES)
    return OperandPlan(kernel, tuple(start_of[storage] for storage in storages), total, copies)


def in_turn(plans: Sequence[OperandPlan]) -> tuple[OperandPlan, ...]:
    """Return the same layouts with copies of one size and number, so that each finds in any copy what all were given.

    Slots that the kernels share come first in each layout: only what follows them, workspaces, differs.
    """
    copy_bytes, copies = max(plan.copy_bytes for plan in plans), max(plan.copies for plan in plans)
    return tuple(replace(plan, copy_bytes=copy_bytes, copies=copies) for plan in plans)


class Filler:
    """Puts random numbers into operands: floats in [0.5, 1.5), integers 0 or 1, indices from their whole range.

    Such floats neither overflow, nor give NaN under roots, logarithms and quotients, nor become subnormal, which
    would slow kernels down as training data does not.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.Philox(seed))
        self._draws = self._random.random(_TEMPLATE_ITEMS)
        self._templates: dict[str, Array] = {}

    def fill(self, view: Array, initial: Initial | None = None) -> None:
        """Overwrite all of `view`.

        Args:
            view: memory of an operand.
            initial: how the step fills the operand; new integers of that range each time, so that lookups go
                everywhere in a table.
        """
        if initial is not None and initial.kind == "integers":
            view[...] = self._random.integers(int(initial.scale), size=view.shape)
            return
        if (dtype := str(view.dtype)) not in self._templates:
            values = self._draws + 0.5
            self._templates[dtype] = (values if view.dtype.kind == "f" else values >= 1.0).astype(dtype)
        template = self._templates[dtype]
        flat = view.reshape(-1)
        for start in range(0, flat.size, template.size):
            part = flat[start : start + template.size]
            part[:] = template[: part.size]


# Timing one kernel: its configurations and implementations take turns, so that a disturbance hits all alike.

Call = Callable[[], None]

_LOOKED_AGAIN = 1.25
"""Whether medians are settled is looked at again after so many times as many rounds: looking takes longer than many a
kernel."""
NORMAL_QUARTILES = 1.349
"""Interquartile range of a normal distribution in standard deviations."""
_MEDIAN_EFFICIENCY = 1.2533
"""Standard error of a median in units of that of a mean, sqrt(pi / 2)."""


def time_interleaved(
    calls: Sequence[Sequence[Call]], references: Sequence[int | None], options: ProfileOptions
) -> list[Timing]:
    """Time `calls[variant][copy]` in rounds: each round runs every variant once, on the next copies.

    A call is the kernel in one configuration with its emulated wait; `references[variant]` is the variant that it is
    compared with round by round, if any. Rounds go on until every variant has `min_repeats` and either `kernel_s` are
    over or all medians are found settled, at most `max_repeats`.
    """
    for turn, choices in enumerate(calls):  # One round to warm up.
        choices[turn % len(choices)]()
    turn = len(calls)
    samples: list[list[int]] = [[] for _ in calls]
    order = list(range(len(calls)))
    deadline = time.perf_counter_ns() + round(options.kernel_s * 1e9)
    looked_at = options.min_repeats
    for round_number in range(1, options.max_repeats + 1):
        for variant in order:
            call = calls[variant][turn % len(calls[variant])]
            start = time.perf_counter_ns()
            call()
            samples[variant].append(time.perf_counter_ns() - start)
            turn += 1
        order.append(order.pop(0))
        if round_number >= options.min_repeats and time.perf_counter_ns() > deadline:
            break
        if round_number == looked_at:
            if _is_settled(samples, round_number, options.spread):
                break
            looked_at = max(round_number + 1, round(_LOOKED_AGAIN * round_number))
    return [
        summary(series) if reference is None else paired(series, samples[reference])
        for series, reference in zip(samples, references, strict=True)
    ]


def summary(samples_ns: Sequence[int]) -> Timing:
    """Return the minimum, median and quartiles of `samples_ns`, rounded to whole nanoseconds."""
    low, median, high = np.percentile(samples_ns, (25, 50, 75))
    return Timing(min(samples_ns), round(median), round(low), round(high), len(samples_ns))


def paired(samples_ns: Sequence[int], reference_ns: Sequence[int]) -> Timing:
    """Summarize as `summary`, with the median difference from what the reference took in the same rounds."""
    low, median, high = np.percentile(np.subtract(samples_ns, reference_ns), (25, 50, 75))
    error_ns = _standard_error(low, high, len(samples_ns))
    return replace(summary(samples_ns), beyond_ns=round(median), beyond_error_ns=math.ceil(error_ns))


def after_a_wait(all_fast: Timing, wait_ns: int) -> Timing:
    """Return the same kernel followed by a wait of known length, which nothing ran for."""
    return replace(shifted(all_fast, wait_ns), repeats=0, beyond_ns=wait_ns, beyond_error_ns=0)


def shifted(timing: Timing, by_ns: int) -> Timing:
    """Return the same times, all longer by so many nanoseconds, or shorter, but for one."""
    names = ("min_ns", "median_ns", "lower_quartile_ns", "upper_quartile_ns")
    return replace(timing, **{name: max(1, getattr(timing, name) + by_ns) for name in names})


def _is_settled(samples: Sequence[Sequence[int]], rounds: int, spread: float) -> bool:
    low, median, high = np.percentile(samples, (25, 50, 75), axis=1)
    return bool(np.all(_standard_error(low, high, rounds) <= spread * median))


def _standard_error(lower_quartile: Array, upper_quartile: Array, repeats: int) -> Array:
    """Return the standard error of the median of normal numbers with these quartiles."""
    return _MEDIAN_EFFICIENCY * (upper_quartile - lower_quartile) / NORMAL_QUARTILES / np.sqrt(repeats)
