"""The optimizers: which choices each leaves to the search, or the rule by which it decides all."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from autotm.layout.packing import Blocks, pack_blocks
from autotm.model.cache import PagedPool, cached_pool
from autotm.model.errors import BadInputError
from autotm.model.graph import ChosenGraph, Tier
from autotm.model.links import Link
from autotm.model.plan import LRU_PAGING, MANAGED_MEMORY, RECOMPUTE, SWAP_ALL, Move, Plan, Status, Stay
from autotm.solve.choices import (
    Choices,
    Clock,
    TensorChoices,
    flows_beside_kernels,
    flows_by_use,
    flows_for_life,
    flows_in,
)
from autotm.solve.gpu_rivals import leanest_of, paging, segmentations, swapping
from autotm.solve.gpu_simulation import fastest
from autotm.solve.integer_program import IntegerProgram
from autotm.solve.optimizer import Optimizer, PagedPlacement, Placement, Rival, RuledPlan, SingleTier, settled
from autotm.solve.paging import (
    Heap,
    PageMap,
    StepCosts,
    balanced,
    first_fit,
    interleave_weights,
    interleaved,
    preferred,
)
from autotm.solve.problem import Problem
from autotm.solve.recheck import cached_us

# Everything in fast memory: the baseline that slow-downs are relative to.


class AllFast(SingleTier):
    """No slow memory at all."""

    name: ClassVar[str] = "all-fast"

    def choices(self, problem: Problem) -> Choices:
        """Fast for life.

        Raises:
            BadInputError: a tensor is fixed in slow memory.
        """
        for tensor, tier in problem.options.fixed.items():
            if tier is Tier.SLOW:
                raise BadInputError(f"optimizer 'all-fast': tensor '{tensor}' is fixed in slow memory; use 'static'")
        return Choices(flows_in(problem, Tier.FAST))


# Everything in slow memory: the other end of every curve.


class AllSlow(SingleTier):
    """No fast memory for intermediates."""

    name: ClassVar[str] = "all-slow"

    def choices(self, problem: Problem) -> Choices:
        """Slow for life.

        Raises:
            BadInputError: kernels need fast operands, or a tensor is fixed in fast memory.
        """
        return self._slow_for_life(problem)


# Every tensor in one tier for life.


class Static(IntegerProgram):
    """Chooses a tier per tensor; no moves."""

    name: ClassVar[str] = "static"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per tensor."""
        return Choices(flows_for_life(problem), problem.tabulation.tables)


# Tensors may move between kernels, and the step waits for every move.


class Synchronous(IntegerProgram):
    """Chooses a tier per tensor and kernel, with blocking moves: one write to slow memory at most, reads at will."""

    name: ClassVar[str] = "synchronous"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per kernel that uses the tensor."""
        return Choices(flows_by_use(problem), problem.tabulation.tables)


# Tensors may move between kernels, and also beside them.


class Asynchronous(IntegerProgram):
    """As `synchronous`, with moves that one engine per direction makes while kernels run (docs/formulation.md §9)."""

    name: ClassVar[str] = "asynchronous"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per kernel that uses the tensor, and windows for moves in the gaps between.

        Raises:
            BadInputError: asynchronous copies were not measured.
        """
        clock = Clock(problem.beside)
        return Choices(flows_beside_kernels(problem, clock), problem.tabulation.tables, clock.kernel_ns)


# First touch: each tensor goes to fast memory if there is room when it is born, and stays where it is.
#
# What an operating system does with two memory nodes, and AutoTM's baseline (Hildebrand et al., ASPLOS 2020): no
# profile is asked, nothing moves. Room is that of a best-fit allocator, so fragments count as they would there.


class FirstTouch(Optimizer):
    """One pass over the step in execution order."""

    name: ClassVar[str] = "numa"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per tensor; kernels keep the implementation they have.

        Raises:
            BadInputError: kernels need fast operands, which first touch cannot promise.
        """
        if problem.options.fast_operands_only:
            raise BadInputError("optimizer 'numa': kernels here need fast operands; use 'synchronous'")
        return Choices(flows_for_life(problem, problem.graph.movable))

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Give every tensor its tier when it is born; there is nothing to search."""
        started, flows = time.perf_counter(), choices.flows
        # A ratio 0:n is no limit: there fragments push nothing out.
        unlimited = problem.limit.is_unlimited
        room = sum(flow.size_bytes for flow in flows) if unlimited else problem.limit_bytes
        stays = [
            Stay(flow.tensor, Tier.FAST if is_fast else Tier.SLOW, flow.starts[0], flow.stops[0])
            for flow, is_fast in zip(flows, _first_touch(flows, room), strict=True)
        ]
        elapsed_s = time.perf_counter() - started
        return Placement(stays, (), {}, None, None, Status.NOT_OPTIMIZED, elapsed_s, 0.0)


def _first_touch(flows: Sequence[TensorChoices], room_bytes: int) -> list[bool]:
    """Whether each tensor found room: those that must be fast before the step, the others when they are born."""
    heap = Heap(room_bytes)
    is_fast = [False] * len(flows)
    offsets: dict[int, int] = {}
    births = sorted(range(len(flows)), key=lambda index: (not flows[index].must[0], flows[index].starts[0]))
    deaths: list[tuple[int, int]] = []
    for index in births:
        flow = flows[index]
        while deaths and deaths[0][0] <= flow.starts[0] and not flow.must[0]:
            dead = deaths.pop(0)[1]
            heap.free(offsets.pop(dead), flows[dead].size_bytes)
        offset = heap.take_best(flow.size_bytes) if flow.may[0] else None
        if offset is None and not flow.must[0]:
            continue
        is_fast[index] = True
        if offset is not None:
            offsets[index] = offset
            insort(deaths, (flow.stops[0], index))
    return is_fast


# Memory mode (2LM): nothing is placed. All memory is slow, and fast memory of the limit's size is its cache.
#
# The baseline of AutoTM's large networks (Hildebrand et al., ASPLOS 2020): the plain step in one pool, whose
# addresses a plain framework would give: first fit in execution order, as nGraph did.


class MemoryMode(SingleTier):
    """Every tensor in slow memory, behind a cache."""

    name: ClassVar[str] = "memory-mode"

    def choices(self, problem: Problem) -> Choices:
        """Slow for life.

        Raises:
            BadInputError: kernels need fast operands, or a tensor is fixed in fast memory.
        """
        return self._slow_for_life(problem, ", which is a cache here")

    def _plan(self, problem: Problem, placement: Placement) -> Plan:
        """The plan with its addresses, priced by what its kernels miss in the cache."""
        started = time.perf_counter()
        plan = super()._plan(problem, placement)
        graph = problem.graph.computed_by(())
        offsets, pool_bytes = first_fit(graph)
        # A ratio 0:n is no limit: there the cache holds the pool, fragments included.
        cache_bytes = None if problem.limit.is_unlimited else problem.limit_bytes
        order = tuple(stay.tensor for stay in plan.stays)
        pool = cached_pool(graph, offsets, order, pool_bytes, cache_bytes)
        step_us = cached_us(problem, pool)
        build_s = plan.build_s + time.perf_counter() - started
        return replace(
            plan, cached=pool, objective_us=step_us, bound_us=step_us, build_s=build_s, attempts_s=((build_s, 0.0),)
        )


# Fast memory until it is full: `MPOL_PREFERRED` of set_mempolicy(2), simulated.


class LinuxPreferred(PagedPlacement):
    """`MPOL_PREFERRED`: fast memory until it is full, then slow memory; first touch as it really is, by page."""

    name: ClassVar[str] = "linux-preferred"

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """The first pages that are touched are fast."""
        fast_pages = problem.limit_bytes // pages.page_bytes
        return settled(offsets, size_bytes, pages, fast_pages, preferred(pages, fast_pages))


# Pages in both memories in turn: `MPOL_INTERLEAVE` of set_mempolicy(2), simulated.


class LinuxInterleave(PagedPlacement):
    """`MPOL_INTERLEAVE`: pages alternate between both memories while there is room in both."""

    name: ClassVar[str] = "linux-interleave"

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """Every second page is fast, until fast memory is full."""
        fast_pages = problem.limit_bytes // pages.page_bytes
        fast = interleaved(pages, fast_pages, (1, 1))
        return settled(offsets, size_bytes, pages, fast_pages, fast, (1, 1))


# Pages in both memories in turn, by weight: `MPOL_WEIGHTED_INTERLEAVE` of set_mempolicy(2), simulated.


class LinuxWeightedInterleave(PagedPlacement):
    """`MPOL_WEIGHTED_INTERLEAVE`: the same, by weights that Linux makes from the bandwidths of both memories.

    It takes these from the firmware; here they are as calibrated: copies within fast memory, and of copies out of and
    into slow memory the slower.
    """

    name: ClassVar[str] = "linux-weighted-interleave"

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """As many pages in turn as the weights say, until fast memory is full.

        Raises:
            BadInputError: the machine's own rates were not measured.
        """
        rates = problem.links.rates
        if rates is None:
            raise BadInputError(
                f"optimizer '{self.name}': links.json lacks the rate of copies within fast memory; remove it and run "
                "the rule calibrate again"
            )
        slow = min(_bytes_per_s(problem.links.to_fast), _bytes_per_s(problem.links.to_slow))
        weights = interleave_weights(rates.copy_bytes_per_s, slow)
        fast_pages = problem.limit_bytes // pages.page_bytes
        fast = interleaved(pages, fast_pages, weights)
        return settled(offsets, size_bytes, pages, fast_pages, fast, weights)


def _bytes_per_s(link: Link) -> float:
    size, nanoseconds = link.points[-1]
    return size / nanoseconds * 1e9


# NUMA balancing of Linux in its mode for tiered memory (TPP and what became of it), simulated.


class LinuxBalancing(PagedPlacement):
    """`numa_balancing` 2 with `demotion_enabled`: touched pages move to fast memory, long unused ones away."""

    name: ClassVar[str] = "linux-balancing"

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """Where pages are, on average over the steps, once the time of a step is steady."""
        fast_pages = problem.limit_bytes // pages.page_bytes
        costs = StepCosts.of(problem, problem.graph.computed_by(()))
        found = balanced(pages, fast_pages, costs, problem.options.seed)
        return PagedPool(
            offsets,
            size_bytes,
            pages.page_bytes,
            fast_pages,
            found.most_fast_pages,
            None,
            found.slow_bytes,
            found.promoted_bytes,
            found.demoted_bytes,
            found.steps,
            found.is_steady,
        )


# Memory that the GPU's driver moves by page faults (cudaMallocManaged): nothing is planned, the baseline of figure 12.
#
# All fast here means in the one pool, at the addresses of a plain framework; the run leaves the driver as much device
# memory as the limit says. What faults cost is not predicted: the objective is that of the kernels.


class ManagedMemory(Rival):
    """The plain step in one pool."""

    name: ClassVar[str] = MANAGED_MEMORY

    def made(self, problem: Problem) -> RuledPlan:
        """Every tensor for life."""
        graph = fastest(problem)
        places, _ = first_fit(graph)
        stays = {one.name: Stay(one.name, Tier.FAST, one.live.start, one.live.stop) for one in graph.movable}
        return RuledPlan(graph, list(stays.values()), offsets={stays[name]: offset for name, offset in places.items()})


# Paging of whole tensors by least recent use, as blocking moves.


class LruPaging(Rival):
    """What `solve.gpu_rivals.paging` does, known beforehand: every step uses the same tensors in the same order."""

    name: ClassVar[str] = LRU_PAGING

    def made(self, problem: Problem) -> RuledPlan:
        """A stay in fast memory for each time on the device; one in slow memory from the only write to it on."""
        graph = fastest(problem)
        since = {tensor.name: tensor.live.start for tensor in graph.movable if tensor.held}
        stays: list[Stay] = []
        moves: list[Move] = []
        for done in paging(graph, problem.limit_bytes):
            stays += [Stay(name, Tier.FAST, since.pop(name), done.kernel) for name in done.gone]
            stays += [Stay(name, Tier.SLOW, done.kernel, graph.by_name[name].live.stop) for name in done.out]
            moves += [Move(name, Tier.SLOW, done.kernel) for name in done.out]
            moves += [Move(name, Tier.FAST, done.kernel) for name in done.brought]
            for name in graph.slots_of(graph.kernels[done.kernel]):
                since.setdefault(name, done.kernel)
            stays += [
                Stay(name, Tier.FAST, since.pop(name), done.kernel + 1)
                for name in graph.slots_of(graph.kernels[done.kernel])
                if graph.by_name[name].live.stop == done.kernel + 1 and not graph.by_name[name].held
            ]
        stays += [Stay(name, Tier.FAST, start, graph.by_name[name].live.stop) for name, start in since.items()]
        return RuledPlan(graph, stays, moves)


# Swap everything (vDNN), as moves beside one kernel each, for which the next kernel waits.


class SwapAll(Rival):
    """What `solve.gpu_rivals.swapping` does.

    A feature map that would have to be back before it is gone stays, where vDNN would copy it for nothing.
    """

    name: ClassVar[str] = SWAP_ALL

    def made(self, problem: Problem) -> RuledPlan:
        """A trip to slow memory for every feature map."""
        graph = fastest(problem)
        gone: dict[str, int] = {}
        stays: list[Stay] = []
        moves: list[Move] = []
        away: set[str] = set()
        for index, done in enumerate(swapping(graph)):
            gone |= dict.fromkeys(done.outward, index + 1)
            for name in (*done.at_once, *done.inward):
                if index < gone.get(name, len(graph.kernels)):
                    continue
                away.add(name)
                left, live = gone[name], graph.by_name[name].live
                moves.append(Move(name, Tier.SLOW, left, left - 1))
                moves.append(Move(name, Tier.FAST, index) if name in done.at_once else _beside_one_kernel(name, index))
                stays.append(Stay(name, Tier.FAST, live.start, left))
                stays.append(Stay(name, Tier.SLOW, left - 1, index + 1))
                stays.append(Stay(name, Tier.FAST, index, live.stop))
        home = (tensor for tensor in graph.movable if tensor.name not in away)
        stays += [Stay(tensor.name, Tier.FAST, tensor.live.start, tensor.live.stop) for tensor in home]
        return RuledPlan(graph, stays, moves)


def _beside_one_kernel(tensor: str, kernel: int) -> Move:
    return Move(tensor, Tier.FAST, kernel + 1, kernel)


# Recomputation by segments: everything stays in fast memory, and what was dropped there is computed again.


class Recompute(Rival):
    """The fastest of `solve.gpu_rivals.segmentations` whose addresses fit the limit.

    Where none fits, that which needs least memory. Packing is tried for as long as a solver would be; what is left
    then gets quick addresses only.
    """

    name: ClassVar[str] = RECOMPUTE

    def made(self, problem: Problem) -> RuledPlan:
        """A stay for every tensor, and for every one that is computed again."""
        graph, profile = fastest(problem), problem.profile
        end_s = time.perf_counter() + problem.options.time_limit_s
        tried = list(segmentations(graph))
        for one in sorted(tried, key=lambda each: (each.repeated_us(profile), each.count)):
            if problem.limit.is_unlimited or one.most_bytes <= problem.limit_bytes:
                offsets = _offsets_within(one.step, None if problem.limit.is_unlimited else problem.limit_bytes, end_s)
                if offsets is not None:
                    return RuledPlan(graph, list(offsets), calls=one.calls, offsets=offsets)
        leanest = leanest_of(tried)
        return RuledPlan(graph, _stays_for_life(leanest.step), calls=leanest.calls)


def _stays_for_life(step: ChosenGraph) -> list[Stay]:
    stays = (Stay(one.name, Tier.FAST, one.live.start, one.live.stop) for one in step.movable)
    return sorted(stays, key=lambda stay: stay.order)


def _offsets_within(step: ChosenGraph, limit_bytes: int | None, end_s: float) -> dict[Stay, int] | None:
    """An offset for every tensor; None where none were found within the limit."""
    stays = _stays_for_life(step)
    blocks = Blocks.of(step, stays)
    offsets = pack_blocks(blocks, limit_bytes, end_s)
    if limit_bytes is not None and blocks.height(offsets) > limit_bytes:
        return None
    return dict(zip(stays, offsets.tolist(), strict=True))
