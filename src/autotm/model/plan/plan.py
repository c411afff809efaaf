"""The solver's answer: where each tensor is when, the moves between, and how good that provably is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotm.model.plan.cache import CachedPool
from autotm.model.plan.calls import called
from autotm.model.plan.certificate import Certificate
from autotm.model.plan.paging import PagedPool
from autotm.model.step import Configuration, Counts, Graph, Tier


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
        return self.before, not self.is_asynchronous, self.destination is Tier.DRAM, self.tensor

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
    limit: str
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

    def step_of(self, graph: Graph) -> Graph:
        """The step that it is a plan for, of one with all implementations: with its own, and as it is called."""
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
        """The same to the bound that the solver claims, if it claims one."""
        return None if self.solver_bound_us is None else self._gap_to(self.solver_bound_us)

    def _gap_to(self, bound_us: float) -> float:
        return 0.0 if self.objective_us <= 0 else max(0.0, (self.objective_us - bound_us) / self.objective_us)
