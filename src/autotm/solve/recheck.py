"""The exact re-check of what a search returns: integers for bytes, the profile for time, no tolerance anywhere."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from autotm.model.cache import CachedPool, PagedPool, amplified_bytes
from autotm.model.graph import ChosenGraph, Configuration, Tier, configuration
from autotm.model.plan import RUN_RIVALS, SWAP_ALL, Move, Plan, Stay, called
from autotm.model.profile import slow_rates
from autotm.solve.paging import StepCosts
from autotm.solve.problem import Problem


class SolverDefectError(RuntimeError):
    """An optimizer returned an illegal plan: a defect of autotm, never of the input."""


def price(
    problem: Problem,
    stays: Sequence[Stay],
    moves: Sequence[Move],
    implementations: Sequence[str],
    optimizer: str,
    calls: Sequence[int],
) -> tuple[tuple[Configuration, ...], float]:
    """Return the configuration of every call and the predicted step time in microseconds; `calls` as of a plan.

    Rivals on a GPU may exceed the limit, and kernels may have to wait for what they swap.

    Raises:
        SolverDefectError: the limit is exceeded, an operand is nowhere, or a move lacks its source or destination.
    """
    held = _Held(stays, moves)
    graph = called(problem.graph.computed_by(implementations), calls)
    if optimizer not in RUN_RIVALS:
        _require_capacity(problem, graph, stays)
    for move in moves:
        held.require_move(move)
    slow = [_slow_operands(problem, graph, held, index) for index in range(len(graph.kernels))]
    configurations = tuple(
        configuration(graph, kernel, operands) for kernel, operands in zip(graph.kernels, slow, strict=True)
    )
    kernels_us = sum(
        _kernel_us(problem, graph, index, kernel, operands)
        for index, (kernel, operands) in enumerate(zip(calls or range(len(slow)), slow, strict=True))
    )
    moves_us = sum(problem.overlap.move_us(move, graph.by_name[move.tensor].size_bytes) for move in moves)
    waits_us = _waits_us(problem, graph, moves) if optimizer == SWAP_ALL else 0.0
    return configurations, kernels_us + moves_us + waits_us


def cached_us(problem: Problem, pool: CachedPool) -> float:
    """Return the predicted step time in microseconds behind a cache: kernels with fast operands, and their misses.

    Bytes that are fetched and written back cost what slow operands do, at the profile's rates; the cache's own accesses
    to fast memory what copies there take.
    """
    graph, rates = problem.graph.computed_by(()), slow_rates(problem.graph, problem.profile)
    return math.fsum(
        problem.profile.base_us(kernel)
        + rates[kernel.op_class].extra_us(fetched, written)
        + problem.links.fast_us(amplified_bytes(graph, kernel, fetched))
        for kernel, (fetched, written) in zip(graph.kernels, pool.traffic_bytes, strict=True)
    )


def paged_us(problem: Problem, pool: PagedPool) -> float:
    """Return the predicted step time in microseconds of a plain step whose pages Linux places.

    A tensor that is partly in slow pages adds that share of what it adds when all of it is slow.
    """
    costs = StepCosts.of(problem, problem.graph.computed_by(()))
    moved = zip(pool.slow_bytes, pool.promoted_bytes, pool.demoted_bytes, strict=True)
    return math.fsum(costs.kernel_us(number, *each) for number, each in enumerate(moved))


def plan_us(problem: Problem, plan: Plan) -> float:
    """Return the predicted step time of a plan in microseconds under the problem's profile, which may be another one.

    Raises:
        SolverDefectError: the plan is illegal.
    """
    if plan.cached is not None:
        return cached_us(problem, plan.cached)
    if plan.paged is not None:
        return paged_us(problem, plan.paged)
    return price(problem, plan.stays, plan.moves, plan.implementations, plan.optimizer, plan.calls)[1]


def _kernel_us(problem: Problem, graph: ChosenGraph, index: int, kernel: int, slow: frozenset[str]) -> float:
    """Return the time of call `index`, of kernel `kernel` of the problem, with the tensors `slow` in slow memory.

    The time comes from the kernel's table where that has operands. Elsewhere each slow operand adds the time that it
    adds to the default implementation.
    """
    profile, chosen, default = problem.profile, graph.kernels[index], problem.graph.kernels[kernel]
    if kernel in problem.tabulation.tabled:
        return profile.time_us(graph, chosen, slow)
    workspaces = {operand.tensor for operand in chosen.workspaces}
    additive_us = sum(
        profile.extra_us(graph, chosen, name) if name in workspaces else profile.extra_us(problem.graph, default, name)
        for name in sorted(slow)  # Sums of floats depend on the order, and that of a set differs between processes.
    )
    return profile.base_us(chosen) + additive_us


def _waits_us(problem: Problem, graph: ChosenGraph, moves: Sequence[Move]) -> float:
    """Compute by how many microseconds copies outlast the kernel that they overlap, summed over all kernels.

    A kernel waits for the copies that overlap the kernel before it; those to slow and those to fast memory run at the
    same time.
    """
    copies_us: dict[tuple[int, Tier], float] = defaultdict(float)
    for move in moves:
        if move.is_asynchronous:
            size_bytes = graph.by_name[move.tensor].size_bytes
            copies_us[move.start, move.destination] += problem.links.transfer_us(move.destination, size_bytes)
    longest_us = {index: max(copies_us[index, tier] for tier in Tier) for index, _ in list(copies_us)}
    return sum(max(0.0, us - problem.profile.base_us(graph.kernels[index])) for index, us in longest_us.items())


class _Held:
    """Which stays hold a tensor in a tier."""

    def __init__(self, stays: Sequence[Stay], moves: Sequence[Move]) -> None:
        self._spans: dict[tuple[str, Tier], list[tuple[int, int]]] = defaultdict(list)
        self._ready: dict[tuple[str, Tier, int], int] = {}
        for stay in stays:
            self._spans[stay.tensor, stay.tier].append((stay.start, stay.end))
        for move in moves:
            self._ready[move.tensor, move.destination, move.start] = move.before

    def during(self, tensor: str, tier: Tier, kernel: int) -> bool:
        """Return whether the tensor is there, complete; a stay that an asynchronous move begins becomes so later."""
        spans = self._spans[tensor, tier]
        return any(self._ready.get((tensor, tier, start), start) <= kernel < end for start, end in spans)

    def require_move(self, move: Move) -> None:
        to_slow = move.destination is Tier.SLOW
        source = Tier.FAST if to_slow else Tier.SLOW
        needed = range(move.start, move.before)
        if not move.is_asynchronous:
            needed = range(move.before - 1, move.before) if to_slow else range(move.before, move.before + 1)
        if not all(self.during(move.tensor, source, kernel) for kernel in needed):
            raise SolverDefectError(f"move of '{move.tensor}' before kernel {move.before} has no source")
        if all(start != move.start for start, _ in self._spans[move.tensor, move.destination]):
            raise SolverDefectError(f"move of '{move.tensor}' before kernel {move.before} has no destination")


def _slow_operands(problem: Problem, graph: ChosenGraph, held: _Held, index: int) -> frozenset[str]:
    slow = set()
    for name in graph.slots_of(graph.kernels[index]):
        if held.during(name, Tier.FAST, index):
            continue
        if problem.options.fast_operands_only:
            raise SolverDefectError(f"'{name}' is not fast at kernel {index}, where it has to be")
        if not held.during(name, Tier.SLOW, index):
            raise SolverDefectError(f"'{name}' is in no memory at kernel {index}")
        slow.add(name)
    return frozenset(slow)


def _require_capacity(problem: Problem, graph: ChosenGraph, stays: Sequence[Stay]) -> None:
    change = np.zeros(len(graph.kernels) + 1, np.int64)
    for stay in stays:
        if stay.tier is Tier.FAST:
            size_bytes = graph.by_name[stay.tensor].allocated_bytes
            change[stay.start] += size_bytes
            change[stay.end] -= size_bytes
    used = change[:-1].cumsum()
    if used.max(initial=0) > problem.limit_bytes:
        kernel, limit = int(used.argmax()), problem.limit_bytes
        raise SolverDefectError(f"{used[kernel]} bytes are fast at kernel {kernel}, the limit is {limit}")
