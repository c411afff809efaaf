"""Why a tensor lives where a plan has it: what its uses, its bytes and its moves cost, and what else would."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from autotm.check import proven_bound_us
from autotm.model.files import BadInputError
from autotm.model.plan import Move, Stay
from autotm.model.step import Graph, Kernel, Tensor, Tier
from autotm.study.view import MemoryPrices, Placed

_NEAR = 5


@dataclass(frozen=True)
class Use:
    """A kernel that makes or reads the tensor.

    Attributes:
        kernel: its index.
        name: as in the graph file.
        tier: where the tensor is then.
        slower_us: what it adds there if it is slow (measured by the profile).
    """

    kernel: int
    name: str
    tier: Tier
    slower_us: float


@dataclass(frozen=True)
class Gap:
    """The time between two uses that follow each other.

    Attributes:
        after, before: kernels that use the tensor.
        time_us: predicted time of the kernels in between.
        reuse_bytes: distinct bytes that kernels in between use: the reuse distance.
        held_us: holding cost, if it stayed in fast memory meanwhile.
        moved_us: blocking copies to slow memory and back.
    """

    after: int
    before: int
    time_us: float
    reuse_bytes: int
    held_us: float
    moved_us: float


@dataclass(frozen=True)
class Residency:
    """A way to keep the tensor, and what it costs.

    Attributes:
        name: of the way.
        uses_us: slower uses.
        moves_us: moves.
        held_us: holding cost of its fast memory.
        loss_us: by how much a step that keeps it so is slower than the plan's, at least, however the other tensors
            are placed (proven by the plan's certificate); None for the plan's own way, and where nothing proves it.
        fits: whether the limit leaves room for it.
    """

    name: str
    uses_us: float
    moves_us: float
    held_us: float
    loss_us: float | None = None
    fits: bool = True

    @property
    def total_us(self) -> float:
        """All three."""
        return self.uses_us + self.moves_us + self.held_us


@dataclass(frozen=True)
class TensorExplanation:
    """A tensor in a plan.

    Attributes:
        network, optimizer, limit: of the plan; the limit as asked.
        tensor: as in the graph file.
        stays, moves: those of it, as in the plan.
        uses: kernels that make or read it, in order.
        gaps: between uses that follow each other.
        has_prices: whether the plan's certificate says what fast memory is worth; else `held_us` is 0 everywhere.
        is_tabled: whether a kernel that uses it is priced by measured configurations: then uses do not simply add up.
        residencies: as planned first.
    """

    network: str
    optimizer: str
    limit: str
    tensor: Tensor
    stays: tuple[Stay, ...]
    moves: tuple[Move, ...]
    uses: tuple[Use, ...]
    gaps: tuple[Gap, ...]
    residencies: tuple[Residency, ...]
    has_prices: bool
    is_tabled: bool


def explain_tensor(placed: Placed, name: str) -> TensorExplanation:
    """What a plan does with a tensor, and what else it could.

    Raises:
        BadInputError: no such tensor, or one that the plan does not place.
    """
    tensor = _tensor_of(placed, name)
    step, plan = placed.step, placed.plan
    stays = tuple(stay for stay in plan.stays if stay.tensor == tensor.name)
    prices = MemoryPrices(plan, len(step.kernels))
    slower_us = _slower_us(placed, tensor)
    uses = tuple(
        Use(index, step.kernels[index].name, _tier_at(stays, index), slower_us(index)) for index in tensor.users
    )
    fast_all, held = sum(use.slower_us for use in uses), prices.held_us
    moved = [(move, us) for move, us in zip(plan.moves, placed.moves_us, strict=True) if move.tensor == tensor.name]
    size = tensor.allocated_bytes
    planned = Residency(
        "as planned",
        sum(use.slower_us for use in uses if use.tier is Tier.PMEM),
        sum(us for _, us in moved),
        sum(held(size, stay.start, stay.end) for stay in stays if stay.tier is Tier.DRAM),
    )
    held_us = held(size, tensor.live.start, tensor.live.stop)
    fits = size <= plan.dram_limit_bytes
    for_life = Residency("fast for life", 0.0, 0.0, held_us, _loss_us(placed, tensor, stays, Tier.DRAM), fits)
    never = Residency("slow for life", fast_all, 0.0, 0.0, _loss_us(placed, tensor, stays, Tier.PMEM))
    return TensorExplanation(
        step.network,
        plan.optimizer,
        plan.limit,
        tensor,
        stays,
        tuple(move for move, _ in moved),
        uses,
        _gaps(placed, tensor, prices),
        (planned, for_life, never),
        prices.are_known,
        bool(set(tensor.users) & set(plan.tabled)),
    )


def _tensor_of(placed: Placed, name: str) -> Tensor:
    known = placed.step.by_name
    if name not in known:
        near = difflib.get_close_matches(name, known, n=_NEAR) or [each for each in known if name in each][:_NEAR]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise BadInputError(f"unknown tensor '{name}'{hint} (autotm view shows all {len(known)})")
    tensor = known[name] if (shared := known[name].alias_of) is None else known[shared]
    if not tensor.is_movable:
        raise BadInputError(
            f"tensor '{name}' ({tensor.role}) is in fast memory for good: the limit does not count it. With "
            "--counts all, in solving and here, plans place it, too"
        )
    return tensor


def _loss_us(placed: Placed, tensor: Tensor, stays: tuple[Stay, ...], tier: Tier) -> float | None:
    """By how much keeping the tensor in one tier for life makes the step slower at least."""
    plan = placed.plan
    has_room = tier is Tier.PMEM or tensor.allocated_bytes <= plan.dram_limit_bytes
    if plan.certificate is None or not has_room or all(stay.tier is tier for stay in stays):
        return None
    least_us = proven_bound_us(placed.graph, placed.profile, placed.links, plan, fixed={tensor.name: tier})
    return max(0.0, least_us - plan.objective_us)


def _tier_at(stays: tuple[Stay, ...], kernel: int) -> Tier:
    """A tensor in both tiers is used in fast memory."""
    fast = any(stay.tier is Tier.DRAM and stay.start <= kernel < stay.end for stay in stays)
    return Tier.DRAM if fast else Tier.PMEM


def _slower_us(placed: Placed, tensor: Tensor) -> Callable[[int], float]:
    """What the tensor adds to a kernel where it is slow; of its default implementation, as plans are priced."""
    own = tensor.producer is not None and tensor.name not in placed.graph.computed_by(()).by_name
    step: Graph = placed.step if own else placed.graph.computed_by(())

    def found(index: int) -> float:
        kernel: Kernel = step.kernels[index]
        return placed.profile.extra_us(step, kernel, tensor.name)

    return found


def _gaps(placed: Placed, tensor: Tensor, prices: MemoryPrices) -> tuple[Gap, ...]:
    step, links = placed.step, placed.links
    both = sum(links.copy_us(tier, tensor.size_bytes) for tier in (Tier.PMEM, Tier.DRAM))
    found = []
    for after, before in pairwise(tensor.users):
        between = range(after + 1, before)
        used = {name for index in between for name in step.slots_of(step.kernels[index])}
        found.append(
            Gap(
                after,
                before,
                sum(placed.kernels_us[index] for index in between),
                sum(step.by_name[name].size_bytes for name in used),
                prices.held_us(tensor.allocated_bytes, after + 1, before),
                both,
            )
        )
    return tuple(found)
