"""The solver's answer: where each tensor is when, the moves between, and how good that provably is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotm.model.counting import Counts
from autotm.model.tier import Configuration, Tier


class Status(StrEnum):
    """How the search for a plan ended."""

    OPTIMAL = "optimal"
    WITHIN_GAP = "within_gap"
    TIME_LIMIT = "time_limit"
    ABOVE_GAP = "above_gap"
    NOT_OPTIMIZED = "not_optimized"


class BoundProof(StrEnum):
    """What proves a plan's bound: its certificate's prices alone, or beyond them the solver's branch and bound."""

    PRICES = "prices"
    BRANCH_AND_BOUND = "branch_and_bound"


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor's memory in one tier, held during kernels [start, end).

    The memory may be written by a move just before kernel `start`, and is still intact at the moves just before
    kernel `end`, until a move into that tier, or kernel `end` itself, reuses it.
    """

    tensor: str
    tier: Tier
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Move:
    """A blocking copy of a tensor just before kernel `before`, from the other tier to `destination`.

    Moves before one kernel run in this order: all to slow memory, then all to fast memory. A move to slow reads the
    fast stay that holds during kernel `before` - 1; a move to fast reads the slow stay that holds during `before`.
    """

    tensor: str
    destination: Tier
    before: int


@dataclass(frozen=True)
class Certificate:
    """Prices that prove the bound without a solver, whatever they are.

    `prices_us_per_byte[i]` >= 0 is the price of a byte of fast memory during kernel i. `slow_us[j][o]` is what operand
    o of the j-th tabled kernel pays for being slow there and the kernel receives; operands are its movable tensors in
    the order of the slots, without the workspaces of a kernel that has several implementations. The bound is the sum
    over tensors of the cheapest path at these prices, plus the sum over kernels of the cheapest implementation and
    configuration, minus the price of the limit; a tensor larger than the limit never is in fast memory.
    """

    prices_us_per_byte: tuple[float, ...]
    slow_us: tuple[tuple[float, ...], ...] = ()


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
        moves: in execution order.
        implementations: one per kernel; empty where every kernel has its default one.
        tabled: kernels priced by the measured time of their configuration and implementation, ascending. The others are
            priced by the all-fast time of their implementation, plus what each slow operand adds to the default one
            and each slow workspace to their own.
        configurations: one per kernel, as the stays imply.
        objective_us: predicted step time of this plan, from the profile.
        bound_us: no plan of this optimizer is faster under the profile.
        gap: (objective - bound) / objective, 0 when proven optimal; at most 1.
        build_s, solve_s: seconds to build the model and to solve it, over all attempts.
        certificate: prices that prove a bound; None where the optimizer has exactly one plan.
        bound_proof: whether the prices prove `bound_us`, or less than that.
        attempts_s: (build, solve) seconds of each attempt; more than one when packing needed a shaved limit.
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
    bound_proof: BoundProof = BoundProof.PRICES
    attempts_s: tuple[tuple[float, float], ...] = ()
    implementations: tuple[str, ...] = ()
    tabled: tuple[int, ...] = ()

    @property
    def gap(self) -> float:
        """Share of the objective that is not proven necessary."""
        return 0.0 if self.objective_us <= 0 else max(0.0, (self.objective_us - self.bound_us) / self.objective_us)
