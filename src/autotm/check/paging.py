"""What a step finds in slow pages: bounds for every policy, and for pages that never move the placement, re-derived.

Pages that move are a simulation over many steps, which is not repeated here: its numbers must keep the limit, and no
kernel may find more of its operands in fast memory than that holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotm.check.fault import Fault, require
from autotm.check.one_pool import check_one_pool, check_one_pool_program
from autotm.model.plan import PagedPool, Plan, Program
from autotm.model.step import Graph, Limit

_SMALLEST_PAGE_BYTES = 4096
_MOVING = frozenset({"linux-balancing"})


def check_paged(graph: Graph, plan: Plan, pool: PagedPool) -> None:
    """Vouch for addresses, pages, the limit, and what every kernel finds slow.

    `graph` is the step with the implementations that run.

    Raises:
        FaultError: the first broken rule.
    """
    offsets = check_one_pool(graph, plan, pool, Fault.PAGES)
    _check_sizes(plan, pool)
    lengths = {len(each) for each in (pool.slow_bytes, pool.promoted_bytes, pool.demoted_bytes)}
    require(lengths == {len(graph.kernels)}, Fault.PAGES, f"{lengths} numbers for {len(graph.kernels)} kernels")
    for index, (kernel, slow_bytes) in enumerate(zip(graph.kernels, pool.slow_bytes, strict=True)):
        tensors = tuple(graph.slots_of(kernel))
        require(len(tensors) == len(slow_bytes), Fault.PAGES, f"kernel {index}: {len(slow_bytes)} tensors")
        sizes = [graph.by_name[name].size_bytes for name in tensors]
        inside = all(0 <= slow <= size for slow, size in zip(slow_bytes, sizes, strict=True))
        require(inside, Fault.PAGES, f"kernel {index}: {slow_bytes} slow bytes of tensors of {sizes}")
        # Means of moving pages are rounded down, by less than a byte a tensor.
        found = sum(sizes) - sum(slow_bytes)
        holds = found <= pool.fast_bytes + len(sizes)
        require(holds, Fault.LIMIT, f"kernel {index}: {found} fast bytes in {pool.fast_bytes}")
    if plan.optimizer not in _MOVING:
        _check_still(graph, plan, pool, offsets)


def check_paged_program(graph: Graph, plan: Plan, program: Program) -> None:
    """The program uses the addresses that the pages belong to, and is charged for them.

    Raises:
        FaultError: the first broken rule.
    """
    if plan.paged is None:
        require(not program.paged_traffic, Fault.PAGES, "the program is charged for pages, the plan has none")
        return
    wanted = tuple(plan.paged.traffic(graph))
    require(program.paged_traffic == wanted, Fault.PAGES, "the program's traffic is not the plan's")
    check_one_pool_program(graph, plan, program, plan.paged, Fault.PAGES, "pages were")


def _check_sizes(plan: Plan, pool: PagedPool) -> None:
    times = pool.page_bytes // _SMALLEST_PAGE_BYTES
    whole = pool.page_bytes % _SMALLEST_PAGE_BYTES == 0 and times > 0 and times & (times - 1) == 0
    require(whole, Fault.PAGES, f"pages of {pool.page_bytes} bytes are no power of two of at least 4096")
    count = -(-pool.size_bytes // pool.page_bytes)
    wanted = count if Limit.parse(plan.limit).slow == 0 else plan.dram_limit_bytes // pool.page_bytes
    require(pool.fast_pages == wanted, Fault.LIMIT, f"{pool.fast_pages} pages are allowed, not {wanted}")
    fits = pool.most_fast_pages <= pool.fast_pages
    require(fits, Fault.LIMIT, f"{pool.most_fast_pages} pages were fast, {pool.fast_pages} are allowed")


def _check_still(graph: Graph, plan: Plan, pool: PagedPool, offsets: Mapping[str, int]) -> None:
    """Deal every page out again, one after the other, and count bytes page by page."""
    still = not any(pool.promoted_bytes) and not any(pool.demoted_bytes)
    require(still, Fault.PAGES, f"'{plan.optimizer}' moves no pages, the plan does")
    to_fast, to_slow = pool.weights or (1, 0)
    dealt = Limit.parse(plan.limit).slow != 0
    size, room = pool.page_bytes, pool.fast_pages
    fast: dict[int, bool] = {}
    filled = [tensor.name for tensor in graph.movable if tensor.producer is None]
    spans = [(offsets[name], graph.by_name[name].size_bytes) for name in filled]
    for kernel in graph.kernels:
        spans += [(offsets[name], graph.by_name[name].size_bytes) for name in graph.slots_of(kernel)]
    for start, length in spans:
        for page in range(start // size, -(-(start + length) // size)):
            if page not in fast:
                fast[page] = room > 0 and (not dealt or page % (to_fast + to_slow) < to_fast)
                room -= fast[page]
    for index, (kernel, slow_bytes) in enumerate(zip(graph.kernels, pool.slow_bytes, strict=True)):
        for name, stated in zip(graph.slots_of(kernel), slow_bytes, strict=True):
            start, end = offsets[name], offsets[name] + graph.by_name[name].size_bytes
            found = sum(
                min(end, (page + 1) * size) - max(start, page * size)
                for page in range(start // size, -(-end // size))
                if not fast[page]
            )
            require(found == stated, Fault.PAGES, f"kernel {index}: '{name}' has {found} slow bytes, plan: {stated}")
