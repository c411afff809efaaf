"""One tensor's choices as data: its gadgets, what slow memory costs at each, and what its moves cost.

A *gadget* (Hildebrand et al., ASPLOS 2020) is a stretch of kernels during which the tensor cannot change tier: one
kernel that uses it, or its whole life when it may not move at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from autotm.model.graph import Tensor
from autotm.model.tier import Tier
from autotm.solve.problem import Problem


@dataclass(frozen=True)
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

    def __len__(self) -> int:
        return len(self.starts)

    def gap(self, k: int) -> tuple[int, int]:
        """Kernels [first, last + 1) strictly between gadgets k and k + 1; empty when they are neighbours."""
        return self.stops[k], self.starts[k + 1]

    def gadget_at(self, kernel: int) -> int:
        """The gadget that spans a kernel."""
        return bisect_right(self.starts, kernel) - 1


def flows_by_use(problem: Problem) -> tuple[Flow, ...]:
    """One gadget per user: the tensor may move between any two of them."""
    return tuple(_fixed(problem, tensor) or _flow(problem, tensor, _gadgets(tensor)) for tensor in problem.placed)


def _gadgets(tensor: Tensor) -> list[range]:
    return [tensor.live] if tensor.held else [range(user, user + 1) for user in tensor.users]


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
        must=(must,) * count,
        may=(may,) * count,
        may_between=(may,) * (count - 1),
        may_read=(False,) + (may,) * (count - 1),
    )


def _extra_us(problem: Problem, tensor: Tensor, user: int) -> float:
    return problem.profile.extra_us(problem.graph, problem.graph.kernels[user], tensor.name)
