"""Where a program has the stays of its plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autotm.model.files import BadInputError, hash_of
from autotm.model.plan import KernelStep, MoveStep, Plan, Program, StartMoveStep, Stay
from autotm.model.step import Graph, Tier


def stay_offsets(step: Graph, plan: Plan, program: Program) -> list[int]:
    """The offset of each stay of the plan in its tier's pool, bytes: as the plan states it, or the program uses it.

    Args:
        step: with the plan's implementations.
        plan: whose stays are asked for.
        program: made from it.

    Raises:
        BadInputError: the program was made from another plan, or neither says where a stay is.
    """
    if program.plan_hash != hash_of(plan):
        raise BadInputError(
            f"the program of {program.optimizer}, limit {program.limit}, was made from another plan; make it again: "
            "autotm compile NETWORK OPTIMIZER LIMIT"
        )
    if stated := plan.one_pool.offsets if plan.one_pool else plan.offsets:
        return list(stated)
    found: dict[tuple[str, Tier], list[tuple[int, int]]] = defaultdict(list)
    for kernel, tensor, tier, offset in _uses(step, program):
        found[tensor, tier].append((kernel, offset))
    return [_offset_of(stay, found[stay.tensor, stay.tier]) for stay in plan.stays]


def _uses(step: Graph, program: Program) -> Iterator[tuple[int, str, Tier, int]]:
    """Every kernel, tensor, tier and offset that the program uses; a move counts for the kernel after it."""
    following = 0
    for item in program.steps:
        if isinstance(item, KernelStep):
            for operand, address in zip(step.kernels[item.kernel].operands, item.addresses, strict=True):
                if address.offset is not None:
                    yield item.kernel, operand.tensor, address.tier, address.offset
            following = item.kernel + 1
        elif isinstance(item, MoveStep | StartMoveStep) and item.destination.offset is not None:
            yield following, item.tensor, item.destination.tier, item.destination.offset


def _offset_of(stay: Stay, uses: list[tuple[int, int]]) -> int:
    """A stay begins at a kernel that writes it or at a move: both name its address."""
    for kernel, offset in uses:
        if stay.start <= kernel < stay.end:
            return offset
    raise BadInputError(f"nothing says where '{stay.tensor}' is from kernel {stay.start} on; solve for the plan again")
