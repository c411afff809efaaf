"""Addresses of a plan all of whose tensors lie in one pool: behind a cache, or in pages that Linux places."""

from __future__ import annotations

from autotm.check.fault import Fault, require
from autotm.model.plan import CachedPool, KernelStep, PagedPool, Plan, Program
from autotm.model.step import ALIGNMENT_BYTES, Graph


def check_one_pool(graph: Graph, plan: Plan, pool: CachedPool | PagedPool, fault: Fault) -> dict[str, int]:
    """The offset of each tensor, aligned and inside the pool.

    Raises:
        FaultError: the first broken rule; `fault` where stays and offsets are not as many.
    """
    require(len(pool.offsets) == len(plan.stays), fault, f"{len(pool.offsets)} offsets, {len(plan.stays)} stays")
    offsets = {stay.tensor: offset for stay, offset in zip(plan.stays, pool.offsets, strict=True)}
    for tensor, offset in offsets.items():
        end = offset + graph.by_name[tensor].allocated_bytes
        require(offset % ALIGNMENT_BYTES == 0, Fault.ALIGNMENT, f"'{tensor}' at offset {offset}")
        require(offset >= 0 and end <= pool.size_bytes, Fault.POOL, f"'{tensor}': [{offset}, {end})")
    return offsets


def check_one_pool_program(
    graph: Graph, plan: Plan, program: Program, pool: CachedPool | PagedPool, fault: Fault, what: str
) -> None:
    """The program has the plan's pool, and uses the addresses that `what` belongs to.

    Raises:
        FaultError: the first broken rule.
    """
    same = (program.fast_bytes, program.slow_bytes) == (0, pool.size_bytes)
    require(same, fault, f"pools of {program.fast_bytes} and {program.slow_bytes} bytes, not one of the plan's")
    offsets = {stay.tensor: offset for stay, offset in zip(plan.stays, pool.offsets, strict=True)}
    for step in program.steps:
        assert isinstance(step, KernelStep), "the steps are the plan's, which has no moves"
        operands = graph.kernels[step.kernel].operands
        for operand, address in zip(operands, step.addresses, strict=False):
            there = address.offset == offsets.get(operand.tensor)
            require(there, Fault.ADDRESS, f"kernel {step.kernel}: '{operand.tensor}' is not where its {what}")
