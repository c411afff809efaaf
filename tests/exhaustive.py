"""The optimum of tiny steps by trying everything: no formulation, no solver, no code of `autotm.solve`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from autotm.model.graph import Tensor
from autotm.model.tier import Tier
from random_graphs import Case


@dataclass(frozen=True)
class Option:
    """One way of a tensor: what it adds to the all-fast step, and its fast bytes during each kernel."""

    cost_us: float
    fast_bytes: tuple[int, ...]


def optimum_us(case: Case, limit_bytes: int, *, moves: bool) -> float:
    """Least step time over all placements that keep the limit."""
    base = sum(case.profile.base_us(kernel) for kernel in case.graph.kernels)
    ways = [_undominated(_options(case, tensor, moves)) for tensor in case.graph.movable]
    ways.sort(key=len)
    least = np.cumsum([0.0] + [min(option.cost_us for option in options) for options in reversed(ways)])[::-1]
    best = [sum(max(option.cost_us for option in options) for options in ways) + 1.0]
    left = np.full(len(case.graph.kernels), limit_bytes)
    _descend(ways, least, 0, 0.0, left, best)
    return base + best[0]


def _descend(
    ways: list[list[Option]], least: np.ndarray, depth: int, cost: float, left: np.ndarray, best: list[float]
) -> None:
    if cost + least[depth] >= best[0]:
        return
    if depth == len(ways):
        best[0] = cost
        return
    for option in ways[depth]:
        rest = left - option.fast_bytes
        if rest.min() >= 0:
            _descend(ways, least, depth + 1, cost + option.cost_us, rest, best)


def _options(case: Case, tensor: Tensor, moves: bool) -> list[Option]:
    """Every pattern of being fast at each user and over each gap between users."""
    users = tensor.users
    if tensor.held:
        slow_us = sum(case.profile.extra_us(case.graph, case.graph.kernels[user], tensor.name) for user in users)
        whole = (tensor.allocated_bytes,) * len(case.graph.kernels)
        return [Option(0.0, whole), Option(slow_us, (0,) * len(whole))]
    if not moves:
        return [_option(case, tensor, (fast,) * len(users), (fast,) * (len(users) - 1)) for fast in (True, False)]
    found = []
    for at in product((True, False), repeat=len(users)):
        gaps = product((True, False), repeat=len(users) - 1)
        legal = (gap for gap in gaps if all(at[k] and at[k + 1] for k, stays in enumerate(gap) if stays))
        found += [_option(case, tensor, at, between) for between in legal]
    return found


def _option(case: Case, tensor: Tensor, at: tuple[bool, ...], between: tuple[bool, ...]) -> Option:
    users, kernels = tensor.users, case.graph.kernels
    slow = [user for user, fast in zip(users, at, strict=True) if not fast]
    cost = sum(case.profile.extra_us(case.graph, kernels[user], tensor.name) for user in slow)
    reads = sum(1 for k in range(1, len(users)) if at[k] and not between[k - 1])
    leaves = at[0] and not all(between)
    cost += reads * case.links.copy_us(Tier.DRAM, tensor.size_bytes)
    cost += leaves * case.links.copy_us(Tier.PMEM, tensor.size_bytes)
    fast_bytes = [0] * len(kernels)
    for k, user in enumerate(users):
        fast_bytes[user] = tensor.allocated_bytes * at[k]
        if k < len(between):
            for kernel in range(user + 1, users[k + 1]):
                fast_bytes[kernel] = tensor.allocated_bytes * between[k]
    return Option(cost, tuple(fast_bytes))


def _undominated(options: list[Option]) -> list[Option]:
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (option.cost_us, sum(option.fast_bytes))):
        worse = any(all(a <= b for a, b in zip(other.fast_bytes, option.fast_bytes, strict=True)) for other in kept)
        if not worse:
            kept.append(option)
    return kept
