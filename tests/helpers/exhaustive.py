"""The optimum of tiny steps by trying everything: no formulation, no solver, no code of `autotm.solve`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise, product

import numpy as np
from random_graphs import Case, variants

from autotm.model.graph import Tensor, Tier, configuration

FACTORS = (Fraction(1), Fraction(3, 2), Fraction(5, 2), Fraction(4))

Span = tuple[int, int]

Job = tuple[Tier, int, int, int]
"""An asynchronous move: destination, kernels [start, end), and nanoseconds of work."""


@dataclass(frozen=True)
class Option:
    """One residency of a tensor: own cost, fast bytes by kernel, kernels that use it slow, asynchronous moves."""

    cost_us: float
    takes: tuple[int, ...]
    slow_at: frozenset[int]
    jobs: tuple[Job, ...] = ()
    has_slow_operands: bool = False


def optimum_us(case: Case, limit_bytes: int, *, moves: bool) -> float:
    """Least step time over all placements that keep the limit, with the additive reading of the profile."""
    return _optimum(case, limit_bytes, moves=moves, overlap=False)[0]


def overlapped_optimum_us(case: Case, limit_bytes: int, *, fast_operands_only: bool = False) -> tuple[float, int]:
    """Least step time with asynchronous moves, too, every window of every move tried; and how many of them it has."""
    return _optimum(case, limit_bytes, moves=True, overlap=True, fast_operands_only=fast_operands_only)


def _optimum(
    case: Case, limit_bytes: int, *, moves: bool, overlap: bool, fast_operands_only: bool = False
) -> tuple[float, int]:
    kernels = case.graph.kernels
    each = (
        (
            option
            for option in _options(case, tensor, moves=moves, additive=True, overlap=overlap)
            if not (fast_operands_only and option.has_slow_operands)
        )
        for tensor in case.graph.movable
    )
    choices = sorted(map(_undominated, each), key=len)
    least = np.cumsum([0.0] + [min(option.cost_us for option in options) for options in reversed(choices)])[::-1]
    best = (math.inf, 0)

    def descend(depth: int, cost: float, jobs: tuple[Job, ...], left: np.ndarray) -> None:
        nonlocal best
        if cost + least[depth] >= best[0]:
            return
        if depth == len(choices):
            best = (cost, len(jobs))
            return
        for option in choices[depth]:
            rest, all_jobs = left - option.takes, jobs + option.jobs
            if rest.min() >= 0 and (not option.jobs or _can_be_done(case, all_jobs)):
                descend(depth + 1, cost + option.cost_us, all_jobs, rest)

    descend(0, 0.0, (), np.full(len(kernels), limit_bytes))
    return sum(case.profile.base_us(kernel) for kernel in kernels) + best[0], best[1]


def exact_optimum_us(case: Case, limit_bytes: int, *, moves: bool) -> float:
    """Least step time over all placements and implementations that keep the limit, from the measured times alone."""
    own = {operand.tensor for kernel in case.graph.kernels if kernel.alternatives for operand in kernel.workspaces}
    tensors = (tensor for tensor in case.graph.movable if tensor.name not in own)
    choices = [(one, _undominated(_options(case, one, moves=moves, additive=False, overlap=False))) for one in tensors]
    choices.sort(key=lambda choice: len(choice[1]))
    best = math.inf

    def descend(depth: int, moves_us: float, entries: list[list[Entry]], left: np.ndarray) -> None:
        nonlocal best
        cost = moves_us + sum(
            min((entry.time_us for entry in group if entry.fast_bytes <= free), default=math.inf)
            for group, free in zip(entries, left, strict=True)
        )
        if cost >= best:
            return
        if depth == len(choices):
            best = cost
            return
        tensor, options = choices[depth]
        for option in options:
            rest = left - option.takes
            if rest.min() >= 0:
                narrowed = list(entries)
                for user in tensor.users:
                    is_slow = user in option.slow_at
                    narrowed[user] = [entry for entry in entries[user] if (tensor.name in entry.slow) == is_slow]
                descend(depth + 1, moves_us + option.cost_us, narrowed, rest)

    count = len(case.graph.kernels)
    descend(0, 0.0, [_entries(case, index) for index in range(count)], np.full(count, limit_bytes))
    return best


@dataclass(frozen=True)
class Entry:
    """One row of a kernel's table: its time, the bytes of its own fast workspaces, and its slow operands."""

    time_us: float
    fast_bytes: int
    slow: frozenset[str]


def _entries(case: Case, index: int) -> list[Entry]:
    """Every implementation of a kernel, whose table is narrowed tensor by tensor, in every configuration."""
    entries = []
    for variant in (variant for kernel_index, variant in variants(case.graph) if kernel_index == index):
        kernel = variant.kernels[index]
        own = {operand.tensor for operand in kernel.workspaces} if case.graph.kernels[index].alternatives else set()
        names = list(variant.slots_of(kernel))
        for tiers in product((False, True), repeat=len(names)):
            slow = frozenset(name for name, is_slow in zip(names, tiers, strict=True) if is_slow)
            timing = case.profile.timing(kernel, configuration(variant, kernel, slow))
            assert timing is not None
            fast_bytes = sum(variant.by_name[name].allocated_bytes for name in own - slow)
            entries.append(Entry(timing.median_ns / 1e3, fast_bytes, slow))
    return entries


def _options(case: Case, tensor: Tensor, *, moves: bool, additive: bool, overlap: bool) -> Iterator[Option]:
    """Every pattern of being fast at each user and over each gap between users; with `overlap`, every window."""
    users, links, size_bytes = tensor.users, case.links, tensor.size_bytes

    def option(takes: np.ndarray, at: Sequence[bool], moves_us: float = 0.0, jobs: Sequence[Job] = ()) -> Option:
        slow = [user for user, fast in zip(users, at, strict=True) if not fast and user != tensor.slow_at]
        kernels = [case.graph.kernels[user] for user in slow] if additive else []
        slow_us = sum(case.profile.extra_us(case.graph, kernel, tensor.name) for kernel in kernels)
        slow_at = frozenset(() if additive else slow)
        return Option(slow_us + moves_us, tuple(takes.tolist()), slow_at, tuple(jobs), bool(slow))

    if tensor.held or not moves:
        for fast in (True, False):
            takes = np.zeros(len(case.graph.kernels), np.int64)
            takes[tensor.live.start : tensor.live.stop] = fast * tensor.allocated_bytes
            yield option(takes, (fast,) * len(users))
        return
    gaps = [(before + 1, after) for before, after in pairwise(users)]
    spans = {
        (tier, k): [None, *(windows(case, tensor, tier, gap) if overlap else ())]
        for tier in Tier
        for k, gap in enumerate(gaps)
    }
    for at, between in _patterns(tensor):
        takes = np.zeros(len(case.graph.kernels), np.int64)
        takes[list(users)] = np.array(at) * tensor.allocated_bytes
        for gap, stays in zip(gaps, between, strict=True):
            takes[slice(*gap)] = stays * tensor.allocated_bytes
        copies = [(Tier.SLOW, between.index(False))] if at[0] and not all(between) else []
        copies += [(Tier.FAST, k) for k in range(len(gaps)) if at[k + 1] and not between[k]]
        for chosen in product(*(spans[copy] for copy in copies)):
            held, moves_us, jobs = takes.copy(), 0.0, []
            for (tier, _), span in zip(copies, chosen, strict=True):
                if span is None:
                    moves_us += links.copy_us(tier, size_bytes)
                else:
                    moves_us += float(_mean(case, tier, span, "to_kernels")) * links.transfer_us(tier, size_bytes)
                    moves_us += links.call_us
                    held[slice(*span)] = tensor.allocated_bytes
                    jobs.append((tier, *span, _work_ns(case, tensor, tier, span)))
            yield option(held, at, moves_us, jobs)


def _patterns(tensor: Tensor) -> Iterator[tuple[Sequence[bool], Sequence[bool]]]:
    """Whether a tensor is fast at each of its users, and over each gap between them, in every way that is possible."""
    users = tensor.users
    for at, between in product(
        product((True, False), repeat=len(users)), product((True, False), repeat=len(users) - 1)
    ):
        is_kept = all(at[k] and at[k + 1] for k, stays in enumerate(between) if stays)
        if is_kept and not any(fast and user == tensor.slow_at for user, fast in zip(users, at, strict=True)):
            yield at, between


def _undominated(options: Iterator[Option]) -> list[Option]:
    """Leave out each option that costs, takes and asks of engines no less than another."""
    best: list[Option] = []
    for option in sorted(options, key=lambda option: (option.cost_us, sum(option.takes), len(option.jobs))):
        if not any(_dominates(other, option) for other in best):
            best.append(option)
    return best


def _dominates(one: Option, other: Option) -> bool:
    """Whether it takes no more memory, and has no move that the other has not in the same or a shorter window."""
    leaner = one.slow_at == other.slow_at and all(a <= b for a, b in zip(one.takes, other.takes, strict=True))
    return leaner and all(
        any(job[0] is its[0] and job[1] <= its[1] and its[2] <= job[2] and job[3] == its[3] for its in other.jobs)
        for job in one.jobs
    )


# Asynchronous moves, by the definitions of docs/formulation.md §9.


def _can_be_done(case: Case, jobs: tuple[Job, ...]) -> bool:
    """Whether no span of kernels is asked for more work than it has time for."""
    time_ns = _time_ns(case)
    return all(
        sum(work for tier, a, b, work in jobs if tier is destination and start <= a and b <= end)
        <= sum(time_ns[start:end])
        for destination in Tier
        for start, end in combinations(range(len(time_ns) + 1), 2)
    )


def _time_ns(case: Case) -> list[int]:
    return [
        case.profile.timings[kernel.identity, "default", "D" * len(kernel.operands)].median_ns
        for kernel in case.graph.kernels
    ]


def windows(case: Case, tensor: Tensor, destination: Tier, gap: Span) -> set[Span]:
    """Each window by definition: of all spans from, or to, an end of the gap the shortest that lasts long enough."""
    time_ns = _time_ns(case)
    transfer_ns = math.ceil(1e3 * case.links.transfer_us(destination, tensor.size_bytes))
    first, end = gap
    half = next(m for m in range(first, end + 1) if 2 * sum(time_ns[first:m]) >= sum(time_ns[first:end]))
    last, earliest = (half, half) if tensor.slow_at is None else (end, first)
    to_slow = [(first, stop) for stop in range(first, last + 1)]
    to_fast = [(start, end) for start in range(end, earliest - 1, -1)]
    lasts_ns = {span: sum(time_ns[slice(*span)]) for span in (to_slow if destination is Tier.SLOW else to_fast)}
    shortest = (next((span for span, ns in lasts_ns.items() if ns >= one * transfer_ns), None) for one in FACTORS)
    return {span for span in shortest if span and _work_ns(case, tensor, destination, span) <= lasts_ns[span]}


def _mean(case: Case, tier: Tier, span: Span, attribute: str) -> Fraction:
    """Contention over the kernels of a span, each weighed with its time."""
    time_ns, contention = _time_ns(case), case.links.contention(tier)
    weighed = [
        Fraction(getattr(contention[kernel.op_class], attribute)) * time
        for kernel, time in zip(case.graph.kernels[slice(*span)], time_ns[slice(*span)], strict=True)
    ]
    if attribute == "to_copy":  # Counted in whole nanoseconds of each kernel.
        weighed = [Fraction(round(each)) for each in weighed]
    return sum(weighed, Fraction(0)) / max(sum(time_ns[slice(*span)]), 1)


def _work_ns(case: Case, tensor: Tensor, tier: Tier, span: Span) -> int:
    """How long a move in a window keeps its engine busy: its time alone, and what overlapping kernels add."""
    alone_ns = math.ceil(1e3 * case.links.transfer_us(tier, tensor.size_bytes))
    return alone_ns + math.ceil(alone_ns * _mean(case, tier, span, "to_copy"))
