"""A plan with addresses: the flat list of steps that the executor runs."""

from __future__ import annotations

from dataclasses import dataclass

from autotm.model.cache import PagedTraffic
from autotm.model.graph import ChosenGraph, CountedGraph, Tier
from autotm.model.limit import Limit
from autotm.model.plan import MANAGED_MEMORY, Stay, called


@dataclass(frozen=True)
class Layout:
    """Byte offset of every stay in the pool of its tier; `offsets[i]` belongs to `stays[i]`."""

    stays: tuple[Stay, ...]
    offsets: tuple[int, ...]
    fast_bytes: int
    slow_bytes: int

    def __post_init__(self) -> None:
        if len(self.stays) != len(self.offsets):
            raise ValueError(f"layout has {len(self.stays)} stays but {len(self.offsets)} offsets")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an operand is.

    Attributes:
        tier: whose pool.
        offset: in that pool, bytes; None for the tensor's own argument buffer in fast memory.
    """

    tier: Tier
    offset: int | None


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Run a kernel.

    Attributes:
        kernel: its index in the graph; its call, where some run again.
        addresses: of its operands, one per slot.
    """

    kernel: int
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class MoveStep:
    """Copy a tensor from one pool to the other, and wait for it.

    Attributes:
        tensor: by name.
        size_bytes: that are copied.
        source, destination: where from, where to.
    """

    tensor: str
    size_bytes: int
    source: Address
    destination: Address


@dataclass(frozen=True, slots=True)
class StartMoveStep:
    """Start an asynchronous move, which copies a tensor beside the steps that follow.

    Attributes:
        move: its number in the program.
        tensor, size_bytes, source, destination: as of `MoveStep`.
    """

    move: int
    tensor: str
    size_bytes: int
    source: Address
    destination: Address


@dataclass(frozen=True, slots=True)
class WaitMoveStep:
    """Wait until an asynchronous move is complete.

    Attributes:
        move: its number in the program.
    """

    move: int


Instruction = KernelStep | MoveStep | StartMoveStep | WaitMoveStep


@dataclass(frozen=True)
class Program:
    """One training step as addresses in a fast and a slow pool, which `runtime` executes.

    Attributes:
        graph_hash: hash of the graph it belongs to.
        plan_hash: hash of the plan it was made from.
        optimizer, limit, dram_limit_bytes: as in the plan.
        fast_bytes, slow_bytes: sizes of the pools (`dram_alloc_size`, `pmem_alloc_size` of the record).
        steps: in execution order.
        implementations: one per kernel, as in the plan.
        cache_traffic_bytes: where fast memory is a cache of the slow pool, the bytes that each kernel has fetched from
            slow memory and written back there; empty elsewhere. Then operands in the slow pool cost nothing else.
        paged_traffic: where Linux places the pages of the slow pool, what they cost each kernel; empty elsewhere.
            Then operands in that pool cost nothing else.
        calls: of kernels, as in the plan.
    """

    graph_hash: str
    plan_hash: str
    optimizer: str
    limit: Limit
    dram_limit_bytes: int
    fast_bytes: int
    slow_bytes: int
    steps: tuple[Instruction, ...]
    implementations: tuple[str, ...] = ()
    cache_traffic_bytes: tuple[tuple[int, int], ...] = ()
    paged_traffic: tuple[PagedTraffic, ...] = ()
    calls: tuple[int, ...] = ()

    def step_of(self, graph: CountedGraph) -> ChosenGraph:
        """Return the step that it runs, of one with all implementations: with its own, and as it is called."""
        return called(graph.computed_by(self.implementations), self.calls)

    @property
    def fits(self) -> bool:
        """Whether it keeps its limit: all do but some of rivals. A GPU's driver keeps managed memory within it."""
        unlimited = self.optimizer == MANAGED_MEMORY or self.limit.is_unlimited
        return unlimited or self.fast_bytes <= self.dram_limit_bytes
