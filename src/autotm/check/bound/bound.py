"""The lower bound that a certificate proves, computed without a solver.

Relaxing the capacity of fast memory at prices p_i >= 0 per byte and kernel, and the agreement of tensors and tabled
kernels on each operand's tier at prices q of any sign, gives, for any prices,

    bound = sum over kernels (cheapest implementation and configuration, which receives q for each slow operand)
          + sum over tensors (cheapest path, which pays q for being slow) - sum over kernels p_i * limit,

a lower bound on every plan (weak duality). What is larger than the limit never is in fast memory. Where moves may be
asynchronous, so is the demand on both copying engines (`spans.py`): a move pays for the spans of kernels in which it
must be made, and the bound is less by the price of what engines can do in all of them. Weights of tensors may have
prices too (`holding.py`).

In a case of the certificate's tree (`cases.py`), tensors are fast somewhere or are not; then only paths that keep to
this count, and what is larger than the room that is left never is in fast memory. Every plan falls into a case, so the
least bound of all cases holds. Cases are computed many at a time: numbers here are arrays over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from autotm.check.bound.cases import Assumed, Case, Flags, batches, cases_of
from autotm.check.bound.engine import Engines
from autotm.check.bound.entries import Menus, own_workspaces, shared_us
from autotm.check.bound.holding import Floats, HoldingCosts, Weights
from autotm.check.bound.spans import Spans
from autotm.check.fault import Fault, require
from autotm.model.measurement import BesideKernels, Links, Profile
from autotm.model.plan import Plan, Prices
from autotm.model.step import Graph, Tensor, Tier

_AT_ONCE = 128
"""Cases that are computed together; more only take memory."""

SlowPriceTable = Mapping[tuple[int, str], Floats]
"""(cases,) By tabled kernel and operand, what the operand's tensor pays for being slow."""


@dataclass(frozen=True)
class _Step:
    """What the bounds of all cases have in common."""

    graph: Graph
    profile: Profile
    links: Links
    plan: Plan
    moves: bool
    engines: Engines | None
    fixed: Mapping[str, Tier]
    operands_fast: bool
    menus: Menus
    weights: Weights

    @cached_property
    def beside(self) -> BesideKernels:
        """What asynchronous moves add to the step."""
        return BesideKernels(self.graph, self.profile, self.links)

    @cached_property
    def for_life(self) -> frozenset[str]:
        """Tensors that never move."""
        held = (one.name for one in self.graph.movable if not self.moves or one.held or one.name in self.fixed)
        return frozenset(held)


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

    Raises:
        FaultError: the certificate is malformed.
    """
    assert plan.certificate is not None
    require(bool(plan.certificate.prices), Fault.CERTIFICATE, "it has no prices")
    menus = Menus(graph, profile, plan, fixed, fast_operands_only)
    weights = Weights(plan.certificate, graph, plan.dram_limit_bytes)
    step = _Step(graph, profile, links, plan, moves, engines, fixed, fast_operands_only, menus, weights)
    least = np.inf
    for cases in batches(cases_of(plan.certificate), _AT_ONCE):
        assumed = Assumed(graph, cases, plan.dram_limit_bytes, step.for_life)
        least = min(least, float(_bounds_us(step, cases, assumed).min()))
    require(bool(np.isfinite(least)), Fault.CERTIFICATE, "it leaves no plan at all")
    return least


def _bounds_us(step: _Step, cases: Sequence[Case], assumed: Assumed) -> Floats:
    """(cases,) The bound of each; infinite where it is empty."""
    graph, plan, count = step.graph, step.plan, len(step.graph.kernels)
    assert plan.certificate is not None
    sets = plan.certificate.prices
    stated = [sets[case.prices] for case in cases]
    holding = HoldingCosts(step.weights, stated, count)
    idle = not any(each.out.starts or each.back.starts for each in stated)
    require(step.engines is not None or idle, Fault.CERTIFICATE, "prices of engines that are not used")
    spans = {
        Tier.PMEM: Spans([each.out for each in stated], count),
        Tier.DRAM: Spans([each.back for each in stated], count),
    }
    slow_us = _slow_prices(step, sets[0], stated)
    charged = _Charged(step, holding, assumed, slow_us, frozenset(plan.tabled), spans)
    total = -holding.whole_us(plan.dram_limit_bytes)
    if step.engines is not None:
        total -= sum(each.whole_us(step.engines.until_ns) for each in spans.values())
    none = np.zeros((0, len(cases)))
    for index in range(count):
        names = step.menus.operands(index) if index in charged.tabled else []
        shares = np.array([slow_us[index, name] for name in names]) if names else none
        total += step.menus.cheapest_us(index, holding, shares, assumed)
    chosen_with_kernel = {name for index in range(count) for name in own_workspaces(graph, index)}
    for tensor in graph.movable:
        if tensor.name in chosen_with_kernel:
            continue
        if tensor.name in step.for_life:
            total += _cheapest_for_life(charged, tensor, step.fixed.get(tensor.name))
        else:
            total += _cheapest_path(charged, tensor)
    return np.where(assumed.empty, np.inf, total)


@dataclass(frozen=True)
class _Charged:
    """What the relaxed problem charges; arrays are of shape (cases,)."""

    step: _Step
    holding: HoldingCosts
    assumed: Assumed
    tabled_us: SlowPriceTable
    tabled: frozenset[int]
    spans: Mapping[Tier, Spans]

    def slow_us(self, tensor: Tensor, user: int) -> Floats | float:
        """What a kernel charges for the tensor being slow."""
        if self.step.operands_fast:
            return np.inf
        if user in self.tabled:
            return self.tabled_us[user, tensor.name]
        return shared_us(self.step.graph, self.step.profile, user, tensor.name)

    def fast_us(self, tensor: Tensor, start: int, end: int) -> Floats | float:
        """Holding cost of fast memory during kernels [start, end), a kernel that uses it or all between two."""
        if end <= start:
            return 0.0
        holding_us = self.holding.span_us(tensor.name, tensor.allocated_bytes, start, end)
        return self.unless(self.assumed.excluded(tensor, start, end), holding_us)

    def unless(self, excluded: Flags, cost_us: Floats | float) -> Floats | float:
        """(cases,) The cost, infinite where that is excluded."""
        return cost_us if excluded is self.assumed.never else np.where(excluded, np.inf, cost_us)

    def copy_us(self, tensor: Tensor, destination: Tier, first: int, end: int) -> Floats | float:
        """The cheapest copy over the gap [first, end): blocking, or in a window, with what memory and engine cost.

        Windows of asynchronous copies that would cost no less than the blocking one are none.
        """
        step = self.step
        blocking = step.links.copy_us(destination, tensor.size_bytes)
        if step.engines is None:
            return blocking
        if step.beside.least_added_us(destination, tensor.size_bytes) >= blocking:
            return blocking
        excluded = self.assumed.not_copied(tensor, destination, first, None)
        least = self.unless(excluded, blocking)
        for start, stop in step.engines.windows(tensor, destination, first, end):
            beside = step.beside.added_us(destination, tensor.size_bytes, start, stop)
            if beside >= blocking:
                continue
            work_ns = step.engines.work_ns(tensor, destination, start, stop)
            work_us = work_ns * self.spans[destination].around_us(start, stop)
            held_us = self.holding.span_us(tensor.name, tensor.allocated_bytes, start, stop)
            excluded = self.assumed.not_copied(tensor, destination, first, (start, stop))
            excluded = np.logical_or(excluded, self.assumed.has_no_room(tensor, start, stop))
            held_us = np.where(excluded, np.inf, held_us)
            least = np.minimum(least, beside + held_us + work_us)
        return least


def _slow_prices(step: _Step, first: Prices, stated: Sequence[Prices]) -> SlowPriceTable:
    """What each operand of each tabled kernel pays for being slow; the first set speaks where another is silent."""
    names = {(index, name): 0.0 for index in step.plan.tabled for name in step.menus.operands(index)}
    usual = {**names, **_stated_slow(first, names)}
    found = {key: np.full(len(stated), price) for key, price in usual.items()}
    for number, prices in enumerate(stated):
        if prices is not first:
            for key, price in _stated_slow(prices, names).items():
                found[key][number] = price
    return found


def _stated_slow(prices: Prices, names: Mapping[tuple[int, str], float]) -> dict[tuple[int, str], float]:
    slow = prices.slow
    same = len(slow.kernels) == len(slow.tensors) == len(slow.prices_us)
    require(same, Fault.CERTIFICATE, "prices of slow operands without their kernels and tensors")
    require(bool(np.isfinite(slow.prices_us).all()), Fault.CERTIFICATE, "a price of a slow operand is not finite")
    found = dict(zip(zip(slow.kernels, slow.tensors, strict=True), slow.prices_us, strict=True))
    for kernel, tensor in found:
        known = (kernel, tensor) in names
        require(known, Fault.CERTIFICATE, f"a price of '{tensor}' at kernel {kernel}, which has no table with it")
    require(len(found) == len(slow.kernels), Fault.CERTIFICATE, "two prices of one slow operand")
    return found


def _cheapest_for_life(charged: _Charged, tensor: Tensor, tier: Tier | None) -> Floats | float:
    start, stop = tensor.live.start, tensor.live.stop
    fast = charged.fast_us(tensor, start, stop)
    # Where operands are fast, what no kernel uses is so, too: an unused parameter is on the device all the same.
    if tier is Tier.DRAM or (tier is None and charged.step.operands_fast):
        return fast
    slow: Floats | float = sum((charged.slow_us(tensor, user) for user in tensor.users), start=0.0)
    if tier is Tier.PMEM:
        return slow
    return np.minimum(fast, charged.unless(charged.assumed.fast(tensor, start), slow))


def _cheapest_path(charged: _Charged, tensor: Tensor) -> Floats:
    """Shortest path over (kernel using the tensor) x (only fast, fast and slow, only slow)."""
    users = tensor.users
    only, slow = _at(charged, tensor, users[0])
    both: Floats | float = np.inf
    for before, user in pairwise(users):
        gap = before + 1, user
        keep, write = charged.fast_us(tensor, *gap), charged.copy_us(tensor, Tier.PMEM, *gap)
        read = charged.copy_us(tensor, Tier.DRAM, *gap)
        # Who is assumed to stay fast over the gap does not leave.
        away = charged.unless(charged.assumed.fast(tensor, before + 1), 0.0) if user > before + 1 else 0.0
        left = np.minimum(only + write, np.minimum(both, slow)) + away
        fast_at, slow_at = _at(charged, tensor, user)
        both = np.minimum(both + keep, left + read) + fast_at
        only, slow = only + keep + fast_at, left + slow_at
    least: Floats = np.minimum(np.minimum(only, both), slow)
    return least


def _at(charged: _Charged, tensor: Tensor, user: int) -> tuple[Floats | float, Floats | float]:
    """Cost of being fast, and of being slow, at a kernel that uses the tensor."""
    slow = charged.unless(charged.assumed.fast(tensor, user), charged.slow_us(tensor, user))
    return charged.fast_us(tensor, user, user + 1), slow
