"""The lower bound that a certificate proves, and the time of kernels and copying engines, without a solver."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from autotm.check.certificate import Floats, HoldingCosts, Spans
from autotm.check.fault import RULES, Fault, called_kernels, check_calls, require
from autotm.model.graph import ChosenGraph, CountedGraph, Tensor, Tier
from autotm.model.links import Links, OverlapCosts
from autotm.model.plan import WINDOW_HALVES, Move, Plan, SlowPrices
from autotm.model.profile import Profile

# Copying engines in a plan: which windows a tensor's asynchronous moves may take, and whether the engines keep up.
#
# Definitions (A1) to (A5) of `docs/formulation.md` §9, written down a second time: nothing here is shared with `solve`.

_NEVER_NS = 2**62  # later than any step ends

_Job = tuple[int, int, int, str]
"""A move: nanoseconds of its earliest start, its latest end and its work for an engine, and its name."""


@dataclass(frozen=True)
class Engines:
    """The engines that copy while the kernels of one step run, by destination."""

    graph: CountedGraph
    links: Links
    kernel_ns: npt.NDArray[np.int64]

    @classmethod
    def of(cls, graph: CountedGraph, profile: Profile, links: Links) -> Engines:
        """Return the engines of a step, with (A1) the least all-fast time of every kernel over its implementations."""
        least = [profile.least_us(kernel) for kernel in graph.kernels]
        return cls(graph, links, np.rint(np.array(least) * 1e3).astype(np.int64))

    @cached_property
    def until_ns(self) -> npt.NDArray[np.int64]:
        """(kernels + 1,) When each kernel begins, and the last one ends."""
        return np.concatenate(([0], np.cumsum(self.kernel_ns)))

    @cached_property
    def _until(self) -> list[int]:
        """`until_ns` as numbers of Python, of which a few are read much faster."""
        return [int(each) for each in self.until_ns]

    @cached_property
    def held_up_ns(self) -> dict[Tier, npt.NDArray[np.int64]]:
        """(kernels + 1,) By destination: what kernels add, until each begins, to a copy as long as they are."""
        held_up = {}
        for tier in Tier:
            shares = np.array([self.links.contention(tier)[kernel.op_class].to_copy for kernel in self.graph.kernels])
            held_up[tier] = np.concatenate(([0], np.cumsum(np.rint(shares * self.kernel_ns).astype(np.int64))))
        return held_up

    def alone_ns(self, tensor: Tensor, destination: Tier) -> int:
        """Return how long an engine works at a move while no kernel runs (A1)."""
        return math.ceil(1e3 * self.links.transfer_us(destination, tensor.size_bytes))

    def work_ns(self, tensor: Tensor, destination: Tier, start: int, end: int) -> int:
        """Return how long an engine works at a move that overlaps kernels [start, end) (A2)."""
        alone = self.alone_ns(tensor, destination)
        held_up, until = self.held_up_ns[destination], self._until
        more = alone * int(held_up[end] - held_up[start])
        lasts = max(until[end] - until[start], 1)
        return alone + (more + lasts - 1) // lasts

    def windows(self, tensor: Tensor, destination: Tier, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the kernels [start, end) that each move allowed in the gap [first, end) overlaps (A3)."""
        until = self._until
        within, whole = (first, end + 1), until[end] - until[first]
        middle = bisect_left(until, until[first] + (whole + 1) // 2, *within)
        if tensor.slow_at is not None:  # Nothing goes the other way in its gap.
            middle = end if destination is Tier.SLOW else first
        alone_ns = self.alone_ns(tensor, destination)
        for half in WINDOW_HALVES:
            least_ns = (half * alone_ns + 1) // 2
            if least_ns > whole:
                continue
            if destination is Tier.SLOW:
                span = first, bisect_left(until, until[first] + least_ns, *within)
                is_in_half = span[1] <= middle
            else:
                span = bisect_right(until, until[end] - least_ns, *within) - 1, end
                is_in_half = span[0] >= middle
            if is_in_half and self.work_ns(tensor, destination, *span) <= until[span[1]] - until[span[0]]:
                yield span

    def check(self, chosen: ChosenGraph, moves: Sequence[Move]) -> None:
        """Check that every asynchronous move has an allowed window, and that no engine has more to do than it can.

        `chosen` is the step with the implementations of the plan, whose workspaces its moves may name.
        """
        asked: dict[Tier, list[_Job]] = {tier: [] for tier in Tier}
        for move in moves:
            if move.since is None:
                continue
            tensor = chosen.by_name[move.tensor]
            where = f"'{move.tensor}' to {move.destination} during kernels [{move.since}, {move.before})"
            require((move.since, move.before) in self._allowed(tensor, move), Fault.WINDOW, where)
            span_ns = int(self.until_ns[move.since]), int(self.until_ns[move.before])
            work_ns = self.work_ns(tensor, move.destination, move.since, move.before)
            asked[move.destination].append((*span_ns, work_ns, where))
        for jobs in asked.values():
            late = _late(jobs)
            require(late is None, Fault.ENGINE, f"{late}: its engine has too much to do to be done in time")

    def _allowed(self, tensor: Tensor, move: Move) -> set[tuple[int, int]]:
        """Return the windows of the gap between two users in which the move begins."""
        assert move.since is not None
        before = max((user for user in tensor.users if user < move.since), default=None)
        after = min((user for user in tensor.users if user >= move.since), default=None)
        if before is None or after is None:
            return set()
        return set(self.windows(tensor, move.destination, before + 1, after))


def _late(jobs: Iterable[_Job]) -> str | None:
    """Return a move that is late though the most urgent one is always served first; None if none is (A4)."""
    waiting: list[tuple[int, int, str]] = []
    now_ns = 0
    for begins_ns, due_ns, work_ns, where in [*sorted(jobs), (_NEVER_NS, _NEVER_NS, 0, "")]:
        while waiting and now_ns < begins_ns:
            due, left_ns, name = heapq.heappop(waiting)
            worked_ns = min(left_ns, begins_ns - now_ns)
            now_ns += worked_ns
            if now_ns > due:
                return name
            if worked_ns < left_ns:
                heapq.heappush(waiting, (due, left_ns - worked_ns, name))
        now_ns = max(now_ns, begins_ns)
        heapq.heappush(waiting, (due_ns, work_ns, where))
    return None


# The time of a kernel: by implementation and configuration where a plan tabled it, else by the additive reading.


def computed(graph: CountedGraph, plan: Plan) -> ChosenGraph:
    """Return the step with the plan's implementations, as it is called.

    Raises:
        FaultError: it names an implementation that a kernel has not, or not one for each kernel; or its calls are not
            those of a step.
    """
    names = plan.implementations
    for index, (kernel, name) in enumerate(zip(graph.kernels, names, strict=False)):
        known = name in kernel.implementations
        require(known, Fault.IMPLEMENTATION, f"kernel {index} '{kernel.name}' has none called '{name}'")
    count = len(graph.kernels)
    require(len(names) in {0, count}, Fault.IMPLEMENTATION, f"{len(names)} implementations for {count} kernels")
    check_calls(graph, plan)
    return plan.step_of(graph)


def kernel_us(
    graph: CountedGraph, chosen: ChosenGraph, profile: Profile, plan: Plan, index: int, slow: frozenset[str]
) -> float:
    """Return a call's predicted time as the plan computes it, with exactly the operands in `slow` in slow memory."""
    kernel, number = chosen.kernels[index], called_kernels(graph, plan)[index]
    at = bisect_left(plan.tabled, number)
    if plan.tabled[at : at + 1] == (number,):
        return profile.time_us(chosen, kernel, slow)
    own = slow & {operand.tensor for operand in kernel.workspaces}
    extra_us = sum(profile.extra_us(chosen, kernel, name) for name in own)
    # What slow inputs and outputs add is the same for all implementations of the kernel.
    shared_us = sum(profile.extra_us(graph, graph.kernels[number], name) for name in slow - own)
    return profile.base_us(kernel) + extra_us + shared_us


def own_workspaces(graph: CountedGraph, index: int) -> tuple[str, ...]:
    """Return the workspaces of the default implementation, which are no operands, since another may be chosen."""
    kernel = graph.kernels[index]
    return tuple(operand.tensor for operand in kernel.workspaces) if kernel.alternatives else ()


class Menus:
    """The cheapest implementation and configuration of every kernel, given prices of bytes and of slow operands."""

    def __init__(
        self, graph: CountedGraph, profile: Profile, plan: Plan, fixed: Mapping[str, Tier], fast_operands_only: bool
    ) -> None:
        self._profile = profile
        self._plan = plan
        self._fixed = fixed
        self._fast_only = fast_operands_only
        self._graph = graph
        count = max((len(kernel.implementations) for kernel in graph.kernels), default=1)
        names = [kernel.implementations for kernel in graph.kernels]
        self._variants = [graph.computed_by([(name * count)[rank] for name in names]) for rank in range(count)]
        self._read: dict[object, tuple[npt.NDArray[np.float64], ...]] = {}

    def operands(self, index: int) -> list[str]:
        """Return the movable tensors whose tiers a tabled kernel's entries tell apart."""
        graph = self._graph
        own = own_workspaces(graph, index)
        return [name for name in graph.slots_of(graph.kernels[index]) if name not in own]

    def cheapest_us(self, index: int, holding: HoldingCosts, slow_us: Floats) -> float:
        """Return the least of time + holding cost of the workspaces' fast bytes - prices of the slow operands.

        `slow_us` is of shape (operands,).
        """
        kernel = self._graph.kernels[index]
        if not kernel.alternatives and index not in self._plan.tabled:
            return self._profile.base_us(kernel)
        times_us, slow, fast_bytes = self._menu(index)
        cost_us = times_us + holding.at_us(index, fast_bytes) - slow @ slow_us
        return float(cost_us[fast_bytes <= self._plan.dram_limit_bytes].min(initial=math.inf))

    def _menu(self, index: int) -> tuple[npt.NDArray[np.float64], ...]:
        """Return the times, slow operands (entries x operands) and fast bytes of the entries of all implementations."""
        kernel, parts = self._graph.kernels[index], []
        for variant in self._variants[: len(kernel.implementations)]:
            chosen = variant.kernels[index]
            own = [operand.tensor for operand in chosen.workspaces] if kernel.alternatives else []
            parts.append(self._entries(variant, index, own))
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    def _entries(self, variant: ChosenGraph, index: int, own: list[str]) -> tuple[npt.NDArray[np.float64], ...]:
        """Return, as `_menu` does, the times, slow operands and fast bytes of the entries of one implementation."""
        tabled = index in self._plan.tabled
        operands = self.operands(index) if tabled else []
        kernel = variant.kernels[index]
        # False is fast, True is slow.
        free = (False,) if self._fast_only else (False, True)
        tiers = tuple((self._fixed[name] is Tier.SLOW,) if name in self._fixed else free for name in own)
        key = (tabled, kernel.identity, kernel.implementation, tiers, tuple(variant.slots_of(kernel).values()))
        if key not in self._read:
            sizes = {name: variant.by_name[name].allocated_bytes for name in own}
            rows: list[tuple[float, tuple[bool, ...], int]] = []
            for at in product((False, True), repeat=len(operands)):
                for spilled in product(*tiers):
                    slow = {name for name, is_slow in zip(operands + own, at + spilled, strict=True) if is_slow}
                    time_us = kernel_us(self._graph, variant, self._profile, self._plan, index, frozenset(slow))
                    rows.append((time_us, at, sum(size for name, size in sizes.items() if name not in slow)))
            columns = [np.array(column, np.float64) for column in zip(*rows, strict=True)]
            columns[1] = columns[1].reshape(len(rows), len(operands))
            self._read[key] = tuple(columns)
        return self._read[key]


# The lower bound that a certificate proves, computed without a solver.
#
# Relaxing the capacity of fast memory at prices p_i >= 0 per byte and kernel, and the agreement of tensors and tabled
# kernels on each operand's tier at prices q of any sign, gives, for any prices,
#
#     bound = sum over kernels (cheapest implementation and configuration, which receives q for each slow operand)
#           + sum over tensors (cheapest path, which pays q for being slow) - sum over kernels p_i * limit,
#
# a lower bound on every plan (weak duality). What is larger than the limit never is in fast memory. Where moves may be
# asynchronous, so is the demand on both copying engines (`Spans`): a move pays for the spans of kernels in which it
# must be made, and the bound is less by the price of what engines can do in all of them. Weights of tensors may have
# prices too (`PricedCut`).

SlowPriceTable = Mapping[tuple[int, str], float]
"""By tabled kernel and operand, the microseconds that the operand's tensor pays for being slow."""


def proven_bound_us(
    graph: CountedGraph,
    profile: Profile,
    links: Links,
    plan: Plan,
    *,
    fixed: Mapping[str, Tier] | None = None,
    fast_operands_only: bool = False,
) -> float:
    """Return the lower bound, in microseconds, that a plan's certificate proves if `fixed` tensors never move.

    The prices of a certificate are valid for any restriction of the choices: with a tensor fixed, they prove a bound
    that no plan of that kind can undercut, however well the others are placed.

    Raises:
        FaultError: the certificate is malformed, or `fixed` leaves no plan at all.
    """
    assert plan.certificate is not None
    stated, count, fixed, rules = plan.certificate, len(graph.kernels), fixed or {}, RULES[plan.optimizer]
    engines = Engines.of(graph, profile, links) if rules.async_moves else None
    idle = not (stated.out.starts or stated.back.starts)
    require(engines is not None or idle, Fault.CERTIFICATE, "prices of engines that are not used")
    menus = Menus(graph, profile, plan, fixed, fast_operands_only)
    holding = HoldingCosts(stated, graph, plan.dram_limit_bytes)
    spans = {Tier.SLOW: Spans(stated.out, count), Tier.FAST: Spans(stated.back, count)}
    slow_us = _slow_prices(stated.slow, menus, plan.tabled)
    charged = _Charged(graph, profile, links, plan, engines, fast_operands_only, holding, slow_us, spans)
    total = -holding.whole_us
    if engines is not None:
        total -= sum(each.whole_us(engines.until_ns) for each in spans.values())
    for index in range(count):
        names = menus.operands(index) if index in charged.tabled else []
        total += menus.cheapest_us(index, holding, np.array([slow_us[index, name] for name in names]))
    chosen_with_kernel = {name for index in range(count) for name in own_workspaces(graph, index)}
    for tensor in graph.movable:
        if tensor.name in chosen_with_kernel:
            continue
        if not rules.moves or tensor.held or tensor.name in fixed:
            total += _cheapest_for_life(charged, tensor, fixed.get(tensor.name))
        else:
            total += _cheapest_path(charged, tensor)
    require(math.isfinite(total), Fault.CERTIFICATE, "it leaves no plan at all")
    return total


@dataclass(frozen=True)
class _Charged:
    """Costs of the relaxed problem, in microseconds: for slow operands, for fast memory and for copies."""

    graph: CountedGraph
    profile: Profile
    links: Links
    plan: Plan
    engines: Engines | None
    operands_fast: bool
    holding: HoldingCosts
    tabled_us: SlowPriceTable
    spans: Mapping[Tier, Spans]

    @cached_property
    def overlap(self) -> OverlapCosts:
        """The model of the time that asynchronous moves add to the step."""
        return OverlapCosts(self.graph, self.profile, self.links)

    @cached_property
    def tabled(self) -> frozenset[int]:
        """Kernels priced by the measured time of their configuration."""
        return frozenset(self.plan.tabled)

    def slow_us(self, tensor: Tensor, user: int) -> float:
        """Return the price that kernel `user` charges if the tensor is slow; infinite if operands must be fast."""
        if user == tensor.slow_at:
            return 0.0
        if self.operands_fast:
            return math.inf
        if user in self.tabled:
            return self.tabled_us[user, tensor.name]
        return self.profile.extra_us(self.graph, self.graph.kernels[user], tensor.name)

    def fast_at_us(self, tensor: Tensor, user: int) -> float:
        """Return the holding cost of fast memory at a kernel that uses it; infinite where the tensor must be slow."""
        return math.inf if user == tensor.slow_at else self.fast_us(tensor, user, user + 1)

    def fast_us(self, tensor: Tensor, start: int, end: int) -> float:
        """Return the holding cost of fast memory in kernels [start, end): one that uses it, or all between two."""
        if end <= start:
            return 0.0
        if tensor.allocated_bytes > self.plan.dram_limit_bytes:
            return math.inf
        return self.holding.span_us(tensor.name, tensor.allocated_bytes, start, end)

    def copy_us(self, tensor: Tensor, destination: Tier, first: int, end: int) -> float:
        """Return the cheapest copy over the gap [first, end), blocking or in a window, with its memory and engine.

        Windows of asynchronous copies that would cost no less than the blocking one are none.
        """
        blocking = self.links.copy_us(destination, tensor.size_bytes)
        if self.engines is None:
            return blocking
        if self.links.least_added_us(destination, tensor.size_bytes) >= blocking:
            return blocking
        least = blocking
        for start, stop in self.engines.windows(tensor, destination, first, end):
            added = self.overlap.added_us(destination, tensor.size_bytes, start, stop)
            if added >= blocking:
                continue
            work_ns = self.engines.work_ns(tensor, destination, start, stop)
            work_us = work_ns * self.spans[destination].around_us(start, stop)
            least = min(least, added + self.fast_us(tensor, start, stop) + work_us)
        return least


def _slow_prices(slow: SlowPrices, menus: Menus, tabled: Sequence[int]) -> SlowPriceTable:
    """Return the price that each operand of each tabled kernel pays for being slow; 0 if the certificate has none.

    Raises:
        FaultError: the certificate's prices of slow operands are malformed.
    """
    same = len(slow.kernels) == len(slow.tensors) == len(slow.prices_us)
    require(same, Fault.CERTIFICATE, "prices of slow operands without their kernels and tensors")
    require(bool(np.isfinite(slow.prices_us).all()), Fault.CERTIFICATE, "a price of a slow operand is not finite")
    names = {(index, name): 0.0 for index in tabled for name in menus.operands(index)}
    stated = dict(zip(zip(slow.kernels, slow.tensors, strict=True), slow.prices_us, strict=True))
    for kernel, tensor in stated:
        known = (kernel, tensor) in names
        require(known, Fault.CERTIFICATE, f"a price of '{tensor}' at kernel {kernel}, which has no table with it")
    require(len(stated) == len(slow.kernels), Fault.CERTIFICATE, "two prices of one slow operand")
    return names | stated


def _cheapest_for_life(charged: _Charged, tensor: Tensor, tier: Tier | None) -> float:
    fast = charged.fast_us(tensor, tensor.live.start, tensor.live.stop)
    # Where operands are fast, what no kernel uses is so, too: an unused parameter is on the device all the same.
    if tier is Tier.FAST or (tier is None and charged.operands_fast):
        return fast
    slow = sum((charged.slow_us(tensor, user) for user in tensor.users), start=0.0)
    return slow if tier is Tier.SLOW else min(fast, slow)


def _cheapest_path(charged: _Charged, tensor: Tensor) -> float:
    """Return the shortest path over (kernel using the tensor) x (only fast, fast and slow, only slow)."""
    users = tensor.users
    only, both, slow = charged.fast_at_us(tensor, users[0]), math.inf, charged.slow_us(tensor, users[0])
    for before, user in pairwise(users):
        gap = before + 1, user
        keep, write = charged.fast_us(tensor, *gap), charged.copy_us(tensor, Tier.SLOW, *gap)
        read = charged.copy_us(tensor, Tier.FAST, *gap)
        left = min(only + write, both, slow)
        fast_at = charged.fast_at_us(tensor, user)
        both = min(both + keep, left + read) + fast_at
        only, slow = only + keep + fast_at, left + charged.slow_us(tensor, user)
    return min(only, both, slow)
