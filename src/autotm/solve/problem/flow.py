"""One tensor's choices as data: its gadgets, what slow memory costs at each, and what its moves cost.

A *gadget* (Hildebrand et al., ASPLOS 2020) is a stretch of kernels during which the tensor cannot change tier: one
kernel that uses it, or its whole life when it may not move at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from autotm.model.step import Tensor, Tier
from autotm.solve.problem.problem import Problem
from autotm.solve.problem.window import Clock, Window


@dataclass(frozen=True, slots=True)
class Flow:
    """The choices of one tensor with m gadgets.

    Attributes:
        tensor: its name.
        size_bytes: what it takes from fast memory, alignment included.
        starts, stops: gadget k spans kernels [starts[k], stops[k]); the gap after it ends at starts[k + 1].
        slow_us: what slow memory costs at each gadget, but for kernels whose table prices the tensor.
        write_us, read_us: price of its copy to slow and to fast memory.
        must: gadgets at which it has to be fast.
        may: gadgets at which it can be fast.
        may_between: the m - 1 gaps over which it can be fast.
        may_read: gadgets before which a read-back can pay.
        out, back: for each of the m - 1 gaps, the windows of asynchronous copies to slow and to fast memory.
    """

    tensor: str
    size_bytes: int
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    slow_us: tuple[float, ...]
    write_us: float
    read_us: float
    must: tuple[bool, ...]
    may: tuple[bool, ...]
    may_between: tuple[bool, ...]
    may_read: tuple[bool, ...]
    out: tuple[tuple[Window, ...], ...]
    back: tuple[tuple[Window, ...], ...]

    def __len__(self) -> int:
        return len(self.starts)

    def gap(self, k: int) -> tuple[int, int]:
        """Kernels [first, last + 1) strictly between gadgets k and k + 1; empty when they are neighbours."""
        return self.stops[k], self.starts[k + 1]

    def gadget_at(self, kernel: int) -> int:
        """The gadget that spans a kernel."""
        return bisect_right(self.starts, kernel) - 1


@lru_cache(1 << 16)
def flags(values: tuple[bool, ...]) -> tuple[bool, ...]:
    """One object for equal flags: of a hundred thousand tensors few differ in them."""
    return values


@cache
def _without_windows(gaps: int) -> tuple[tuple[Window, ...], ...]:
    return ((),) * gaps


def flows_by_use(problem: Problem) -> tuple[Flow, ...]:
    """One gadget per user: the tensor may move between any two of them."""
    return tuple(_fixed(problem, tensor) or _flow(problem, tensor, _gadgets(tensor)) for tensor in problem.placed)


def _gadgets(tensor: Tensor) -> list[range]:
    return [tensor.live] if tensor.held else [range(user, user + 1) for user in tensor.users]


def flows_beside_kernels(problem: Problem, clock: Clock) -> tuple[Flow, ...]:
    """As `flows_by_use`, with asynchronous moves in the gaps where they are cheaper than blocking ones.

    Raises:
        BadInputError: asynchronous copies were not measured.
    """
    return tuple(_with_windows(problem, flow, clock) for flow in flows_by_use(problem))


def _with_windows(problem: Problem, flow: Flow, clock: Clock) -> Flow:
    links, size_bytes = problem.links, problem.graph.by_name[flow.tensor].size_bytes
    out_us, back_us = links.transfer_us(Tier.PMEM, size_bytes), links.transfer_us(Tier.DRAM, size_bytes)
    gaps = [flow.gap(k) for k in range(len(flow) - 1)]
    # Of a hundred thousand tensors few are worth a look at their gaps.
    out = problem.beside.least_added_us(Tier.PMEM, size_bytes) < flow.write_us
    back = problem.beside.least_added_us(Tier.DRAM, size_bytes) < flow.read_us
    return replace(
        flow,
        out=tuple(clock.write_windows(*gap, size_bytes, out_us, flow.write_us) if out else () for gap in gaps),
        back=tuple(clock.read_windows(*gap, size_bytes, back_us, flow.read_us) if back else () for gap in gaps),
    )


def flows_for_life(problem: Problem, tensors: Sequence[Tensor] | None = None) -> tuple[Flow, ...]:
    """One gadget per tensor (of all that are placed by themselves, if not given): it never moves."""
    chosen = problem.placed if tensors is None else tensors
    return tuple(_fixed(problem, tensor) or _flow(problem, tensor, [tensor.live]) for tensor in chosen)


def flows_in(problem: Problem, tier: Tier) -> tuple[Flow, ...]:
    """Every tensor in one tier for life."""
    return tuple(_flow(problem, tensor, [tensor.live], tier) for tensor in problem.graph.movable)


def _fixed(problem: Problem, tensor: Tensor) -> Flow | None:
    tier = problem.options.fixed.get(tensor.name)
    return None if tier is None else _flow(problem, tensor, [tensor.live], tier)


def _flow(problem: Problem, tensor: Tensor, gadgets: Sequence[range], fixed: Tier | None = None) -> Flow:
    must = fixed is Tier.DRAM or (problem.options.fast_operands_only and fixed is None)
    may = fixed is not Tier.PMEM
    count = len(gadgets)
    additive = [user for user in tensor.users if user not in problem.tabled]
    users = [[user for user in additive if user in gadget] for gadget in gadgets]
    return Flow(
        tensor=tensor.name,
        size_bytes=tensor.allocated_bytes,
        starts=tuple(gadget.start for gadget in gadgets),
        stops=tuple(gadget.stop for gadget in gadgets),
        slow_us=tuple(0.0 if must else sum(_extra_us(problem, tensor, user) for user in group) for group in users),
        write_us=problem.links.copy_us(Tier.PMEM, tensor.size_bytes),
        read_us=problem.links.copy_us(Tier.DRAM, tensor.size_bytes),
        must=flags((must,) * count),
        may=flags((may,) * count),
        may_between=flags((may,) * (count - 1)),
        may_read=flags((False,) + (may,) * (count - 1)),
        out=_without_windows(count - 1),
        back=_without_windows(count - 1),
    )


def _extra_us(problem: Problem, tensor: Tensor, user: int) -> float:
    return problem.profile.extra_us(problem.graph, problem.graph.kernels[user], tensor.name)
