"""The choices of an optimizer: tensors' gadgets, windows for moves and tables; and a check that a limit is feasible."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autotm.model.errors import InfeasibleLimitError
from autotm.model.graph import Tensor, Tier
from autotm.model.plan import WINDOW_HALVES
from autotm.solve.problem import Problem, Table

Span = tuple[int, int]
"""Kernels [start, end)."""


@dataclass(frozen=True, slots=True)
class Window:
    """An asynchronous move that its engine works at for `work_ns`, at any time during kernels [start, end).

    It adds `added_us` to the step.
    """

    start: int
    end: int
    work_ns: int
    added_us: float = 0.0


@dataclass(frozen=True, slots=True)
class TensorChoices:
    """The choices of one tensor with m gadgets.

    A *gadget* (Hildebrand et al., ASPLOS 2020) is a stretch of kernels during which the tensor cannot change tier: one
    kernel that uses it, or its whole life when it may not move at all.

    Attributes:
        tensor: its name.
        size_bytes: its bytes in fast memory, alignment included.
        starts, stops: gadget k spans kernels [starts[k], stops[k]); the gap after it ends at starts[k + 1].
        slow_us: cost of slow memory at each gadget, but for kernels whose table prices the tensor.
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
        """Return the kernels [first, last + 1) strictly between gadgets k and k + 1; empty when they are neighbours."""
        return self.stops[k], self.starts[k + 1]


@lru_cache(1 << 16)
def flags(values: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return one object for equal flags, to save memory: of a hundred thousand tensors few differ in them."""
    return values


@cache
def _without_windows(gaps: int) -> tuple[tuple[Window, ...], ...]:
    return ((),) * gaps


def flows_by_use(problem: Problem) -> tuple[TensorChoices, ...]:
    """Return flows with one gadget per user: the tensor may move between any two of them."""
    uses = ([t.live] if t.held else [range(user, user + 1) for user in t.users] for t in problem.placed)
    return tuple(_flow(problem, tensor, gadgets) for tensor, gadgets in zip(problem.placed, uses, strict=True))


def flows_with_async_moves(problem: Problem) -> tuple[TensorChoices, ...]:
    """Return the flows of `flows_by_use` with asynchronous moves in gaps where these are cheaper than blocking ones.

    Raises:
        BadInputError: asynchronous copies were not measured.
    """
    return tuple(_with_windows(problem, flow) for flow in flows_by_use(problem))


def _with_windows(problem: Problem, flow: TensorChoices) -> TensorChoices:
    tensor, gaps = problem.graph.by_name[flow.tensor], [flow.gap(k) for k in range(len(flow) - 1)]
    moves, size_bytes = [], tensor.size_bytes
    for tier, blocking_us in ((Tier.SLOW, flow.write_us), (Tier.FAST, flow.read_us)):
        # Of a hundred thousand tensors few are worth a look at their gaps.
        can_pay = problem.links.least_added_us(tier, size_bytes) < blocking_us
        alone_ns = math.ceil(1e3 * problem.links.transfer_us(tier, size_bytes))
        moves.append(
            tuple(_windows(problem, tier, gap, tensor, alone_ns, blocking_us) if can_pay else () for gap in gaps)
        )
    return replace(flow, out=moves[0], back=moves[1])


def _windows(
    problem: Problem, destination: Tier, gap: Span, tensor: Tensor, alone_ns: int, blocking_us: float
) -> tuple[Window, ...]:
    """Return the windows in a gap, shortest first, in which a move has time and is cheaper than a blocking one (A3).

    Those to slow memory start with the gap and end by its middle; those to fast memory end with it, and start there or
    later. What is fetched or stored goes one way, and may take the whole gap. Alone, the move takes `alone_ns`.
    """
    (first, end), overlap, until = gap, problem.overlap, problem.overlap.until_ns
    least_ns = [(half * alone_ns + 1) // 2 for half in WINDOW_HALVES]
    # (A2) The first kernel before which at least half of the gap's time has passed.
    middle = bisect_left(until, (until[first] + until[end] + 1) // 2, first)
    if tensor.slow_at is not None:
        middle = end if destination is Tier.SLOW else first
    if destination is Tier.SLOW:
        stops = sorted({bisect_left(until, until[first] + need) for need in least_ns})
        spans = [(first, stop) for stop in stops if stop <= middle]
    else:
        starts = sorted({bisect_right(until, until[end] - need) - 1 for need in least_ns}, reverse=True)
        spans = [(start, end) for start in starts if start >= middle]
    move = destination, tensor.size_bytes
    windows = (Window(*span, overlap.work_ns(*move, *span), overlap.added_us(*move, *span)) for span in spans)
    return tuple(
        window
        for window in windows
        if window.work_ns <= until[window.end] - until[window.start] and window.added_us < blocking_us
    )


def flows_for_life(problem: Problem, tensors: Sequence[Tensor] | None = None) -> tuple[TensorChoices, ...]:
    """Return flows with one gadget per tensor, so that none moves; by default those of `problem.placed`."""
    chosen = problem.placed if tensors is None else tensors
    return tuple(_flow(problem, tensor, [tensor.live]) for tensor in chosen)


def flows_in(problem: Problem, tier: Tier) -> tuple[TensorChoices, ...]:
    """Return flows that keep every tensor in one tier for life."""
    return tuple(_flow(problem, tensor, [tensor.live], tier) for tensor in problem.graph.movable)


def _flow(problem: Problem, tensor: Tensor, gadgets: Sequence[range], tier: Tier | None = None) -> TensorChoices:
    must = tier is Tier.FAST or (problem.options.fast_operands_only and tier is None)
    slow_at = tensor.slow_at
    may = tuple(tier is not Tier.SLOW and gadget.start != slow_at for gadget in gadgets)
    graph, profile = problem.graph, problem.profile
    additive = [user for user in tensor.users if user not in problem.tabulation.tabled and user != slow_at]
    users = [[graph.kernels[user] for user in additive if user in gadget] for gadget in gadgets]
    return TensorChoices(
        tensor=tensor.name,
        size_bytes=tensor.allocated_bytes,
        starts=tuple(gadget.start for gadget in gadgets),
        stops=tuple(gadget.stop for gadget in gadgets),
        slow_us=tuple(
            0.0 if must else sum(profile.extra_us(graph, kernel, tensor.name) for kernel in group) for group in users
        ),
        write_us=problem.links.copy_us(Tier.SLOW, tensor.size_bytes),
        read_us=problem.links.copy_us(Tier.FAST, tensor.size_bytes),
        must=flags(tuple(must and gadget.start != slow_at for gadget in gadgets)),
        may=flags(may),
        may_between=flags(tuple(before and after for before, after in pairwise(may))),
        may_read=flags((False, *may[1:])),
        out=_without_windows(len(gadgets) - 1),
        back=_without_windows(len(gadgets) - 1),
    )


@dataclass(frozen=True, slots=True)
class OperandRef:
    """A flow's tier at one of its gadgets is the tier of an operand of a table."""

    gadget: int
    table: int
    operand: int


@dataclass(frozen=True)
class Choices:
    """The choices of one problem.

    Attributes:
        flows: one per tensor that is placed by itself; `slow_us` leaves out what tables price.
        tables: kernels that have entries to choose from.
        kernel_ns: nanoseconds that copy engines can work during each kernel; empty where all moves are blocking.
    """

    flows: tuple[TensorChoices, ...]
    tables: tuple[Table, ...] = ()
    kernel_ns: tuple[int, ...] = ()

    @property
    def has_async_moves(self) -> bool:
        """Whether any move may be asynchronous."""
        return any(any(flow.out + flow.back) for flow in self.flows)

    @cached_property
    def ties(self) -> tuple[tuple[OperandRef, ...], ...]:
        """The ties of each flow to tables."""
        by_name = {flow.tensor: index for index, flow in enumerate(self.flows)}
        ties: list[list[OperandRef]] = [[] for _ in self.flows]
        for number, table in enumerate(self.tables):
            for operand, index in enumerate(by_name[name] for name in table.operands):
                gadget = bisect_right(self.flows[index].starts, table.kernel) - 1
                ties[index].append(OperandRef(gadget, number, operand))
        return tuple(map(tuple, ties))

    @cached_property
    def operands(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The (flow, gadget) of each operand of each table."""
        operands: list[list[tuple[int, int]]] = [[(-1, -1)] * len(table.operands) for table in self.tables]
        for index, ties in enumerate(self.ties):
            for tie in ties:
                operands[tie.table][tie.operand] = (index, tie.gadget)
        return tuple(map(tuple, operands))

    @cached_property
    def most_us(self) -> tuple[tuple[float, ...], ...]:
        """The most that slow memory at each gadget of each flow can add, all else being equal."""
        return self._with_tables([table.most_us for table in self.tables])

    @cached_property
    def least_us(self) -> tuple[tuple[float, ...], ...]:
        """The least that slow memory at each gadget of each flow can add, all else being equal."""
        return self._with_tables([table.least_us for table in self.tables])

    def _with_tables(self, shares: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        return tuple(
            priced(flow, ties, shares) if ties else flow.slow_us
            for flow, ties in zip(self.flows, self.ties, strict=True)
        )


def priced(flow: TensorChoices, ties: Sequence[OperandRef], shares: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the cost of slow memory at each gadget; being operand o of table j adds `shares[j][o]` to it."""
    slow_us = list(flow.slow_us)
    for tie in ties:
        slow_us[tie.gadget] += shares[tie.table][tie.operand]
    return tuple(slow_us)


def required_bytes(choices: Choices, kernels: int) -> npt.NDArray[np.int64]:
    """Return the bytes that have to be fast during each kernel, whatever is decided (kernels,)."""
    required = np.zeros(kernels, np.int64)
    for table in choices.tables:
        required[table.kernel] += table.least_bytes
    for flow in choices.flows:
        for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True):
            if must:
                required[start:stop] += flow.size_bytes
    return required


def require_feasible(problem: Problem, choices: Choices, optimizer: str) -> None:
    """Refuse a limit below the bytes that must be in fast memory during some kernel, before any solver starts.

    Raises:
        InfeasibleLimitError: names the worst kernel, the bytes short and the smallest feasible limit.
    """
    required = required_bytes(choices, len(problem.graph.kernels))
    smallest = int(required.max(initial=0))
    if smallest > problem.limit_bytes:
        worst = int(required.argmax())
        raise InfeasibleLimitError(
            f"limit {problem.limit} ({problem.limit_bytes} bytes of fast memory) is infeasible for '{optimizer}': "
            f"kernel {worst} '{problem.graph.kernels[worst].name}' needs {smallest} bytes in fast memory, "
            f"{smallest - problem.limit_bytes} bytes short; the smallest feasible limit is {smallest} bytes",
            smallest,
        )
