"""The lower bound that a certificate's prices prove, computed without a solver.

Relaxing the capacity of fast memory at prices p_i >= 0 per byte and kernel, and the agreement of tensors and tabled
kernels on each operand's tier at prices q of any sign, gives, for any prices,

    bound = sum over kernels (cheapest implementation and configuration, which receives q for each slow operand)
          + sum over tensors (cheapest path, which pays q for being slow) - sum over kernels p_i * limit,

a lower bound on every plan (weak duality). What is larger than the limit never is in fast memory. Where moves may be
asynchronous, so is the capacity of both copying engines, at prices of their parts: a move pays for its parts, and the
bound is less by the price of all parts. Whole portions of fast memory may have prices too (`rent.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autotm.check.engine import Engines
from autotm.check.entries import Menus, own_workspaces, shared_us
from autotm.check.fault import Fault, require
from autotm.check.rent import Rent, checked_prices, until
from autotm.model.engine import ENGINE_PARTS
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
    rent: Rent
    limit_bytes: int
    operands_fast: bool
    engines: Engines | None
    part_us: Mapping[Tier, npt.NDArray[np.float64]]

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
        return self.rent.span_us(tensor.allocated_bytes, start, end)

    def copy_us(self, tensor: Tensor, destination: Tier, first: int, end: int) -> float:
        """The cheapest copy over the gap [first, end): blocking, or in a window with its rent and share of the engine.

        Windows of asynchronous copies that would cost no less than the blocking one need no look.
        """
        blocking = self.links.copy_us(destination, tensor.size_bytes)
        if self.engines is None:
            return blocking
        beside = self.links.beside_us(destination, tensor.size_bytes)
        if beside >= blocking:
            return blocking
        ways = [blocking]
        for start, stop in self.engines.windows(tensor, destination, first, end):
            parts = self.engines.use(tensor, destination, start, stop)
            engine_us = float(self.part_us[destination][stop] - self.part_us[destination][start]) * parts
            ways.append(beside + self.fast_us(tensor, start, stop) + engine_us)
        return min(ways)


def certified_bound_us(
    graph: Graph,
    profile: Profile,
    links: Links,
    plan: Plan,
    moves: bool,
    engines: Engines | None,
    fixed: Mapping[str, Tier],
    fast_operands_only: bool,
) -> float:
    """The bound of the plan's certificate.

    `moves` says whether the optimizer may move tensors; `engines` those that copy beside kernels if it has any.
    """
    assert plan.certificate is not None
    count = len(graph.kernels)
    rent = Rent(plan.certificate, count)
    stated = {Tier.PMEM: plan.certificate.out_us, Tier.DRAM: plan.certificate.back_us}
    require(engines is not None or not any(stated.values()), Fault.CERTIFICATE, "prices of engines that are not used")
    # An optimizer that could use the engines, but found no window worth it, states no prices: they are zero.
    parts = {tier: checked_prices(values, count) if values else np.zeros(count) for tier, values in stated.items()}
    menus = Menus(graph, profile, plan, fixed, fast_operands_only)
    slow_us = _slow_prices(plan, menus)
    charged = _Prices(
        graph,
        profile,
        links,
        slow_us,
        frozenset(plan.tabled),
        rent,
        plan.dram_limit_bytes,
        fast_operands_only,
        engines,
        {tier: until(values) for tier, values in parts.items()},
    )
    total = -rent.whole_us(plan.dram_limit_bytes)
    total -= sum(float(values.sum()) for values in parts.values()) * ENGINE_PARTS
    for index in range(count):
        shares = [slow_us[index, name] for name in menus.operands(index)] if index in charged.tabled else []
        total += menus.cheapest_us(index, rent, shares)
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
    users = tensor.users
    cost = _at(charged, tensor, users[0])
    cost[1] = np.inf
    for before, user in pairwise(users):
        keep = charged.fast_us(tensor, before + 1, user)
        write = charged.copy_us(tensor, Tier.PMEM, before + 1, user)
        read = charged.copy_us(tensor, Tier.DRAM, before + 1, user)
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
