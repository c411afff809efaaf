"""The lower bound that a certificate's prices prove, computed without a solver.

Relaxing the capacity of fast memory at prices p_i >= 0 per byte and kernel, and the agreement of tensors and tabled
kernels on each operand's tier at prices q of any sign, gives, for any prices,

    bound = sum over kernels (cheapest implementation and configuration, which receives q for each slow operand)
          + sum over tensors (cheapest path, which pays q for being slow) - sum over kernels p_i * limit,

a lower bound on every plan (weak duality). What is larger than the limit never is in fast memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autotm.check.entries import Menus, own_workspaces, shared_us
from autotm.check.fault import Fault, require
from autotm.model.graph import Graph, Tensor
from autotm.model.link import Links
from autotm.model.plan import Plan
from autotm.model.profile import Profile
from autotm.model.tier import Tier


@dataclass(frozen=True)
class _Prices:
    """What the relaxed problem charges."""

    graph: Graph
    profile: Profile
    links: Links
    tabled_us: Mapping[tuple[int, str], float]
    tabled: frozenset[int]
    rent_us_per_byte: npt.NDArray[np.float64]
    limit_bytes: int
    operands_fast: bool

    def slow_us(self, tensor: Tensor, user: int) -> float:
        if self.operands_fast:
            return np.inf
        if user in self.tabled:
            return self.tabled_us[user, tensor.name]
        return shared_us(self.graph, self.profile, user, tensor.name)

    def fast_us(self, tensor: Tensor, start: int, end: int) -> float:
        """Rent of fast memory during kernels [start, end)."""
        if end <= start:
            return 0.0
        if tensor.allocated_bytes > self.limit_bytes:
            return np.inf
        return float(self.rent_us_per_byte[end] - self.rent_us_per_byte[start]) * tensor.allocated_bytes


def certified_bound_us(
    graph: Graph,
    profile: Profile,
    links: Links,
    plan: Plan,
    moves: bool,
    fixed: Mapping[str, Tier],
    fast_operands_only: bool,
) -> float:
    """The bound of the plan's certificate; `moves` says whether the optimizer may move tensors."""
    assert plan.certificate is not None
    prices = np.asarray(plan.certificate.prices_us_per_byte, dtype=np.float64)
    count = len(graph.kernels)
    require(len(prices) == count, Fault.CERTIFICATE, f"{len(prices)} prices for {count} kernels")
    require(
        bool(np.isfinite(prices).all() and (prices >= 0).all()), Fault.CERTIFICATE, "a price is not finite and >= 0"
    )
    menus = Menus(graph, profile, plan, fixed, fast_operands_only)
    slow_us = _slow_prices(plan, menus)
    rent = np.concatenate(([0.0], np.cumsum(prices)))
    charged = _Prices(
        graph, profile, links, slow_us, frozenset(plan.tabled), rent, plan.dram_limit_bytes, fast_operands_only
    )
    total = -float(prices.sum()) * plan.dram_limit_bytes
    for index in range(count):
        shares = [slow_us[index, name] for name in menus.operands(index)] if index in charged.tabled else []
        total += menus.cheapest_us(index, float(prices[index]), shares)
    chosen_with_kernel = {name for index in range(count) for name in own_workspaces(graph, index)}
    for tensor in graph.movable:
        if tensor.name in chosen_with_kernel:
            continue
        if tensor.name in fixed or tensor.held or not moves:
            total += _cheapest_for_life(charged, tensor, fixed.get(tensor.name))
        else:
            total += _cheapest_path(charged, tensor)
    return total


def _slow_prices(plan: Plan, menus: Menus) -> dict[tuple[int, str], float]:
    """What each operand of each tabled kernel pays for being slow."""
    assert plan.certificate is not None
    stated = plan.certificate.slow_us
    same = len(stated) == len(plan.tabled)
    require(same, Fault.CERTIFICATE, f"slow operands of {len(stated)} kernels, {len(plan.tabled)} are tabled")
    prices = {}
    for index, shares in zip(plan.tabled, stated, strict=True):
        names = menus.operands(index)
        require(len(shares) == len(names), Fault.CERTIFICATE, f"{len(shares)} operands at kernel {index}: {names}")
        require(bool(np.isfinite(shares).all()), Fault.CERTIFICATE, f"a price at kernel {index} is not finite")
        prices.update({(index, name): price for name, price in zip(names, shares, strict=True)})
    return prices


def _cheapest_for_life(charged: _Prices, tensor: Tensor, tier: Tier | None) -> float:
    fast = charged.fast_us(tensor, tensor.live.start, tensor.live.stop)
    if tier is Tier.DRAM:
        return fast
    slow = sum(charged.slow_us(tensor, user) for user in tensor.users)
    return slow if tier is Tier.PMEM else min(fast, slow)


def _cheapest_path(charged: _Prices, tensor: Tensor) -> float:
    """Shortest path over (kernel using the tensor) x (only fast, fast and slow, only slow), as a min-plus product."""
    write = charged.links.copy_us(Tier.PMEM, tensor.size_bytes)
    read = charged.links.copy_us(Tier.DRAM, tensor.size_bytes)
    users = tensor.users
    cost = _at(charged, tensor, users[0])
    cost[1] = np.inf
    for before, user in pairwise(users):
        keep = charged.fast_us(tensor, before + 1, user)
        way = np.array(
            [
                [keep, write + read, write],
                [np.inf, min(keep, read), 0.0],
                [np.inf, read, 0.0],
            ]
        )
        cost = (cost[:, None] + way).min(axis=0) + _at(charged, tensor, user)
    return float(cost.min())


def _at(charged: _Prices, tensor: Tensor, user: int) -> npt.NDArray[np.float64]:
    fast = charged.fast_us(tensor, user, user + 1)
    return np.array([fast, fast, charged.slow_us(tensor, user)])
