"""The optimum of tiny steps by trying everything: no formulation, no solver, no code of `autotm.solve`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from random_graphs import Case, variants

from autotm.model.graph import Tensor, Tier, configuration


@dataclass(frozen=True)
class Option:
    """One way of a tensor: its own cost, its fast bytes during each kernel, and the kernels that find it slow."""

    cost_us: float
    fast_bytes: tuple[int, ...]
    slow_at: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Entry:
    """One way of a kernel: its time, the bytes of its own fast workspaces, and its slow operands."""

    time_us: float
    fast_bytes: int
    slow: frozenset[str]


def optimum_us(case: Case, limit_bytes: int, *, moves: bool) -> float:
    """Least step time over all placements that keep the limit, with the additive reading of the profile."""
    base = sum(case.profile.base_us(kernel) for kernel in case.graph.kernels)
    ways = [_undominated(_options(case, tensor, moves, additive=True)) for tensor in case.graph.movable]
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


def exact_optimum_us(case: Case, limit_bytes: int, *, moves: bool) -> float:
    """Least step time over all placements and implementations that keep the limit, from the measured times alone."""
    own = {operand.tensor for kernel in case.graph.kernels if kernel.alternatives for operand in kernel.workspaces}
    tensors = [tensor for tensor in case.graph.movable if tensor.name not in own]
    return _Exact(case, tensors, moves).least_us(limit_bytes)


class _Exact:
    """Tensors one after the other; a kernel's entries are narrowed by the tiers of the tensors that are placed."""

    def __init__(self, case: Case, tensors: list[Tensor], moves: bool) -> None:
        options = [(tensor.name, _undominated(_options(case, tensor, moves, additive=False))) for tensor in tensors]
        self.options = sorted(options, key=lambda item: len(item[1]))
        self.users = {tensor.name: tensor.users for tensor in tensors}
        self.entries = [_entries(case, index) for index in range(len(case.graph.kernels))]

    def least_us(self, limit_bytes: int) -> float:
        self.best = float("inf")
        self._descend(0, 0.0, self.entries, np.full(len(self.entries), limit_bytes))
        return self.best

    def _descend(self, depth: int, moves_us: float, entries: list[list[Entry]], left: np.ndarray) -> None:
        fitting = [
            min((entry.time_us for entry in group if entry.fast_bytes <= room), default=float("inf"))
            for group, room in zip(entries, left, strict=True)
        ]
        cost = moves_us + sum(fitting)
        if cost >= self.best:
            return
        if depth == len(self.options):
            self.best = cost
            return
        name, options = self.options[depth]
        for option in options:
            rest = left - option.fast_bytes
            if rest.min() >= 0:
                narrowed = list(entries)
                for user in self.users[name]:
                    is_slow = user in option.slow_at
                    narrowed[user] = [entry for entry in entries[user] if (name in entry.slow) == is_slow]
                self._descend(depth + 1, moves_us + option.cost_us, narrowed, rest)


def _entries(case: Case, index: int) -> list[Entry]:
    """Every implementation of a kernel in every configuration."""
    found = []
    alternatives = bool(case.graph.kernels[index].alternatives)
    for kernel_index, variant in variants(case.graph):
        if kernel_index != index:
            continue
        kernel = variant.kernels[index]
        own = {operand.tensor for operand in kernel.workspaces} if alternatives else set()
        names = list(variant.slots_of(kernel))
        for tiers in product((False, True), repeat=len(names)):
            slow = frozenset(name for name, is_slow in zip(names, tiers, strict=True) if is_slow)
            timing = case.profile.timing(kernel, configuration(variant, kernel, slow))
            assert timing is not None
            fast_bytes = sum(variant.by_name[name].allocated_bytes for name in own - slow)
            found.append(Entry(timing.median_ns / 1e3, fast_bytes, slow))
    return found


def _options(case: Case, tensor: Tensor, moves: bool, *, additive: bool) -> list[Option]:
    """Every pattern of being fast at each user and over each gap between users."""
    users = tensor.users
    if tensor.held:
        slow_us = sum(case.profile.extra_us(case.graph, case.graph.kernels[user], tensor.name) for user in users)
        whole = (tensor.allocated_bytes,) * len(case.graph.kernels)
        return [Option(0.0, whole), Option(slow_us, (0,) * len(whole))]
    if not moves:
        patterns = [((fast,) * len(users), (fast,) * (len(users) - 1)) for fast in (True, False)]
        return [_option(case, tensor, at, between, additive) for at, between in patterns]
    found = []
    for at in product((True, False), repeat=len(users)):
        gaps = product((True, False), repeat=len(users) - 1)
        legal = (gap for gap in gaps if all(at[k] and at[k + 1] for k, stays in enumerate(gap) if stays))
        found += [_option(case, tensor, at, between, additive) for between in legal]
    return found


def _option(case: Case, tensor: Tensor, at: tuple[bool, ...], between: tuple[bool, ...], additive: bool) -> Option:
    users, kernels = tensor.users, case.graph.kernels
    slow = [user for user, fast in zip(users, at, strict=True) if not fast]
    cost = sum(case.profile.extra_us(case.graph, kernels[user], tensor.name) for user in slow) if additive else 0.0
    reads = sum(1 for k in range(1, len(users)) if at[k] and not between[k - 1])
    leaves = at[0] and not all(between)
    cost += reads * case.links.copy_us(Tier.FAST, tensor.size_bytes)
    cost += leaves * case.links.copy_us(Tier.SLOW, tensor.size_bytes)
    fast_bytes = [0] * len(kernels)
    for k, user in enumerate(users):
        fast_bytes[user] = tensor.allocated_bytes * at[k]
        if k < len(between):
            for kernel in range(user + 1, users[k + 1]):
                fast_bytes[kernel] = tensor.allocated_bytes * between[k]
    return Option(cost, tuple(fast_bytes), frozenset() if additive else frozenset(slow))


def _undominated(options: list[Option]) -> list[Option]:
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (option.cost_us, sum(option.fast_bytes))):
        worse = any(
            other.slow_at == option.slow_at
            and all(a <= b for a, b in zip(other.fast_bytes, option.fast_bytes, strict=True))
            for other in kept
        )
        if not worse:
            kept.append(option)
    return kept
