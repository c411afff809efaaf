"""The optimizers: which choices each leaves to the search, or the rule by which it decides all."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence
from typing import ClassVar

from autotm.layout.packing import Blocks, pack_blocks
from autotm.model.cache import PagedPool, cached_pool
from autotm.model.errors import BadInputError
from autotm.model.graph import ChosenGraph, Tier
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
from autotm.solve.optimizer import Optimizer, PagedPlacement, Placement, Rival, SingleTier, ruled, with_pool
from autotm.solve.paging import Heap, PageMap, StepCosts, balanced, first_fit, interleave_weights
from autotm.solve.problem import Problem
from autotm.solve.recheck import cached_us


class AllFast(SingleTier):
    """No slow memory at all: the baseline that slow-downs are relative to."""

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


class AllSlow(SingleTier):
    """No fast memory for intermediates: the other end of every curve."""

    name: ClassVar[str] = "all-slow"

    def choices(self, problem: Problem) -> Choices:
        """Slow for life.

        Raises:
            BadInputError: kernels need fast operands, or a tensor is fixed in fast memory.
        """
        return self._slow_for_life(problem)


class Static(IntegerProgram):
    """Chooses a tier per tensor; no moves."""

    name: ClassVar[str] = "static"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per tensor."""
        return Choices(flows_for_life(problem), problem.tabulation.tables)


class Synchronous(IntegerProgram):
    """Chooses a tier per tensor and kernel, with blocking moves: one write to slow memory at most, reads at will."""

    name: ClassVar[str] = "synchronous"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per kernel that uses the tensor."""
        return Choices(flows_by_use(problem), problem.tabulation.tables)


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


class FirstTouch(Optimizer):
    """Each tensor goes to fast memory if there is room when it is born, and stays where it is.

    What an operating system does with two memory nodes, and AutoTM's baseline (Hildebrand et al., ASPLOS 2020): no
    profile is asked, nothing moves. Room is that of a best-fit allocator, so fragments count as they would there.
    """

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


class MemoryMode(SingleTier):
    """Memory mode (2LM): all memory is slow, and fast memory of the limit's size is its cache.

    The baseline of AutoTM's large networks (Hildebrand et al., ASPLOS 2020): the plain step in one pool, at the
    addresses that a plain framework would give: first fit in execution order, as nGraph did.
    """

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
        cached = cached_pool(graph, offsets, tuple(stay.tensor for stay in plan.stays), pool_bytes, cache_bytes)
        return with_pool(plan, cached_us(problem, cached), started, cached=cached)


class LinuxPreferred(PagedPlacement):
    """`MPOL_PREFERRED`: fast memory until it is full, then slow memory; first touch as it really is, by page."""

    name: ClassVar[str] = "linux-preferred"


class LinuxInterleave(PagedPlacement):
    """`MPOL_INTERLEAVE`: pages alternate between both memories while there is room in both."""

    name: ClassVar[str] = "linux-interleave"

    def weights(self, problem: Problem) -> tuple[int, int]:
        """Every second page is fast, until fast memory is full."""
        del problem
        return 1, 1


class LinuxWeightedInterleave(PagedPlacement):
    """`MPOL_WEIGHTED_INTERLEAVE`: the same, by weights that Linux makes from the bandwidths of both memories.

    It takes these from the firmware; here they are as calibrated: copies within fast memory, and of copies out of and
    into slow memory the slower.
    """

    name: ClassVar[str] = "linux-weighted-interleave"

    def weights(self, problem: Problem) -> tuple[int, int]:
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
        largest = (link.points[-1] for link in (problem.links.to_fast, problem.links.to_slow))
        return interleave_weights(
            rates.copy_bytes_per_s, min(size / nanoseconds * 1e9 for size, nanoseconds in largest)
        )


class LinuxBalancing(PagedPlacement):
    """`numa_balancing` 2 with `demotion_enabled`: touched pages move to fast memory, long unused ones away."""

    name: ClassVar[str] = "linux-balancing"

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """Where pages are, on average over the steps, once the time of a step is steady."""
        fast_pages = problem.limit_bytes // pages.page_bytes
        costs = StepCosts.of(problem, problem.graph.computed_by(()))
        averages = balanced(pages, fast_pages, costs, problem.options.seed)
        return PagedPool(offsets, size_bytes, pages.page_bytes, fast_pages, weights=None, **averages._asdict())


class ManagedMemory(Rival):
    """Memory that the GPU's driver moves by page faults (cudaMallocManaged): the baseline of figure 12.

    All fast here means in the one pool, at the addresses of a plain framework; the run leaves the driver as much device
    memory as the limit says. What faults cost is not predicted: the objective is that of the kernels.
    """

    name: ClassVar[str] = MANAGED_MEMORY

    def rule(self, problem: Problem) -> Placement:
        """Every tensor for life."""
        graph = fastest(problem)
        offsets, _ = first_fit(graph)
        stays = {one.name: Stay(one.name, Tier.FAST, one.live.start, one.live.stop) for one in graph.movable}
        return ruled(graph, list(stays.values()), offsets={stays[name]: offset for name, offset in offsets.items()})


class LruPaging(Rival):
    """Paging of whole tensors by least recent use, as blocking moves: what `solve.gpu_rivals.paging` does.

    It is known beforehand: every step uses the same tensors in the same order.
    """

    name: ClassVar[str] = LRU_PAGING

    def rule(self, problem: Problem) -> Placement:
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
        return ruled(graph, stays, moves)


class SwapAll(Rival):
    """Swapping of everything (vDNN), as moves beside one kernel each, for which the next kernel waits.

    It is what `solve.gpu_rivals.swapping` does, but a feature map that would have to be back before it is gone stays,
    where vDNN would copy it for nothing.
    """

    name: ClassVar[str] = SWAP_ALL

    def rule(self, problem: Problem) -> Placement:
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
                at_once = Move(name, Tier.FAST, index)
                moves.append(at_once if name in done.at_once else Move(name, Tier.FAST, index + 1, index))
                stays.append(Stay(name, Tier.FAST, live.start, left))
                stays.append(Stay(name, Tier.SLOW, left - 1, index + 1))
                stays.append(Stay(name, Tier.FAST, index, live.stop))
        home = (tensor for tensor in graph.movable if tensor.name not in away)
        stays += [Stay(tensor.name, Tier.FAST, tensor.live.start, tensor.live.stop) for tensor in home]
        return ruled(graph, stays, moves)


class Recompute(Rival):
    """Recomputation by segments: the fastest of `solve.gpu_rivals.segmentations` whose addresses fit the limit.

    Where none fits, that which needs least memory. Packing is tried for as long as a solver would be; what is left
    then gets quick addresses only.
    """

    name: ClassVar[str] = RECOMPUTE

    def rule(self, problem: Problem) -> Placement:
        """A stay for every tensor, and for every one that is computed again."""
        graph, profile = fastest(problem), problem.profile
        end_s = time.perf_counter() + problem.options.time_limit_s
        limit_bytes = None if problem.limit.is_unlimited else problem.limit_bytes
        tried = list(segmentations(graph))
        for one in sorted(tried, key=lambda each: (each.repeated_us(profile), each.count)):
            if limit_bytes is None or one.most_bytes <= limit_bytes:
                stays = _stays_for_life(one.step)
                blocks = Blocks.of(one.step, stays)
                offsets = pack_blocks(blocks, limit_bytes, end_s)
                if limit_bytes is None or blocks.height(offsets) <= limit_bytes:
                    by_stay = dict(zip(stays, offsets.tolist(), strict=True))
                    return ruled(graph, stays, calls=one.calls, offsets=by_stay)
        leanest = leanest_of(tried)
        return ruled(graph, _stays_for_life(leanest.step), calls=leanest.calls)


def _stays_for_life(step: ChosenGraph) -> list[Stay]:
    stays = (Stay(one.name, Tier.FAST, one.live.start, one.live.stop) for one in step.movable)
    return sorted(stays, key=lambda stay: stay.order)
