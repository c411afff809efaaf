"""The optimizers: which choices each leaves to the search, or the rule by which it decides all."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from autotm.layout.packing import Blocks, pack_blocks
from autotm.model.cache import PagedPool, cached_pool
from autotm.model.errors import BadInputError
from autotm.model.graph import Graph, Tier
from autotm.model.plan import LRU_PAGING, MANAGED_MEMORY, RECOMPUTE, SWAP_ALL, Move, Stay
from autotm.solve.choices import Choices, flows_by_use, flows_for_life, flows_in, flows_with_async_moves
from autotm.solve.gpu_rivals import leanest_of, paging, segmentations, swapping
from autotm.solve.gpu_simulation import fastest
from autotm.solve.integer_program import IntegerProgram
from autotm.solve.optimizer import Optimizer, Placement
from autotm.solve.paging import PageMap, StepCosts, at_birth, balanced, first_fit, interleave_weights, unmoved
from autotm.solve.problem import Problem


def _for_life(graph: Graph, tier: Tier) -> list[Stay]:
    """Return stays of all movable tensors in one tier for life, in the order of plans."""
    stays = (Stay(one.name, tier, one.live.start, one.live.stop) for one in graph.movable)
    return sorted(stays, key=lambda stay: stay.order)


class SingleTier(Optimizer):
    """The base of optimizers without a search; by itself it puts every tensor into `tier` for life.

    Kernels have their default implementations.
    """

    tier: ClassVar[Tier] = Tier.SLOW

    def choices(self, problem: Problem) -> Choices:
        """Return choices that keep each tensor in one tier for life.

        Raises:
            BadInputError: kernels need fast operands.
        """
        if self.tier is Tier.SLOW and problem.options.fast_operands_only:
            raise BadInputError(f"optimizer '{self.name}': kernels here need fast operands; use 'synchronous'")
        return Choices(flows_in(problem, self.tier))

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """State the plan; there is nothing to search."""
        del choices
        return Placement(_for_life(problem.graph, self.tier))


class AllFast(SingleTier):
    """No slow memory at all: the baseline that slow-downs are relative to."""

    name: ClassVar[str] = "all-fast"
    tier: ClassVar[Tier] = Tier.FAST


class AllSlow(SingleTier):
    """No fast memory for intermediates: the other end of every curve."""

    name: ClassVar[str] = "all-slow"


class Static(IntegerProgram):
    """Chooses a tier per tensor; no moves."""

    name: ClassVar[str] = "static"

    def choices(self, problem: Problem) -> Choices:
        """Return one gadget per tensor."""
        return Choices(flows_for_life(problem), problem.tabulation.tables)


class Synchronous(IntegerProgram):
    """Chooses a tier per tensor and kernel, with blocking moves: one write to slow memory at most, reads at will."""

    name: ClassVar[str] = "synchronous"

    def choices(self, problem: Problem) -> Choices:
        """Return one gadget per kernel that uses the tensor."""
        return Choices(flows_by_use(problem), problem.tabulation.tables)


class Asynchronous(IntegerProgram):
    """As `synchronous`, with moves that one engine per direction makes while kernels run (docs/formulation.md §9)."""

    name: ClassVar[str] = "asynchronous"

    def choices(self, problem: Problem) -> Choices:
        """Return one gadget per kernel that uses the tensor, and windows for moves in the gaps between.

        Raises:
            BadInputError: asynchronous copies were not measured.
        """
        return Choices(flows_with_async_moves(problem), problem.tabulation.tables, problem.overlap.kernel_ns)


class FirstTouch(SingleTier):
    """Each tensor goes to fast memory if there is room when it is born, and stays where it is.

    What an operating system does with two memory nodes, and AutoTM's baseline (Hildebrand et al., ASPLOS 2020): no
    profile is asked, nothing moves. Offsets are those of a best-fit allocator, so fragments count as they would there.
    """

    name: ClassVar[str] = "numa"

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Give every tensor its tier when it is born; there is nothing to search."""
        del choices
        # A ratio 0:n is no limit: there fragments push nothing out.
        fast = at_birth(problem.graph, None if problem.limit.is_unlimited else problem.limit_bytes, best_fit=True)
        stays = _for_life(problem.graph, Tier.SLOW)
        return Placement([replace(stay, tier=Tier.FAST) if stay.tensor in fast else stay for stay in stays])


class MemoryMode(SingleTier):
    """Memory mode (2LM): all memory is slow, and fast memory of the limit's size is its cache.

    The baseline of AutoTM's large networks (Hildebrand et al., ASPLOS 2020): the plain step in one pool, at the
    addresses that a plain framework would give: first fit in execution order, as nGraph did.
    """

    name: ClassVar[str] = "memory-mode"

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Give all tensors their addresses, and simulate the cache."""
        placement, graph = super().place(problem, choices), problem.graph.computed_by(())
        offsets, pool_bytes = first_fit(graph)
        # A ratio 0:n is no limit: there the cache holds the pool, fragments included.
        cache_bytes = None if problem.limit.is_unlimited else problem.limit_bytes
        names = tuple(stay.tensor for stay in placement.stays)
        return replace(placement, cached=cached_pool(graph, offsets, names, pool_bytes, cache_bytes))


class LinuxPreferred(SingleTier):
    """`MPOL_PREFERRED`: fast memory until it is full, then slow memory; first touch as it really is, by page.

    The base of what else Linux does with a plain step in one pool: each policy is simulated page by page.
    """

    name: ClassVar[str] = "linux-preferred"

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Give all tensors their addresses, and simulate where the pages are."""
        placement, graph = super().place(problem, choices), problem.graph.computed_by(())
        by_name, size_bytes = first_fit(graph)
        pages = PageMap.of(graph, by_name, size_bytes)
        # A ratio 0:n is a machine without slow memory.
        is_unlimited = problem.limit.is_unlimited
        pool = unmoved(pages, pages.count, None) if is_unlimited else self.pool(problem, pages)
        offsets = tuple(by_name[stay.tensor] for stay in placement.stays)
        return replace(placement, paged=replace(pool, offsets=offsets, size_bytes=size_bytes))

    def weights(self, problem: Problem) -> tuple[int, int] | None:
        """Return the numbers of pages that go to fast and to slow memory in turn; None to fill fast memory first."""
        del problem
        return None

    def pool(self, problem: Problem, pages: PageMap) -> PagedPool:
        """Return a pool, without addresses, with as many fast pages as the problem's limit allows.

        A page stays where it is when it is first touched.
        """
        return unmoved(pages, problem.limit_bytes // pages.page_bytes, self.weights(problem))


class LinuxInterleave(LinuxPreferred):
    """`MPOL_INTERLEAVE`: pages alternate between both memories while there is room in both."""

    name: ClassVar[str] = "linux-interleave"

    def weights(self, problem: Problem) -> tuple[int, int]:
        """Return equal weights: every second page is fast, until fast memory is full."""
        del problem
        return 1, 1


class LinuxWeightedInterleave(LinuxPreferred):
    """`MPOL_WEIGHTED_INTERLEAVE`: the same, by weights that Linux makes from the bandwidths of both memories.

    It takes these from the firmware; here they are as calibrated: copies within fast memory, and of copies out of and
    into slow memory the slower.
    """

    name: ClassVar[str] = "linux-weighted-interleave"

    def weights(self, problem: Problem) -> tuple[int, int]:
        """Return the weights that Linux computes from the bandwidths of both memories.

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


class LinuxBalancing(LinuxPreferred):
    """`numa_balancing` 2 with `demotion_enabled`: touched pages move to fast memory, long unused ones away."""

    name: ClassVar[str] = "linux-balancing"

    def pool(self, problem: Problem, pages: PageMap) -> PagedPool:
        """Simulate steps until their times are steady; return the pool with the pages' average places."""
        costs = StepCosts.of(problem, problem.graph.computed_by(()))
        return balanced(pages, problem.limit_bytes // pages.page_bytes, costs, problem.options.seed)


class Rival(Optimizer):
    """An existing method for a step that exceeds a GPU's memory: one plan, by a rule that knows no later step.

    The plan may take more fast memory than the limit.
    """

    def choices(self, problem: Problem) -> Choices:
        """Return no choices at all, so that no limit is too small.

        Raises:
            BadInputError: kernels can use slow operands, so this is no GPU.
        """
        if not problem.options.fast_operands_only:
            raise BadInputError(f"optimizer '{self.name}': it is what others do on a GPU; use 'synchronous'")
        return Choices(())


def _implementations(graph: Graph) -> dict[int, str]:
    return {index: kernel.implementation for index, kernel in enumerate(graph.kernels)}


class ManagedMemory(Rival):
    """Memory that the GPU's driver moves by page faults (cudaMallocManaged): the baseline of figure 12.

    All fast here means in the one pool, at the addresses of a plain framework; the run leaves the driver as much device
    memory as the limit says. What faults cost is not predicted: the objective is that of the kernels.
    """

    name: ClassVar[str] = MANAGED_MEMORY

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Return stays of all tensors for life."""
        del choices
        graph = fastest(problem)
        offsets, stays = first_fit(graph)[0], _for_life(graph, Tier.FAST)
        addresses = {stay: offsets[stay.tensor] for stay in stays}
        return Placement(stays, (), _implementations(graph), offsets=addresses)


class LruPaging(Rival):
    """Paging of whole tensors by least recent use, as blocking moves: what `solve.gpu_rivals.paging` does.

    It is known beforehand: every step uses the same tensors in the same order.
    """

    name: ClassVar[str] = LRU_PAGING

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Return a fast stay for each time on the device, and a slow stay from the only write to slow memory on."""
        del choices
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
                if graph.by_name[name].live.stop == done.kernel + 1 and not graph.by_name[name].held:
                    stays.append(Stay(name, Tier.FAST, since.pop(name), done.kernel + 1))
        stays += [Stay(name, Tier.FAST, start, graph.by_name[name].live.stop) for name, start in since.items()]
        return Placement(stays, moves, _implementations(graph))


class SwapAll(Rival):
    """Swapping of everything (vDNN), as moves that each overlap one kernel, and for which the next kernel waits.

    It is what `solve.gpu_rivals.swapping` does, but a feature map that would have to be back before it is gone stays,
    where vDNN would copy it for nothing.
    """

    name: ClassVar[str] = SWAP_ALL

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Return stays and moves that take every feature map to slow memory and back."""
        del choices
        graph = fastest(problem)
        gone: dict[str, int] = {}
        stays: list[Stay] = []
        moves: list[Move] = []
        for index, done in enumerate(swapping(graph)):
            gone |= dict.fromkeys(done.outward, index + 1)
            for name in (*done.at_once, *done.inward):
                if index < gone.get(name, len(graph.kernels)):
                    continue
                left, live = gone[name], graph.by_name[name].live
                back = (index,) if name in done.at_once else (index + 1, index)
                moves += [Move(name, Tier.SLOW, left, left - 1), Move(name, Tier.FAST, *back)]
                stays += [Stay(name, Tier.FAST, live.start, left), Stay(name, Tier.FAST, index, live.stop)]
                stays.append(Stay(name, Tier.SLOW, left - 1, index + 1))
        away = {move.tensor for move in moves}
        stays += [stay for stay in _for_life(graph, Tier.FAST) if stay.tensor not in away]
        return Placement(stays, moves, _implementations(graph))


class Recompute(Rival):
    """Recomputation by segments: the fastest of `solve.gpu_rivals.segmentations` whose addresses fit the limit.

    Where none fits, that which needs least memory. Packing is tried for as long as a solver would be; what is left
    then gets quick addresses only.
    """

    name: ClassVar[str] = RECOMPUTE

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Return stays of all tensors, those computed again included."""
        del choices
        graph, profile = fastest(problem), problem.profile
        end_s = time.perf_counter() + problem.options.time_limit_s
        limit_bytes = None if problem.limit.is_unlimited else problem.limit_bytes
        tried = list(segmentations(graph))
        for one in sorted(tried, key=lambda each: (each.repeated_us(profile), each.count)):
            if limit_bytes is None or one.most_bytes <= limit_bytes:
                stays = _for_life(one.step, Tier.FAST)
                blocks = Blocks.of(one.step, stays)
                offsets = pack_blocks(blocks, limit_bytes, end_s)
                if limit_bytes is None or blocks.height(offsets) <= limit_bytes:
                    by_stay = dict(zip(stays, offsets.tolist(), strict=True))
                    return Placement(stays, (), _implementations(graph), calls=one.calls, offsets=by_stay)
        leanest = leanest_of(tried)
        return Placement(_for_life(leanest.step, Tier.FAST), (), _implementations(graph), calls=leanest.calls)
