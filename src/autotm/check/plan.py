"""Checks whether a plan is legal and as good as it states: tiers, addresses, times and bound."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from autotm.check.bound import Engines, computed, kernel_us, proven_bound_us
from autotm.check.fault import RULES, UNLIMITED, Fault, require
from autotm.check.one_pool import check_cached, check_paged
from autotm.model.cache import amplified_bytes
from autotm.model.errors import unknown_name
from autotm.model.files import hash_of
from autotm.model.graph import ALIGNMENT_BYTES, ChosenGraph, CountedGraph, Tensor, Tier
from autotm.model.limit import counted_by, fixed_bytes
from autotm.model.links import Links, OverlapCosts
from autotm.model.plan import Move, Plan, Status, Stay
from autotm.model.profile import Profile, slow_rates


class Residence:
    """The stays of a plan by tensor and tier, and what they mean at each kernel."""

    def __init__(self, graph: ChosenGraph, plan: Plan) -> None:
        self._graph = graph
        self._plan = plan
        self._stays: dict[tuple[str, Tier], list[Stay]] = defaultdict(list)
        for stay in sorted(plan.stays, key=lambda stay: stay.start):
            self._stays[stay.tensor, stay.tier].append(stay)
        self._moves: dict[str, list[Move]] = defaultdict(list)
        for move in plan.moves:
            self._moves[move.tensor].append(move)

    def check(self) -> None:
        """Check that stays have data from their first kernel on, and moves a source, a destination and their order."""
        stays = [(stay.start, stay.tensor, stay.tier.value) for stay in self._plan.stays]
        require(stays == sorted(stays), Fault.ORDER, "stays are not sorted by start, tensor, tier")
        moves = [(move.before, not move.is_asynchronous, move.destination is Tier.FAST) for move in self._plan.moves]
        order = "asynchronous ones first, then those to slow memory"
        require(moves == sorted(moves), Fault.ORDER, f"moves are not in the order of completion, {order}")
        for stay in self._plan.stays:
            self._check_stay(stay)
        for (tensor, tier), of_tensor in self._stays.items():
            for before, after in pairwise(of_tensor):
                apart = before.end <= after.start
                require(apart, Fault.DOUBLE_STAY, f"'{tensor}' in {tier} memory from {after.start}")
        for move in self._plan.moves:
            self._check_move(move)
        for stay in self._plan.stays:
            self._check_origin(stay)
        for movable in self._graph.movable:
            for user in movable.users:
                held = {tier for tier in Tier if self.usable(movable.name, tier, user)}
                right = held == {Tier.SLOW} if user == movable.slow_at else held
                require(bool(right), Fault.NOT_HELD, f"'{movable.name}' at kernel {user}")

    def usable(self, tensor: str, tier: Tier, kernel: int) -> bool:
        """Return whether a stay in `tier` covers `kernel`, and no asynchronous move is still filling it."""
        filling = any(move.destination is tier and move.start <= kernel < move.before for move in self._moves[tensor])
        held = any(stay.start <= kernel < stay.end for stay in self._stays[tensor, tier])
        return held and not filling

    def slow_operands(self, kernel: int) -> frozenset[str]:
        """Return the movable operands that the kernel has to use in slow memory, having no copy in fast memory."""
        names = {operand.tensor for operand in self._graph.kernels[kernel].operands}
        movable = (name for name in names if self._graph.by_name[name].is_movable)
        return frozenset(name for name in movable if not self.usable(name, Tier.FAST, kernel))

    def _movable(self, name: str, kind: str) -> Tensor:
        tensor = self._graph.by_name.get(name)
        known = tensor is not None and tensor.is_movable
        require(known, Fault.UNKNOWN_TENSOR, f"{kind} of '{name}'")
        assert tensor is not None
        return tensor

    def _check_stay(self, stay: Stay) -> None:
        tensor, where = self._movable(stay.tensor, "stay"), f"'{stay.tensor}' stays during [{stay.start}, {stay.end})"
        inside = tensor.live.start <= stay.start < stay.end <= tensor.live.stop
        require(inside, Fault.BAD_SPAN, f"{where}, lives in {tensor.live}")
        whole = tensor.held is None or (stay.start, stay.end) == tensor.held
        require(whole, Fault.BAD_SPAN, f"'{stay.tensor}', which the next step needs too, leaves {stay.tier} memory")

    def _check_move(self, move: Move) -> None:
        tensor = self._movable(move.tensor, "move")
        where = f"'{move.tensor}' to {move.destination} before kernel {move.before}"
        inside = tensor.live.start < move.start < tensor.live.stop and move.before < tensor.live.stop
        require(inside, Fault.BAD_SPAN, where)
        # One stay holds the tensor, complete, from the start of the move to its end.
        to_slow = move.destination is Tier.SLOW
        source = Tier.FAST if to_slow else Tier.SLOW
        blocking = (move.before - 1, move.before) if to_slow else (move.before, move.before + 1)
        start, stop = (move.start, move.before) if move.is_asynchronous else blocking
        covered = any(stay.start <= start and stop <= stay.end for stay in self._stays[move.tensor, source])
        require(covered and self.usable(move.tensor, source, start), Fault.NO_SOURCE, where)
        begins = any(
            stay.start == move.start and stay.end > move.before for stay in self._stays[move.tensor, move.destination]
        )
        require(begins, Fault.NO_DESTINATION, where)
        starts = [(other.destination, other.start) for other in self._moves[move.tensor]]
        require(starts.count((move.destination, move.start)) == 1, Fault.ORDER, f"{where}, twice")

    def _check_origin(self, stay: Stay) -> None:
        other = Tier.FAST if stay.tier is Tier.SLOW else Tier.SLOW
        born = self._graph.by_name[stay.tensor].live.start
        if stay.start == born:
            twice = any(rival.start == born for rival in self._stays[stay.tensor, other])
            require(not twice, Fault.BORN_TWICE, f"'{stay.tensor}' at kernel {born}")
            return
        arrives = any(move.destination is stay.tier and move.start == stay.start for move in self._moves[stay.tensor])
        require(arrives, Fault.NO_ORIGIN, f"'{stay.tensor}' in {stay.tier} memory from kernel {stay.start}")


def check_addresses(graph: ChosenGraph, plan: Plan) -> None:
    """Check that offsets are aligned and keep the limit, and that no two stays share bytes during a kernel.

    `graph` is the step with the plan's implementations.

    Raises:
        FaultError: the first broken rule.
    """
    if not plan.offsets:
        return
    count = len(plan.offsets)
    require(count == len(plan.stays), Fault.ADDRESS, f"{count} offsets, {len(plan.stays)} stays")
    begins: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    extents: list[tuple[int, int, int]] = []
    unlimited = plan.optimizer in UNLIMITED or plan.limit.is_unlimited
    for number, (stay, offset) in enumerate(zip(plan.stays, plan.offsets, strict=True)):
        require(offset >= 0 and offset % ALIGNMENT_BYTES == 0, Fault.ALIGNMENT, f"'{stay.tensor}' at offset {offset}")
        top = offset + graph.by_name[stay.tensor].allocated_bytes
        inside = stay.tier is Tier.SLOW or unlimited or top <= plan.dram_limit_bytes
        require(inside, Fault.LIMIT, f"'{stay.tensor}' ends at byte {top}, the limit is {plan.dram_limit_bytes}")
        begins[stay.start].append(number)
        ends[stay.end].append(number)
        extents.append((offset, top, number))
    held: dict[Tier, list[tuple[int, int, int]]] = {tier: [] for tier in Tier}
    for kernel in sorted(begins.keys() | ends.keys()):
        for number in ends[kernel]:
            held[plan.stays[number].tier].remove(extents[number])
        for number in begins[kernel]:
            _take(held[plan.stays[number].tier], extents[number], plan, kernel)


def _take(held: list[tuple[int, int, int]], mine: tuple[int, int, int], plan: Plan, kernel: int) -> None:
    """Add bytes to those that are held, ascending, unless their neighbours reach into them."""
    at = bisect_left(held, mine)
    for start, end, other in held[max(0, at - 1) : at + 1]:
        apart = end <= mine[0] or mine[1] <= start
        names = f"'{plan.stays[mine[2]].tensor}' and '{plan.stays[other].tensor}'"
        require(apart, Fault.OVERLAP, f"{names} share bytes from kernel {kernel} on")
    insort(held, mine)


_TIME = 1e-9
"""Relative difference allowed for sums of floating-point times in another order."""


def check_plan(
    graph: CountedGraph, profile: Profile, links: Links, plan: Plan, *, fast_operands_only: bool = False
) -> None:
    """Vouch for a plan: residence, moves, configurations, limit, addresses, engines in integers; objective and bound.

    `fast_operands_only` says that kernels could not use slow operands.

    Raises:
        FaultError: the first broken rule.
        BadInputError: the plan names an optimizer that is not known here.
    """
    if plan.optimizer not in RULES:
        raise unknown_name("optimizer", plan.optimizer, RULES)
    require(plan.graph_hash == hash_of(graph), Fault.OTHER_GRAPH, f"plan for {plan.graph_hash}, graph {hash_of(graph)}")
    counts = counted_by(graph)
    require(plan.counts == counts, Fault.OTHER_GRAPH, f"the plan counts {plan.counts}, the graph given {counts}")
    chosen = computed(graph, plan)
    tabled = list(plan.tabled)
    known = tabled == sorted(set(tabled) & set(range(len(graph.kernels))))
    require(known, Fault.ORDER, "tabled kernels are not distinct, ascending indices of kernels")
    rules = RULES[plan.optimizer]
    once = rules.repeats or not plan.calls
    require(once, Fault.CALLS, f"'{plan.optimizer}' runs each kernel once, the plan has {len(plan.calls)} calls")
    residence = Residence(chosen, plan)
    residence.check()
    require(rules.cached == (plan.cached is not None), Fault.CACHE, f"'{plan.optimizer}' plan, cached: {plan.cached}")
    require(rules.paged == (plan.paged is not None), Fault.PAGES, f"'{plan.optimizer}' plan, pages: {plan.paged}")
    _check_restrictions(chosen, plan, residence, fast_operands_only)
    _check_configurations(chosen, plan, residence)
    _check_limit(graph, chosen, plan)
    check_addresses(chosen, plan)
    if plan.cached is not None:
        check_cached(chosen, plan, plan.cached)
    if plan.paged is not None:
        check_paged(chosen, plan, plan.paged)
    if rules.waits:
        for move in plan.moves:
            alone = move.since is None or move.before == move.since + 1
            where = f"'{move.tensor}' during kernels [{move.since}, {move.before}), of which the second waits for it"
            require(alone, Fault.WINDOW, where)
    else:
        Engines.of(graph, profile, links).check(chosen, plan.moves)
    _check_objective(graph, chosen, profile, links, plan)
    _check_bound(graph, profile, links, plan, fast_operands_only)


def _check_restrictions(graph: ChosenGraph, plan: Plan, residence: Residence, fast_operands_only: bool) -> None:
    rules = RULES[plan.optimizer]
    may_move = rules.moves or not plan.moves
    require(may_move, Fault.MOVES_FORBIDDEN, f"'{plan.optimizer}' plan has {len(plan.moves)} moves")
    flying = [move for move in plan.moves if move.is_asynchronous]
    allowed = rules.async_moves or not flying
    require(allowed, Fault.MOVES_FORBIDDEN, f"'{plan.optimizer}' has {len(flying)} asynchronous moves")
    for stay in plan.stays:
        require(stay.tier in rules.tiers, Fault.WRONG_TIER, f"'{stay.tensor}' is in {stay.tier} memory at {stay.start}")
        if not rules.moves:
            live = graph.by_name[stay.tensor].live
            whole = (stay.start, stay.end) == (live.start, live.stop)
            require(whole, Fault.BAD_SPAN, f"'{stay.tensor}' does not stay for its whole life")
    for index in range(len(graph.kernels)) if fast_operands_only else ():
        slow = residence.slow_operands(index)
        require(not slow, Fault.WRONG_TIER, f"kernel {index} uses {sorted(slow)} in slow memory")


def _check_configurations(graph: ChosenGraph, plan: Plan, residence: Residence) -> None:
    count = len(plan.configurations)
    require(count == len(graph.kernels), Fault.CONFIGURATION, f"{count} configurations, {len(graph.kernels)} kernels")
    for index, (kernel, stated) in enumerate(zip(graph.kernels, plan.configurations, strict=True)):
        slow = residence.slow_operands(index)
        implied = "".join("P" if operand.tensor in slow else "D" for operand in kernel.operands)
        where = f"kernel {index} '{kernel.name}': {stated}, stays imply {implied}"
        require(stated == implied, Fault.CONFIGURATION, where)


def _check_limit(graph: CountedGraph, chosen: ChosenGraph, plan: Plan) -> None:
    asked = plan.limit.fast_bytes(graph.peak_live_bytes, fixed_bytes(graph))
    same = asked == plan.dram_limit_bytes
    require(same, Fault.LIMIT_BYTES, f"limit {plan.limit} is {asked} bytes, plan says {plan.dram_limit_bytes}")
    if plan.optimizer in UNLIMITED:
        return
    change = [0] * (len(chosen.kernels) + 1)
    for stay in plan.stays:
        if stay.tier is Tier.FAST:
            change[stay.start] += chosen.by_name[stay.tensor].allocated_bytes
            change[stay.end] -= chosen.by_name[stay.tensor].allocated_bytes
    for index, used in enumerate(accumulate(change[:-1])):
        fits = used <= plan.dram_limit_bytes
        require(fits, Fault.LIMIT, f"kernel {index}: {used} fast bytes, {used - plan.dram_limit_bytes} over the limit")


def _check_objective(graph: CountedGraph, chosen: ChosenGraph, profile: Profile, links: Links, plan: Plan) -> None:
    kernels_us = math.fsum(kernel_times_us(graph, profile, plan, links))
    overlap = OverlapCosts(graph, profile, links)
    moves_us = math.fsum(overlap.move_us(move, chosen.by_name[move.tensor].size_bytes) for move in plan.moves)
    waited_us = _waits_us(chosen, profile, links, plan.moves) if RULES[plan.optimizer].waits else 0.0
    # Pages move at the rate of the largest blocking copy of their direction.
    pages_us = 0.0
    if plan.paged is not None:
        directions = ((links.to_fast, plan.paged.promoted_bytes), (links.to_slow, plan.paged.demoted_bytes))
        pages_us = math.fsum(sum(moved) * link.points[-1][1] / link.points[-1][0] / 1e3 for link, moved in directions)
    total_us = kernels_us + moves_us + waited_us + pages_us
    same = math.isclose(total_us, plan.objective_us, rel_tol=_TIME, abs_tol=1e-6)
    require(same, Fault.OBJECTIVE, f"profile and links give {total_us} us, plan says {plan.objective_us} us")


def _waits_us(graph: ChosenGraph, profile: Profile, links: Links, moves: Sequence[Move]) -> float:
    """Sum the microseconds by which copies outlast the kernels that they overlap; both directions run at once.

    `graph` is the step with the implementations that run.
    """
    waits = []
    for index, kernel in enumerate(graph.kernels):
        overlap = [move for move in moves if move.since == index]
        longest_us = max(
            math.fsum(
                links.transfer_us(tier, graph.by_name[move.tensor].size_bytes)
                for move in overlap
                if move.destination is tier
            )
            for tier in Tier
        )
        waits.append(max(0.0, longest_us - profile.base_us(kernel)))
    return math.fsum(waits)


def kernel_times_us(graph: CountedGraph, profile: Profile, plan: Plan, links: Links | None = None) -> Iterator[float]:
    """Yield the predicted time of each call of a plan, with its slow operands, slow pages or cache misses.

    `graph` is the step with all implementations. Without `links`, a cache's own accesses to fast memory cost nothing.

    Raises:
        FaultError: the plan names implementations that kernels do not have.
        AutotmError: the profile lacks a configuration.
    """
    chosen = computed(graph, plan)
    if plan.paged is not None:
        for kernel, slow_bytes in zip(chosen.kernels, plan.paged.slow_bytes, strict=True):
            tensors = zip(chosen.slots_of(kernel), slow_bytes, strict=True)
            shares = {name: slow / max(chosen.by_name[name].size_bytes, 1) for name, slow in tensors}
            extras = (share * profile.extra_us(chosen, kernel, name) for name, share in shares.items())
            yield profile.base_us(kernel) + math.fsum(extras)
        return
    if plan.cached is None:
        residence = Residence(chosen, plan)
        for index in range(len(chosen.kernels)):
            yield kernel_us(graph, chosen, profile, plan, index, residence.slow_operands(index))
        return
    rates = slow_rates(chosen, profile)
    for kernel, (fetched, written) in zip(chosen.kernels, plan.cached.traffic_bytes, strict=True):
        own_us = links.fast_us(amplified_bytes(chosen, kernel, fetched)) if links else 0.0
        yield profile.base_us(kernel) + rates[kernel.op_class].extra_us(fetched, written) + own_us


def _check_bound(graph: CountedGraph, profile: Profile, links: Links, plan: Plan, fast_operands_only: bool) -> None:
    numbers = (plan.objective_us, plan.bound_us)
    require(all(map(math.isfinite, numbers)), Fault.GAP, f"objective and bound are {numbers}")
    require(0 <= plan.gap <= 1, Fault.GAP, f"gap {plan.gap} is not in [0, 1]")
    slack = _TIME * abs(plan.objective_us)
    require(plan.bound_us <= plan.objective_us + slack, Fault.GAP, f"bound {plan.bound_us} exceeds {plan.objective_us}")
    if plan.solver_bound_us is not None:
        inside = plan.bound_us - slack <= plan.solver_bound_us <= plan.objective_us + slack
        where = f"claimed bound {plan.solver_bound_us} is not in [{plan.bound_us}, {plan.objective_us}]"
        require(inside, Fault.GAP, where)
    optimal = plan.status is not Status.OPTIMAL or plan.objective_us - plan.bound_us <= slack
    require(optimal, Fault.GAP, f"plan is called optimal at gap {plan.gap}")
    if not RULES[plan.optimizer].searched:
        states_itself = plan.status is Status.NOT_OPTIMIZED and abs(plan.objective_us - plan.bound_us) <= slack
        require(states_itself, Fault.GAP, f"'{plan.optimizer}' proves nothing, and its plan says {plan.status}")
        no_proof = plan.certificate is None
        require(no_proof, Fault.CERTIFICATE, f"'{plan.optimizer}' proves nothing, and has a certificate")
        return
    is_proven = plan.certificate is not None and plan.status is not Status.NOT_OPTIMIZED
    require(is_proven, Fault.CERTIFICATE, f"'{plan.optimizer}' plan with status {plan.status} has no certificate")
    proven = proven_bound_us(graph, profile, links, plan, fast_operands_only=fast_operands_only)
    holds = plan.bound_us <= proven + slack
    require(holds, Fault.BOUND, f"the certificate proves {proven} us, the plan says {plan.bound_us} us")
