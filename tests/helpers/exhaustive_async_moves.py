"""The optimum of tiny steps with asynchronous moves by trying everything: every window of every move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise, product

import numpy as np
from random_graphs import Case

from autotm.model.graph import Tensor, Tier

FACTORS = (Fraction(1), Fraction(3, 2), Fraction(5, 2), Fraction(4))

Span = tuple[int, int]

Job = tuple[Tier, int, int, int]
"""An asynchronous move: destination, kernels [start, end), and nanoseconds of work."""


@dataclass(frozen=True)
class Option:
    """One way of a tensor: its cost, its fast bytes by kernel, and its asynchronous moves."""

    cost_us: float
    takes: tuple[int, ...]
    jobs: tuple[Job, ...]


def optimum_us(case: Case, limit_bytes: int) -> tuple[float, int]:
    """Least step time, and how many asynchronous moves it has."""
    kernels = case.graph.kernels
    ways = sorted((_undominated(list(_options(case, tensor))) for tensor in case.graph.movable), key=len)
    least = np.cumsum([0.0] + [min(option.cost_us for option in options) for options in reversed(ways)])[::-1]
    best = [(math.inf, 0)]

    def descend(depth: int, cost: float, jobs: tuple[Job, ...], left: np.ndarray) -> None:
        if cost + least[depth] >= best[0][0]:
            return
        if depth == len(ways):
            best[0] = (cost, len(jobs))
            return
        for option in ways[depth]:
            rest, all_jobs = left - option.takes, jobs + option.jobs
            if rest.min() >= 0 and (not option.jobs or _can_be_done(case, all_jobs)):
                descend(depth + 1, cost + option.cost_us, all_jobs, rest)

    descend(0, 0.0, (), np.full(len(kernels), limit_bytes))
    return sum(case.profile.base_us(kernel) for kernel in kernels) + best[0][0], best[0][1]


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
    halves = [m for m in range(first, end + 1) if 2 * sum(time_ns[first:m]) >= sum(time_ns[first:end])]
    found = set()
    for factor in FACTORS:
        to_slow = [(first, stop) for stop in range(first, halves[0] + 1)]
        to_fast = [(start, end) for start in range(end, halves[0] - 1, -1)]
        spans = to_slow if destination is Tier.SLOW else to_fast
        long_enough = [span for span in spans if sum(time_ns[slice(*span)]) >= factor * transfer_ns]
        found.update(
            span for span in long_enough[:1] if work_ns(case, tensor, destination, span) <= sum(time_ns[slice(*span)])
        )
    return found


def _mean(case: Case, tier: Tier, span: Span, what: str) -> Fraction:
    """Contention over the kernels of a span, each weighed with its time."""
    time_ns, contention = _time_ns(case), case.links.contention(tier)
    weighed = [
        Fraction(getattr(contention[kernel.op_class], what)) * time
        for kernel, time in zip(case.graph.kernels[slice(*span)], time_ns[slice(*span)], strict=True)
    ]
    if what == "to_copy":  # Counted in whole nanoseconds of each kernel.
        weighed = [Fraction(round(each)) for each in weighed]
    return sum(weighed, Fraction(0)) / max(sum(time_ns[slice(*span)]), 1)


def work_ns(case: Case, tensor: Tensor, tier: Tier, span: Span) -> int:
    """How long the engine works at a move in a window: alone, and for what the kernels beside it add."""
    alone_ns = math.ceil(1e3 * case.links.transfer_us(tier, tensor.size_bytes))
    return alone_ns + math.ceil(alone_ns * _mean(case, tier, span, "to_copy"))


def _options(case: Case, tensor: Tensor) -> Iterator[Option]:
    users = tensor.users
    gaps = [(before + 1, after) for before, after in pairwise(users)]
    ways = {(tier, k): [None, *windows(case, tensor, tier, gap)] for tier in Tier for k, gap in enumerate(gaps)}
    for at in product((True, False), repeat=len(users)):
        for between in product((True, False), repeat=len(gaps)):
            if any(stays and not (at[k] and at[k + 1]) for k, stays in enumerate(between)):
                continue
            moves = [(Tier.SLOW, between.index(False))] if at[0] and not all(between) else []
            moves += [(Tier.FAST, k) for k in range(len(gaps)) if at[k + 1] and not between[k]]
            for chosen in product(*(ways[move] for move in moves)):
                yield _option(case, tensor, gaps, at, between, list(zip(moves, chosen, strict=True)))


def _option(
    case: Case,
    tensor: Tensor,
    gaps: list[Span],
    at: tuple[bool, ...],
    between: tuple[bool, ...],
    moves: list[tuple[tuple[Tier, int], Span | None]],
) -> Option:
    graph, links = case.graph, case.links
    takes = np.zeros(len(graph.kernels), np.int64)
    cost, jobs = 0.0, []
    for user, fast in zip(tensor.users, at, strict=True):
        takes[user] = fast * tensor.allocated_bytes
        cost += 0.0 if fast else case.profile.extra_us(graph, graph.kernels[user], tensor.name)
    for gap, stays in zip(gaps, between, strict=True):
        takes[slice(*gap)] = stays * tensor.allocated_bytes
    for (tier, _), span in moves:
        if span is None:
            cost += links.copy_us(tier, tensor.size_bytes)
        else:
            cost += float(_mean(case, tier, span, "to_kernels")) * links.transfer_us(tier, tensor.size_bytes)
            cost += links.call_us
            takes[slice(*span)] = tensor.allocated_bytes
            jobs.append((tier, *span, work_ns(case, tensor, tier, span)))
    return Option(cost, tuple(takes.tolist()), tuple(jobs))


def _undominated(options: list[Option]) -> list[Option]:
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (option.cost_us, sum(option.takes), len(option.jobs))):
        if not any(_dominates(other, option) for other in kept):
            kept.append(option)
    return kept


def _dominates(one: Option, other: Option) -> bool:
    """Whether it takes no more memory, and has no move that the other has not in the same or a shorter window."""
    leaner = all(a <= b for a, b in zip(one.takes, other.takes, strict=True))
    return leaner and all(
        any(job[0] is its[0] and job[1] <= its[1] and its[2] <= job[2] and job[3] == its[3] for its in other.jobs)
        for job in one.jobs
    )
