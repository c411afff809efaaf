"""The solver's answer: where each tensor is at which kernel, and the moves between tiers.

And which kernels run again, and the proven bound; or why a limit has no plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from autotm.model.cache import CachedPool, PagedPool
from autotm.model.graph import ChosenGraph, Configuration, CountedGraph, Graph, Kernel, Operand, Tensor, Tier, workspace
from autotm.model.limit import Counts, Limit

# Calls: a step some of whose kernels run again, so that their results need not be kept in between.
#
# A plan names them by index in the order in which they are called. The step that is called so is a graph like any
# other, in which a kernel that runs again is a kernel of its own, and so is each result that it makes anew a tensor.

_AGAIN = " again"


def called(graph: ChosenGraph, calls: Sequence[int]) -> ChosenGraph:
    """Return the step as it is called: kernel number n is call number n.

    A kernel reads of each intermediate what was computed last. Arguments are the same for all calls of a kernel, so
    one that runs again may neither write any, nor read any that was overwritten after it ran first; `check` vouches
    for that. Names of what is computed again end with "again".

    Args:
        graph: with the implementations that run.
        calls: kernels by index, each for the first time in the order of the graph; `()` is each once.

    Raises:
        ValueError: the calls are not those of the step.
    """
    if not calls:
        return graph
    if list(dict.fromkeys(calls)) != list(range(len(graph.kernels))):
        raise ValueError(f"calls of {len(graph.kernels)} kernels do not name each for the first time in their order")
    kernels = tuple(_kernels(graph, calls))
    users: dict[str, dict[int, bool]] = {}
    for index, kernel in enumerate(kernels):
        for operands, writes in ((kernel.inputs, False), (kernel.outputs + kernel.workspaces, True)):
            for operand in operands:
                known = users.setdefault(operand.tensor, {})
                known[index] = known.get(index, False) or writes
    again = [(index, kernels[index], calls[index]) for index in repeats(calls)]
    anew = [
        replace(graph.by_name[first.tensor], name=operand.tensor, producer=index, readers=())
        for index, kernel, number in again
        for first, operand in zip(graph.kernels[number].outputs, kernel.outputs, strict=True)
        if operand.tensor not in graph.by_name
    ]
    spaces = [workspace(operand, index) for index, kernel, _ in again for operand in kernel.workspaces]
    tensors = (_used(tensor, users.get(tensor.name, {}), len(calls)) for tensor in (*graph.tensors, *anew, *spaces))
    return replace(graph, kernels=kernels, tensors=tuple(tensors))


def repeats(calls: Sequence[int]) -> list[int]:
    """Return the positions of the calls whose kernel an earlier call already ran."""
    first = {calls[number]: number for number in reversed(range(len(calls)))}
    return [number for number, kernel in enumerate(calls) if first[kernel] < number]


def _kernels(graph: Graph, calls: Sequence[int]) -> Iterator[Kernel]:
    """Yield each call as a kernel, whose operands are the newest of their names."""
    times: Counter[int] = Counter()
    newest: dict[str, str] = {}

    def named(operands: tuple[Operand, ...], again: str | None) -> tuple[Operand, ...]:
        """Return the operands that are read; or, with `again`, that are written, which makes them the newest."""
        if again is not None:
            movable = (operand.tensor for operand in operands if graph.by_name[operand.tensor].role.is_movable)
            newest.update((name, name + again) for name in movable)
        return tuple(replace(operand, tensor=newest.get(operand.tensor, operand.tensor)) for operand in operands)

    for index in calls:
        kernel, again = graph.kernels[index], _AGAIN * times[index]
        times[index] += 1
        inputs = named(kernel.inputs, None)
        outputs, workspaces = (named(operands, again) for operands in (kernel.outputs, kernel.workspaces))
        yield replace(kernel, name=kernel.name + again, inputs=inputs, outputs=outputs, workspaces=workspaces)


def _used(tensor: Tensor, users: dict[int, bool], calls: int) -> Tensor:
    """Return the tensor with the calls that use it, of which one writes it if it has a producer."""
    producer = None if tensor.producer is None else next(index for index, writes in users.items() if writes)
    readers = tuple(sorted(users.keys() - {producer}))
    held = None if tensor.held is None else (0, calls)
    if (producer, readers, held) == (tensor.producer, tensor.readers, tensor.held):
        return tensor
    return replace(tensor, producer=producer, readers=readers, held=held)


# Terms of asynchronous moves that planning and checking agree on (`docs/formulation.md` §9).

WINDOW_HALVES = (2, 3, 5, 8)
"""A window lasts at least so many halves of its transfer time: 1, 1.5, 2.5 and 4 times as long."""


# What others do on a GPU where a step exceeds its memory, and that runs there: plans that nobody searched for.
#
# None of them is held to its limit by its plan. Managed memory has one pool, which its driver keeps within the limit;
# the others take the device memory that they take, and a program that takes more than the limit does not run.

MANAGED_MEMORY = "managed-memory"
"""The plain step in one pool, whose pages the GPU's driver moves."""
LRU_PAGING = "lru-paging"
"""Whole tensors come in on demand and leave by least recent use."""
SWAP_ALL = "swap-all"
"""Every feature map leaves after the forward pass, and comes back one kernel ahead (vDNN)."""
RECOMPUTE = "recompute"
"""Nothing leaves: feature maps inside segments of the forward pass are dropped, and computed again."""
RUN_RIVALS = (MANAGED_MEMORY, LRU_PAGING, SWAP_ALL, RECOMPUTE)
"""Rivals that run as programs."""
SAVE_ON_CPU = "save-on-cpu"
"""Tensors that PyTorch's autograd saves wait in host memory. It is a step of PyTorch's own and has no plan."""
GPU_RIVALS = (*RUN_RIVALS, SAVE_ON_CPU)
"""All rivals on GPUs; `solve.gpu_rivals` simulates each."""


@dataclass(frozen=True)
class KernelPrices:
    """Prices of fast memory during kernels; during a kernel that is not named it is free.

    Attributes:
        kernels: indices, distinct and ascending.
        prices_us: of each, >= 0, by the byte of fast memory.
    """

    kernels: tuple[int, ...] = ()
    prices_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class SpanPrices:
    """Prices of a copying engine's time within spans of kernels.

    Attributes:
        starts, ends: kernel indices: span j is [`starts[j]`, `ends[j]`).
        prices_us: of each span, >= 0, by the nanosecond of work.
    """

    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    prices_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class Cut:
    """Weights that tensors have while they are in fast memory, and what kernels charge for them.

    At any time, what is fast weighs together at most what fits the limit: the most that tensors weigh whose bytes do
    not exceed it. That is not stated, it follows from the bytes. A fast tensor pays for its weight. The fast workspaces
    of a kernel's implementation pay together for the weight that fits the limit, but not beside them.

    Attributes:
        tensors: names, distinct.
        weights: of each, >= 1.
        kernels: indices, distinct and ascending.
        prices_us: of each kernel, >= 0, by the unit of weight.
    """

    tensors: tuple[str, ...]
    weights: tuple[int, ...]
    kernels: tuple[int, ...]
    prices_us: tuple[float, ...]


@dataclass(frozen=True)
class SlowPrices:
    """Prices that tensors pay tabled kernels for being in slow memory there; a pair that is not named has price 0.

    Attributes:
        kernels: indices; one for each price.
        tensors: names; one for each price.
        prices_us: that tensor j pays kernel j, of any sign.
    """

    kernels: tuple[int, ...] = ()
    tensors: tuple[str, ...] = ()
    prices_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class Certificate:
    """Prices; the bound that follows from them holds, whatever they are.

    The bound is the sum over tensors of the cheapest path at these prices, plus the sum over kernels of the cheapest
    implementation and configuration, minus the price of the limit, of the weights that fit it and of both engines.
    Nothing is in fast memory that is larger than the limit.

    Attributes:
        fast: of bytes of fast memory, which tensors and workspaces pay for as long as they take them.
        cuts: of units of weight.
        slow: between tensors and tabled kernels.
        out, back: of the time of the engines towards slow and towards fast memory. An asynchronous move pays for every
            span that its window lies within. Empty where all moves are blocking.
    """

    fast: KernelPrices = KernelPrices()
    cuts: tuple[Cut, ...] = ()
    slow: SlowPrices = SlowPrices()
    out: SpanPrices = SpanPrices()
    back: SpanPrices = SpanPrices()


class Status(StrEnum):
    """How the search for a plan ended, by its gap to the bound that the certificate proves."""

    OPTIMAL = "optimal"
    WITHIN_GAP = "within_gap"
    TIME_LIMIT = "time_limit"
    ABOVE_GAP = "above_gap"
    NOT_OPTIMIZED = "not_optimized"


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor's memory in one tier, held during kernels [start, end).

    The memory may be written by a move from just before kernel `start` on, and is still intact at the moves just before
    kernel `end`, until a move into that tier, or kernel `end` itself, reuses it.

    Attributes:
        tensor: by name.
        tier: `dram` is fast memory, `pmem` slow.
        start, end: kernel indices.
    """

    tensor: str
    tier: Tier
    start: int
    end: int

    @property
    def order(self) -> tuple[int, str, Tier]:
        """Sorts the stays of a plan."""
        return self.start, self.tensor, self.tier


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of a tensor from the other tier to `destination`, complete just before kernel `before`.

    With `since` None the copy is *blocking*: the step waits for it. Otherwise it is *asynchronous*: it starts just
    before kernel `since` and proceeds beside kernels [since, before). Its destination stay starts at `since`, but holds
    the tensor from `before` on only; kernels in between use the source.

    Just before one kernel, this is the order: asynchronous moves that must be complete are waited for; blocking moves
    to slow memory, then those to fast memory; asynchronous moves are started. A move to slow reads the fast stay that
    holds during kernel `before` - 1. A move to fast reads a slow stay: a blocking one that which holds during `before`,
    an asynchronous one that which holds during `since` and ends at `before` or later.

    Attributes:
        tensor: by name.
        destination: tier that it is copied to.
        before: kernel index.
        since: kernel index; None where the step waits for the copy.
    """

    tensor: str
    destination: Tier
    before: int
    since: int | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.since >= self.before:
            raise ValueError(f"move of '{self.tensor}' starts before kernel {self.since}, ends before {self.before}")

    @property
    def order(self) -> tuple[int, bool, bool, str]:
        """Sorts the moves of a plan: before one kernel, asynchronous ones first, then those to slow memory."""
        return self.before, not self.is_asynchronous, self.destination is Tier.FAST, self.tensor

    @property
    def is_asynchronous(self) -> bool:
        """Whether kernels run beside it."""
        return self.since is not None

    @property
    def start(self) -> int:
        """Kernel just before which its destination stay begins."""
        return self.before if self.since is None else self.since


@dataclass(frozen=True)
class Plan:
    """A placement of one step.

    Attributes:
        graph_hash: hash of the graph file the plan is for.
        optimizer: how it was decided.
        limit: the limit as asked, e.g. `8:1`.
        dram_limit_bytes: the same in bytes of fast memory.
        counts: which tensors the limit counts.
        stays: sorted by (start, tensor, tier).
        moves: in the order in which they are complete.
        implementations: one per kernel; empty where every kernel has its default one.
        tabled: kernels priced by the measured time of their configuration and implementation, ascending. The others are
            priced by the all-fast time of their implementation, plus what each slow operand adds to the default one
            and each slow workspace to their own.
        configurations: one per kernel, as the stays imply.
        objective_us: predicted step time of this plan, from the profile.
        status: how the search ended.
        bound_us: no plan of this optimizer is faster under the profile; the certificate proves it.
        solver_bound_us: the higher bound that the solver's branch and bound claims, which nobody can check; None where
            it claims none.
        build_s, solve_s: seconds to build the model and to solve it, over all attempts.
        certificate: what proves the bound; None where the optimizer has exactly one plan.
        attempts_s: (build, solve) seconds of each attempt; more than one when offsets needed a smaller limit.
        offsets: one per stay, in bytes from the start of its tier's pool; empty where none were looked for.
        cached: where fast memory is a cache (memory mode), the addresses and what kernels miss there; the objective
            then charges misses and write-backs in place of slow operands. None elsewhere.
        paged: where Linux places the pages of a plain step, the addresses and what kernels find in slow pages; the
            objective then charges these, and pages that move, in place of slow operands. None elsewhere.
        calls: kernels of the graph in the order in which they are called, where some run again; empty where each runs
            once. Kernels of stays, moves and configurations are then calls.
    """

    graph_hash: str
    optimizer: str
    limit: Limit
    dram_limit_bytes: int
    counts: Counts
    stays: tuple[Stay, ...]
    moves: tuple[Move, ...]
    configurations: tuple[Configuration, ...]
    objective_us: float
    bound_us: float
    status: Status
    build_s: float
    solve_s: float
    certificate: Certificate | None = None
    solver_bound_us: float | None = None
    attempts_s: tuple[tuple[float, float], ...] = ()
    implementations: tuple[str, ...] = ()
    tabled: tuple[int, ...] = ()
    cached: CachedPool | None = None
    offsets: tuple[int, ...] = ()
    paged: PagedPool | None = None
    calls: tuple[int, ...] = ()

    def step_of(self, graph: CountedGraph) -> ChosenGraph:
        """Return the step that it is a plan for, of one with all implementations: with its own, and as it is called."""
        return called(graph.computed_by(self.implementations), self.calls)

    @property
    def one_pool(self) -> CachedPool | PagedPool | None:
        """The pool of a plain step whose placement is not the plan's; None where the plan places tensors."""
        return self.cached or self.paged

    @property
    def gap(self) -> float:
        """(objective - bound) / objective: the share that is not proven necessary, 0 when proven optimal."""
        return self._gap_to(self.bound_us)

    @property
    def solver_gap(self) -> float | None:
        """Gap between the objective and the bound that the solver claims, as a share; None if it claims none."""
        return None if self.solver_bound_us is None else self._gap_to(self.solver_bound_us)

    def _gap_to(self, bound_us: float) -> float:
        return 0.0 if self.objective_us <= 0 else max(0.0, (self.objective_us - bound_us) / self.objective_us)


@dataclass(frozen=True)
class Refusal:
    """Why a limit has no plan.

    Attributes:
        limit: as asked, e.g. `8:1`.
        smallest_bytes: the least fast memory that a placement of this optimizer can keep; None where that is not known.
        why: what does not fit, for people.
    """

    limit: Limit
    smallest_bytes: int | None
    why: str
